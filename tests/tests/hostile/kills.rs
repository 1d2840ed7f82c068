//! Honest processes of several users that are killed at random moments: while they attach, connect, send, get more memory, wait, change
//! movers or paths, or leave a twin to a child. Afterwards all is as before, by the driver's word and by the kernel's.
use super::held::{kills, mappings, wait_stopped, Held, OBJECT_BYTES, OBJECT_DESCRIPTORS};
use super::{stage_of, Scene};
use pd_driver::admin::{HoldingReport, StandingReport};
use pd_driver::HugepageUse;
use pd_tests::{needs_root, program_path, Random};
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Users without a name, each with caps of its own.
const USERS: [u32; 3] = [65_531, 65_532, 65_533];
const PATIENCE: Duration = Duration::from_secs(20);
/// Processes at a time.
const ALIVE: usize = 4;
/// Kills of the short form.
const SHORT: u64 = 200;
/// Kills after which all processes end, and everything has to be as at the start.
const KILLS_BETWEEN: u64 = 50;
const MOVERS: usize = 2;

struct Kills {
    scene: Scene,
    /// Folder in which processes leave their addresses.
    addresses: PathBuf,
    alive: Vec<Child>,
    started: u64,
}

/// The state before, by the kernel's word.
struct Before {
    held: Held,
    mappings: usize,
}

fn open_to_all(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("own folder");
}

impl Kills {
    fn new() -> Self {
        let scene = stage_of(HugepageUse::Off, |settings| {
            settings.movers = MOVERS;
            settings.movers_shuffled = Some(Duration::from_millis(2));
        });
        let addresses = scene.driver.folder().join("addresses");
        std::fs::create_dir(&addresses).expect("own folder");
        open_to_all(scene.driver.folder(), 0o755);
        open_to_all(&addresses, 0o777);
        let this = Self { scene, addresses, alive: Vec::new(), started: 0 };
        this.set_path("direct");
        this
    }

    /// Sets the path of connections. Those that are on the other one change over, or stay.
    fn set_path(&self, path: &str) {
        self.scene.driver.apply(&format!(
            "path = \"{path}\"\n[attach]\ndefault = \"anyone\"\n[[tenant]]\nname = \"default\"\nclients_max = 6\n\
             descriptors_max = 150\nmemory_bytes_max = \"12MB\""
        ));
    }

    fn start(&mut self) {
        let user = USERS[self.started as usize % USERS.len()];
        self.started += 1;
        let mut command = Command::new(program_path("mayfly"));
        command.arg(&self.addresses).args([self.started.to_string(), user.to_string()]);
        let mut child = self.scene.driver.spawn(&mut command);
        // Descriptors of this process are the driver's alone.
        drop((child.stdin.take(), child.stdout.take()));
        self.alive.push(child);
    }

    fn kill(&mut self, at: usize) {
        let mut child = self.alive.swap_remove(at);
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "a process ended by itself: {ended:?}");
        child.kill().expect("it is there");
        child.wait().expect("a child");
        let _ = std::fs::remove_file(self.addresses.join(child.id().to_string()));
        // it may have had none yet
    }

    /// Returns the accounts of the users that have one.
    fn holdings(&self) -> Vec<HoldingReport> {
        let tenants = self.scene.driver.policy().tenants.into_iter();
        let holdings = tenants.flat_map(|tenant| tenant.holdings);
        holdings.filter(|holding| holding.user.is_some_and(|user| USERS.contains(&user))).collect()
    }

    /// Checks while all processes are stopped that no user has more than its caps, and the kernel no more than the driver knows but
    /// for an object of each.
    fn check(&self, before: &Before) {
        for child in &self.alive {
            kill_process(Pid::from_child(child), Signal::STOP).expect("it is there");
            wait_stopped(child.id());
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let (holdings, now) = (self.holdings(), Held::here());
            let sum = |of: fn(&HoldingReport) -> StandingReport| {
                holdings
                    .iter()
                    .for_each(|holding| assert!(of(holding).used <= of(holding).max, "{holding:?}"));
                holdings.iter().map(|holding| of(holding).used).sum::<u64>()
            };
            let clients = sum(|holding| holding.clients);
            let (descriptors, bytes) =
                (sum(|holding| holding.descriptors), sum(|holding| holding.memory_bytes));
            let users = USERS.len() as u64;
            let new = now.descriptors.saturating_sub(before.held.descriptors);
            let new_bytes = now.bytes_since(&before.held);
            if new <= descriptors + users * OBJECT_DESCRIPTORS && new_bytes <= bytes + users * OBJECT_BYTES {
                break;
            }
            // A client may have left a moment ago.
            assert!(
                Instant::now() < until,
                "{new} descriptors, {descriptors} known; {new_bytes} bytes, {bytes} known; {clients} clients"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        for child in &self.alive {
            kill_process(Pid::from_child(child), Signal::CONT).expect("it is there");
        }
    }

    /// Kills all processes, and waits until nothing is left of them.
    fn settle(&mut self, before: Option<&Before>) {
        while !self.alive.is_empty() {
            self.kill(0);
        }
        self.scene.driver.wait_for("only the bystanders are left", |report| {
            report.clients.len() == 2 && report.connections.len() == 1 && report.rings_waiting == 0
        });
        let Some(before) = before else { return };
        let until = Instant::now() + PATIENCE;
        loop {
            let (holdings, now, mapped) = (self.holdings(), Held::here(), mappings());
            let is_empty = |holding: &HoldingReport| {
                [holding.clients, holding.descriptors, holding.memory_bytes].iter().all(|it| it.used == 0)
            };
            if holdings.iter().all(is_empty)
                && now.descriptors <= before.held.descriptors
                && now.bytes_since(&before.held) == 0
                && mapped <= before.mappings
            {
                return;
            }
            assert!(
                Instant::now() < until,
                "{holdings:?}; {mapped} mappings, {} before; before {:?}; now {now:?}",
                before.mappings,
                before.held
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn nothing_is_left_of_honest_processes_of_several_users_killed_at_any_moment() {
    needs_root("another user's process");
    let mut kills_made = Kills::new();
    let (mut random, mut before) = (Random(52), None);
    for round in 1..=kills(SHORT) {
        while kills_made.alive.len() < ALIVE {
            kills_made.start();
        }
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        if let Some(before) = before.as_ref().filter(|_| round % 16 == 0) {
            kills_made.check(before);
        }
        // The newest one is still attaching.
        let at = if random.below(3) == 0 { ALIVE - 1 } else { random.below(ALIVE as u64) as usize };
        kills_made.kill(at);
        if round % 20 == 0 {
            kills_made.set_path(["offloaded", "direct"][(round / 20 % 2) as usize]);
        }
        if before.is_none() && round == 20 {
            // The first rounds make lasting resources: sockets and threads for a kind of work, and those of the bystanders.
            kills_made.settle(None);
            std::thread::sleep(Duration::from_millis(1500));
            before = Some(Before { held: Held::here(), mappings: mappings() });
        } else if round % KILLS_BETWEEN == 0 {
            kills_made.settle(before.as_ref());
        }
    }
    kills_made.settle(before.as_ref());
    let metrics = kills_made.scene.driver.metrics();
    assert!(metrics.connections_direct > 0 && metrics.channels_moved > 0, "{metrics:?}");
    // Resources of the first rounds stay with the driver: descriptors were counted from then on.
    let Scene { driver, bystander, .. } = kills_made.scene;
    bystander.check(&driver);
    bystander.finish();
    assert!(driver.is_running());
}
