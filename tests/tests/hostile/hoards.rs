//! A user's holdings beside its caps, as the driver counts them and as the kernel does: while its process is stopped at a random moment,
//! and after it was killed at one.
use super::held::{files_of, kills, mappings, wait_stopped, File, Held, OBJECT_BYTES, OBJECT_DESCRIPTORS};
use super::{stage_of, Scene};
use pd_driver::admin::{Answer, Ask, HoldingReport, PortSpec, StandingReport};
use pd_driver::HugepageUse;
use pd_tests::{needs_root, program_path, Random};
use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;
const PATIENCE: Duration = Duration::from_secs(20);
/// Kills of the short form.
const SHORT: u64 = 100;
/// Kills after which everything has to be as at the start.
const KILLS_BETWEEN: u64 = 50;

struct Hoards {
    scene: Scene,
    hoarders: u64,
}

impl Hoards {
    /// Makes a driver with small caps for each user.
    fn new() -> Self {
        let scene = stage_of(HugepageUse::Off, |_| {});
        let everybody = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(scene.driver.folder(), everybody).expect("own folder");
        scene.driver.apply(
            "path = \"direct\"\n[attach]\ndefault = \"anyone\"\n[[tenant]]\nname = \"default\"\nclients_max = 8\n\
             descriptors_max = 100\nmemory_bytes_max = \"12MB\"",
        );
        let mut this = Self { scene, hoarders: 0 };
        this.tell(&Ask::PortAdd { name: "drain".to_owned(), port: PortSpec::Sink });
        let mut first = this.hoarder();
        let mut ready = String::new();
        let said = BufReader::new(first.stdout.take().expect("a pipe")).read_line(&mut ready);
        assert_eq!((said.expect("a line"), ready.as_str()), (6, "ready\n"));
        first.kill().expect("it is there");
        first.wait().expect("a child");
        this
    }

    fn tell(&self, ask: &Ask) {
        assert!(matches!(self.scene.driver.tell(ask), Answer::Done));
    }

    fn hoarder(&mut self) -> Child {
        let mut command = Command::new(program_path("hoarder"));
        command.arg(self.scene.driver.socket()).arg(self.hoarders.to_string()).stdout(Stdio::piped());
        self.hoarders += 1;
        self.scene.driver.spawn(&mut command)
    }

    /// Returns the user's account; empty if it has none.
    fn holding(&self) -> HoldingReport {
        let tenants = self.scene.driver.policy().tenants.into_iter();
        let mut holdings = tenants.flat_map(|tenant| tenant.holdings);
        let (user, none) = (Some(NOBODY), StandingReport::default());
        let empty = HoldingReport { user, clients: none, descriptors: none, memory_bytes: none };
        holdings.find(|holding| holding.user == user).unwrap_or(empty)
    }

    /// Checks that the user has no more than its caps, and the kernel no more than the driver knows, except for an object under
    /// way.
    fn check(&self, before: &Held, pid: u32) {
        let until = Instant::now() + PATIENCE;
        loop {
            let (holding, now) = (self.holding(), Held::here());
            for (what, standing) in [
                ("clients", holding.clients),
                ("descriptors", holding.descriptors),
                ("bytes", holding.memory_bytes),
            ] {
                assert!(standing.used <= standing.max, "{what}: {standing:?}");
            }
            let descriptors = now.descriptors.saturating_sub(before.descriptors);
            let bytes = now.bytes_since(before);
            let unknown: Vec<File> =
                files_of(pid).into_iter().filter(|file| !now.memory.contains_key(file)).collect();
            if descriptors <= holding.descriptors.used + OBJECT_DESCRIPTORS
                && bytes <= holding.memory_bytes.used + OBJECT_BYTES
                && unknown.is_empty()
            {
                return;
            }
            // A client may have left a moment ago.
            assert!(
                Instant::now() < until,
                "{descriptors} descriptors, {bytes} bytes, memory {unknown:?} unknown to the driver: {holding:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all is as before, by the driver's word and the kernel's.
    fn settle(&self, before: &Held, mapped_before: usize) {
        self.scene.driver.wait_for("only the bystanders are left", |report| report.clients.len() == 2);
        let until = Instant::now() + PATIENCE;
        loop {
            let (holding, now, mapped) = (self.holding(), Held::here(), mappings());
            let used =
                [holding.clients, holding.descriptors, holding.memory_bytes].map(|standing| standing.used);
            if used == [0; 3]
                && now.descriptors <= before.descriptors
                && now.bytes_since(before) == 0
                && mapped <= mapped_before
            {
                return;
            }
            assert!(
                Instant::now() < until,
                "{used:?} held; {mapped} mappings, {mapped_before} before; {} descriptors, {} before: {:?}; {} bytes more",
                now.descriptors,
                before.descriptors,
                now.changes_since(before),
                now.bytes_since(before)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_user_holds_no_more_than_its_caps_alive_or_dead_and_nothing_in_the_end() {
    needs_root("another user's process");
    let mut hoards = Hoards::new();
    let mut random = Random(51);
    let mut before = None;
    for round in 1..=kills(SHORT) {
        let mut hoarder = hoards.hoarder();
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        if let Some((held, _)) = before.as_ref().filter(|_| round % 8 == 0) {
            // As it stands after a longer life.
            std::thread::sleep(Duration::from_millis(100));
            let pid = Pid::from_child(&hoarder);
            kill_process(pid, Signal::STOP).expect("it is there");
            wait_stopped(hoarder.id());
            hoards.check(held, hoarder.id());
        }
        let ended = hoarder.try_wait().expect("a child");
        assert!(ended.is_none(), "hoarder {} ended: {ended:?}", hoards.hoarders);
        hoarder.kill().expect("it is there");
        hoarder.wait().expect("a child");
        match &before {
            // The first rounds make lasting resources: sockets and threads for a kind of work, those of the bystanders.
            None if round == 10 => {
                hoards.scene.driver.wait_for("quiet", |report| report.clients.len() == 2);
                std::thread::sleep(Duration::from_millis(1500));
                before = Some((Held::here(), mappings()));
            }
            Some((held, mapped)) if round % KILLS_BETWEEN == 0 => hoards.settle(held, *mapped),
            _ => {}
        }
    }
    if let Some((held, mapped)) = &before {
        hoards.settle(held, *mapped);
    }
    hoards.tell(&Ask::PortRemove { name: "drain".to_owned() });
    // Resources of the first rounds stay with the driver: descriptors were counted from then on.
    let Scene { driver, bystander, .. } = hoards.scene;
    bystander.check(&driver);
    bystander.finish();
    assert!(driver.is_running());
}
