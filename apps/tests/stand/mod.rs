//! A driver in the test's process, and programs that use it.

use pd_driver::admin::{ask, Answer, Ask, PipesReport};
use pd_driver::{Driver, Namespaces, Settings, SystemClock};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A driver on sockets in a folder of its own.
pub struct Stand {
    pub settings: Settings,
    _folder: tempfile::TempDir,
    _driver: Driver,
}

/// A program; killed when dropped.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Stand {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            socket: folder.path().join("s"),
            admin_socket: folder.path().join("a"),
            budget_bytes: 64 << 20,
            namespaces: Namespaces::Own,
            ..Settings::default()
        };
        let engine = pd_engine::by_name("cpu").unwrap();
        let driver = Driver::start(settings.clone(), Arc::new(SystemClock::default()), &*engine).unwrap();
        Self { settings, _folder: folder, _driver: driver }
    }

    pub fn tell(&self, what: &Ask) -> Answer {
        ask(&self.settings.admin_socket, what).unwrap()
    }

    pub fn report(&self) -> PipesReport {
        let Answer::Pipes(report) = self.tell(&Ask::Pipes) else { panic!("no report") };
        *report
    }

    pub fn wait_for(&self, what: &str, wished: impl Fn(&PipesReport) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let report = self.report();
            if wished(&report) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {report:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
