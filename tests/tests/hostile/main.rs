//! Clients without any rules. In each case the driver lives, they are refused or cut off with a reason, a pair
//! of innocent processes goes on undisturbed, and nothing is left behind.
mod anything;
mod caps;
mod direct;
mod door;
mod fair;
mod files;
mod flight;
mod frames;
mod frozen;
mod gone;
mod groups;
mod held;
mod hoards;
mod kills;
mod listeners;
mod locks;
mod names;
mod program;
mod regions;
mod reports;
mod rings;
mod unclaimed;
mod wakes;
mod words;

use pd_abi::SocketId;
use pd_driver::policy::Otherwise;
use pd_driver::{HugepageUse, Violation};
use pd_tests::{alone, own_files, Bystander, Puppet, Raw, TestDriver};
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// A driver with a pair of bystanders. Scenes run one at a time, so that descriptors can be counted.
struct Scene {
    driver: TestDriver,
    bystander: Bystander,
    /// Files that the driver had open before.
    files: Vec<String>,
    _alone: MutexGuard<'static, ()>,
}

const RING_BYTES: u64 = 256 << 10;

fn stage() -> Scene {
    stage_with(HugepageUse::Off)
}

fn stage_with(hugepages: HugepageUse) -> Scene {
    stage_of(hugepages, |_| {})
}

/// Makes a scene with an attach socket for everybody, in a folder that everybody may enter.
fn stage_for_anyone() -> Scene {
    let scene = stage_of(HugepageUse::Off, |settings| settings.policy.attach.default = Otherwise::Anyone);
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scene.driver.folder(), everybody).expect("own folder");
    scene
}

fn stage_of(hugepages: HugepageUse, change: impl FnOnce(&mut pd_driver::Settings)) -> Scene {
    let alone = alone();
    let driver = TestDriver::with("cpu", |settings| {
        settings.hugepages = hugepages;
        change(settings);
        settings.ring_bytes_default = RING_BYTES;
        settings.ring_idle = Duration::from_millis(20);
    });
    driver.report();
    let files = settled_files();
    let bystander = Bystander::start(&driver);
    Scene { driver, bystander, files, _alone: alone }
}

/// Descriptors of this process once threads that are ending have closed theirs.
fn settled_files() -> Vec<String> {
    let mut last = own_files();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        let now = own_files();
        if now == last {
            break;
        }
        last = now;
    }
    last
}

/// Returns a socket of each kind: connecting, accepted, connected to `victim`, listening, fresh; and the listener's address.
fn sockets(raw: &mut Raw, victim: SocketAddr) -> (Vec<SocketId>, SocketAddr) {
    let (listener, own) = raw.listen(0, 16);
    let connecting = raw.connect(0, own);
    let accepted = raw.accept(0, listener);
    let to_victim = raw.connect(0, victim);
    (vec![connecting, accepted, to_victim, listener, raw.open(0)], own)
}

impl Scene {
    /// Starts a process that accepts all connections to its address.
    fn absorber(&self) -> (Puppet, SocketAddr) {
        let mut absorber = Puppet::new(self.driver.peer(&["absorb", "127.0.0.1:0"]));
        let line = absorber.line();
        (absorber, line.strip_prefix("ready ").expect("ready").parse().unwrap())
    }

    fn cut_offs(&self) -> u64 {
        self.driver.metrics().clients_cut_off
    }

    /// Waits until the driver hangs up on `raw` for this reason, and has counted it.
    fn expect_cut_off(&self, raw: &mut Raw, violation: Violation) {
        assert_eq!(raw.wait_cut_off(), Some(violation.to_string()));
        assert!(self.cut_offs() > 0);
        assert!(self.driver.is_running());
    }

    /// Checks that the bystanders are well, and that nothing of others is left.
    fn end(self) {
        assert!(self.driver.is_running());
        self.bystander.check(&self.driver);
        self.driver
            .wait_for("only the bystanders are left", |r| r.clients.len() == 2 && r.connections.len() == 1);
        self.bystander.finish();
        let gone = "all is given back";
        self.driver.wait_for(gone, |r| {
            r.clients.is_empty()
                && r.connections.is_empty()
                && r.memory_used_bytes == 0
                && r.rings_waiting == 0
        });
        let until = Instant::now() + Duration::from_secs(5);
        while own_files().len() > self.files.len() {
            assert!(Instant::now() < until, "before {:#?}, now {:#?}", self.files, own_files());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(self.driver.is_running());
    }
}
