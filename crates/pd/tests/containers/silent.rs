//! Processes that do not let themselves be looked at, and `pd ls --all`.
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::compiled::compiled_program;
use super::{pd, stderr, stdout, Net};

/// Most time for a list. One that never ends takes longer.
const LIST_WITHIN: Duration = Duration::from_secs(60);

/// Lists what is on the kernel until the list says `wanted`. Returns the list; none if it does not end.
fn listed(wanted: &str) -> Option<String> {
    let until = Instant::now() + LIST_WITHIN;
    loop {
        let (done, list) = channel();
        std::thread::spawn(move || done.send(pd(&["ls", "--all"]).output()));
        let list = list.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?;
        let list = stdout(&list.unwrap());
        if list.contains(wanted) {
            return Some(list);
        }
    }
}

/// The file system of the process's `PD_SOCKET` takes requests and is silent.
#[test]
fn a_list_ends_beside_a_file_system_that_does_not_answer() {
    let net = Net::new(20);
    let folder = tempfile::tempdir().unwrap();
    let (mute, mounted) = (compiled_program("mute", folder.path(), &[]), folder.path().join("m"));
    std::fs::create_dir(&mounted).unwrap();
    let socket = format!("PD_SOCKET={}", mounted.join("s").display());
    let listens = "import socket; s = socket.socket(); s.bind(('', 4444)); s.listen(); s.accept()";
    let command =
        [mute.to_str().unwrap(), mounted.to_str().unwrap(), "env", &socket, "python3", "-c", listens];
    let name = net.name("a");
    let words = ["run", "-d", "--privileged", "--no-driver", "--bridge", &net.bridge, "--name", &name];
    let output = pd(&words).args(["--ip", &net.ip(2), "--"]).args(command).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let list = listed("0.0.0.0:4444");
    // A list that does not end does so with the file system.
    assert!(pd(&["stop", "--time", "0", &name]).status().unwrap().success());
    std::fs::remove_file(Path::new("/run/pd/logs").join(&name)).unwrap();
    net.assert_clean();
    let list = list.expect("the list does not end");
    let line = list.lines().find(|line| line.contains("listens on 0.0.0.0:4444")).expect("listed");
    assert!(line.contains("not told: its memory, or the file system"), "{list}");
}

/// The folder of the process's descriptors is locked for all that have the same mount of `/proc`.
#[test]
fn a_process_whose_folder_in_proc_is_locked_is_listed() {
    let net = Net::new(21);
    let folder = tempfile::tempdir().unwrap();
    let holder = net.sleeper("a", Some(&net.ip(2)));
    let network = format!("--net=/proc/{}/ns/net", net.record("a").unwrap());
    let mut locked = Command::new("nsenter")
        .arg(network)
        .arg(compiled_program("listed", folder.path(), &[]))
        .spawn()
        .unwrap();
    let list = listed("0.0.0.0:4445");
    locked.kill().unwrap();
    locked.wait().unwrap();
    drop(holder);
    net.assert_clean();
    let list = list.expect("the list does not end");
    assert!(list.contains("listens on 0.0.0.0:4445"), "{list}");
}
