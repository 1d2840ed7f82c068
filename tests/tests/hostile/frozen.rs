//! Clients whose processes stand still at a random moment: stopped by a signal, held by a debugger, or frozen with their control group. All phases of a client
//! occur in the processes that are stopped ([`hoarder`](../../src/bin/hoarder.rs)). Others go on, caps hold, and nothing is left.
use super::held::wait_stopped;
use super::{stage_of, Scene};
use pd_driver::admin::{Answer, Ask};
use pd_driver::{HugepageUse, StartError};
use pd_tests::{needs_root, program_path, ControlGroup, Random, Raw};
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;
/// Processes that stand still.
const STOPPED: usize = 12;
const POLICY: &str = "[attach]\ndefault = \"anyone\"\n[[tenant]]\nname = \"default\"\nclients_max = 16\n\
                      descriptors_max = 300\nmemory_bytes_max = \"24MB\"";

/// A control group whose processes can be frozen. They go on when it is dropped.
struct Freezer(ControlGroup);

impl Freezer {
    /// Makes one, in the hierarchy of freezers or the unified one. None where there is neither.
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let make = |root| ControlGroup::new(Path::new(root).join(format!("pd-test-{}", std::process::id())));
        let can_freeze = |group: &ControlGroup| {
            ["freezer.state", "cgroup.freeze"].iter().any(|file| group.path().join(file).exists())
        };
        roots.into_iter().filter_map(make).find(can_freeze).map(Self)
    }

    fn add(&self, pid: u32) {
        self.0.set("cgroup.procs", pid).expect("own group");
    }

    fn set_frozen(&self, is_frozen: bool) {
        let (file, words) = match self.0.path().join("freezer.state").exists() {
            true => ("freezer.state", ["THAWED", "FROZEN"]),
            false => ("cgroup.freeze", ["0", "1"]),
        };
        self.0.set(file, words[usize::from(is_frozen)]).expect("own group");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set_frozen(false);
    }
}

/// The way in which processes are made to stand still.
enum Still {
    Stopped,
    Frozen(Freezer),
    Traced,
}

/// Makes a request to the kernel about a process or thread that this thread traces, or is to trace.
fn trace(request: libc::c_uint, id: u32, data: libc::c_int) -> bool {
    // SAFETY: these requests take no memory.
    unsafe { libc::ptrace(request, id as libc::pid_t, 0, libc::c_long::from(data)) == 0 }
}

/// Has all threads of a process stand still, as a debugger does. A process that is killed stands still once more before it ends.
fn hold(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is not reaped");
    let threads = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    let traced = |id: &u32| {
        let is_stopped =
            trace(libc::PTRACE_SEIZE, *id, libc::PTRACE_O_TRACEEXIT) && trace(libc::PTRACE_INTERRUPT, *id, 0);
        // SAFETY: the call takes no memory.
        is_stopped && unsafe { libc::waitpid(*id as i32, std::ptr::null_mut(), libc::__WALL) } == *id as i32
    };
    threads.filter(traced).collect()
}

fn hoarder(scene: &Scene, seed: usize) -> Child {
    let mut command = Command::new(program_path("hoarder"));
    command.arg(scene.driver.socket()).arg(seed.to_string()).stdout(Stdio::null());
    scene.driver.spawn(&mut command)
}

