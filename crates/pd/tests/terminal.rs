//! `pd top` on a terminal: it leaves the terminal as it was, however it ends.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pd_driver::{Driver, HugepageUse, Namespaces, Settings, SystemClock};
use rustix::termios::{tcgetattr, tcsetwinsize, LocalModes, Winsize};

mod pty;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// A terminal, and `pd top` on it.
struct Session {
    master: File,
    terminal: File,
    child: Child,
    seen: String,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Session {
    fn start(admin_socket: &Path) -> Session {
        let (master, open) = pty::open();
        let terminal = open();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_pd"))
            .args(["top", "--interval", "0.1", "--admin-socket"])
            .arg(admin_socket)
            .env("TERM", "xterm")
            .stdin(Stdio::from(open()))
            .stdout(Stdio::from(open()))
            .stderr(Stdio::from(open()))
            .spawn()
            .unwrap();
        Session { master, terminal, child, seen: String::new() }
    }

    /// Reads until `part` has come.
    fn read_to(&mut self, part: &str) {
        let mut bytes = [0; 4096];
        while !self.seen.contains(part) {
            let len = self.master.read(&mut bytes).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn the_terminal_is_as_it_was_after_q_ctrl_c_and_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        socket: folder.path().join("driver.sock"),
        admin_socket: folder.path().join("admin.sock"),
        budget_bytes: 64 << 20,
        client_budget_bytes: 32 << 20,
        hugepages: HugepageUse::Off,
        namespaces: Namespaces::Own,
        ..Settings::default()
    };
    let admin = settings.admin_socket.clone();
    let engine = pd_engine::by_name("cpu").unwrap();
    let driver = Driver::start(settings, std::sync::Arc::new(SystemClock::default()), &*engine).unwrap();
    for (end, status) in [("q", 0), ("\x03", 0), ("SIGTERM", 143)] {
        let mut session = Session::start(&admin);
        session.read_to(ENTER);
        session.read_to("CONTAINER");
        assert!(session.is_raw());
        if end == "SIGTERM" {
            let pid = rustix::process::Pid::from_raw(session.child.id() as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        } else {
            session.master.write_all(end.as_bytes()).unwrap();
        }
        session.read_to(LEAVE);
        assert_eq!(session.child.wait().unwrap().code(), Some(status), "{end:?}");
        assert!(!session.is_raw(), "{end:?}");
    }
    drop(driver);
    let mut session = Session::start(&admin);
    session.read_to("no driver answers");
    assert_eq!(session.child.wait().unwrap().code(), Some(1));
    assert!(!session.seen.contains(ENTER));
}