/// Checks that the bystanders go on, another client is served, and an administrator is answered, all in bounded time.
fn others_go_on(scene: &Scene) {
    let began = Instant::now();
    scene.bystander.check(&scene.driver);
    let mut other = Raw::attach(&scene.driver, 1);
    let (listener, addr) = other.listen(0, 1);
    other.connect(0, addr);
    other.accept(0, listener);
    for ask in [Ask::List, Ask::Kernel, Ask::Policy, Ask::Pipes] {
        assert!(!matches!(scene.driver.tell(&ask), Answer::Error(_)));
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

fn caps_hold(scene: &Scene) {
    let tenants = scene.driver.policy().tenants.into_iter();
    for holding in tenants.flat_map(|tenant| tenant.holdings).filter(|it| it.user == Some(NOBODY)) {
        for standing in [holding.clients, holding.descriptors, holding.memory_bytes] {
            assert!(standing.used <= standing.max, "{holding:?}");
        }
    }
}

/// Has processes stand still at random moments, while policies change the path of connections and another driver takes over.
fn stand_still(still: Still) {
    needs_root("another user's process");
    let mut scene = stage_of(HugepageUse::Off, |_| {});
    let everybody = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scene.driver.folder(), everybody).expect("own folder");
    scene.driver.apply(&format!("path = \"direct\"\n{POLICY}"));
    let mut random = Random(26);
    let (mut processes, mut held) = (Vec::new(), Vec::new());
    for seed in 1..=STOPPED {
        let process = hoarder(&scene, seed);
        if let Still::Frozen(group) = &still {
            group.add(process.id());
        }
        // From before it is attached to a client that has everything.
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        match still {
            Still::Stopped => {
                kill_process(Pid::from_child(&process), Signal::STOP).expect("it is there");
                wait_stopped(process.id());
            }
            Still::Traced => held.extend(hold(process.id())),
            Still::Frozen(_) => {}
        }
        processes.push(process);
    }
    if let Still::Frozen(group) = &still {
        group.set_frozen(true);
    }
    others_go_on(&scene);
    caps_hold(&scene);
    // Direct connections of stopped processes are recalled, and offered again.
    for path in ["offloaded", "direct"] {
        scene.driver.apply(&format!("path = \"{path}\"\n{POLICY}"));
        others_go_on(&scene);
    }
    // Processes that stand still while they attach hold a take-over up, which changes nothing then.
    if let Err(error) = scene.driver.take_over() {
        assert!(matches!(error, StartError::TakeOver(_)), "{error}");
    }
    others_go_on(&scene);
    caps_hold(&scene);
    if let Still::Frozen(group) = &still {
        group.set_frozen(false);
    }
    if let Still::Traced = still {
        assert!(held.len() >= STOPPED);
        // Half of them die, and stand still before the kernel takes away what they have.
        for process in processes.iter().step_by(2) {
            kill_process(Pid::from_child(process), Signal::KILL).expect("it is there");
        }
        others_go_on(&scene);
        caps_hold(&scene);
        held.iter().for_each(|id| _ = trace(libc::PTRACE_DETACH, *id, 0));
        for process in processes.iter_mut().step_by(2) {
            process.wait().expect("a child");
        }
        processes = processes.into_iter().skip(1).step_by(2).collect();
    }
    for process in &mut processes {
        kill_process(Pid::from_child(process), Signal::CONT).expect("it is there");
        std::thread::sleep(Duration::from_millis(2));
        let ended = process.try_wait().expect("a child");
        assert!(ended.is_none(), "a process ended by itself: {ended:?}");
        process.kill().expect("it is there");
        process.wait().expect("a child");
    }
    drop(still);
    scene.driver.wait_for("only the bystanders are left", |report| report.clients.len() == 2);
    let Scene { driver, bystander, .. } = scene;
    bystander.check(&driver);
    bystander.finish();
    driver.wait_for("all is given back", |report| report.clients.is_empty() && report.memory_used_bytes == 0);
}

#[test]
fn processes_that_are_stopped_at_any_moment_hold_up_nobody() {
    stand_still(Still::Stopped);
}

#[test]
fn processes_that_are_traced_at_any_moment_hold_up_nobody() {
    stand_still(Still::Traced);
}

#[test]
fn processes_that_are_frozen_at_any_moment_hold_up_nobody() {
    needs_root("control groups");
    match Freezer::new() {
        Some(group) => stand_still(Still::Frozen(group)),
        None => println!("SKIPPED: no control groups that can be frozen"),
    }
}
