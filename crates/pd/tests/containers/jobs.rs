//! Process groups and terminals of containers' commands.

use super::{await_true, pd, stderr, stdout, Net};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

#[test]
fn signals_to_the_own_group_stay_in_the_container() {
    let net = Net::new(16);
    let sleeper = net.sleeper("s", Some(&net.ip(2)));
    let (pd_program, outer, name) = (env!("CARGO_BIN_EXE_pd"), net.name("a"), net.name("s"));
    let run = format!("run --no-driver --bridge {} --name {outer} --ip {}", net.bridge, net.ip(3));
    // To its group, and to all that it can reach: none but itself and the first process, which both are spared.
    for (words, target, status) in [(&run, "0", 137), (&run, "-1", 1), (&format!("exec {name}"), "0", 137)] {
        let script = format!("{pd_program} {words} -- sh -c 'kill -KILL {target}'; echo $? outside");
        let outside = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).process_group(0).output();
        let outside = outside.unwrap();
        assert_eq!(stdout(&outside), format!("{status} outside\n"), "{words} {target}: {}", stderr(&outside));
    }
    drop(sleeper);
    net.assert_clean();
}

/// A shell with job control on a terminal of its own.
struct Shell {
    master: File,
    child: Child,
    seen: String,
}

impl Shell {
    fn start(script: &str) -> Shell {
        let (master, open) = super::pty::open();
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "bash", "-m", "-c", script])
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        Shell { master, child, seen: String::new() }
    }

    /// Reads until `part` has come, and discards all up to there.
    fn read_to(&mut self, part: &str) {
        loop {
            if let Some(at) = self.seen.find(part) {
                self.seen.drain(..at + part.len());
                return;
            }
            self.read_some();
        }
    }

    fn read_some(&mut self) {
        let mut bytes = [0; 4096];
        let len = self.master.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {:?}", self.seen));
        self.seen.push_str(&String::from_utf8_lossy(&bytes[..len]));
    }

    fn write(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_command_has_the_terminal_as_a_shells_job_has() {
    let net = Net::new(17);
    let holder = net.sleeper("s", Some(&net.ip(2)));
    let run = format!(
        "{} run --no-driver --bridge {} --name {} --ip {} --",
        env!("CARGO_BIN_EXE_pd"),
        net.bridge,
        net.name("a"),
        net.ip(3)
    );
    let exec = format!("{} exec {} --", env!("CARGO_BIN_EXE_pd"), net.name("s"));
    for words in [run, exec] {
        // Reads and writes it.
        let mut shell = Shell::start(&format!("{words} sh -c 'read x; echo got $x'; read y; echo back $y"));
        shell.write(b"one\ntwo\n");
        shell.read_to("got one");
        shell.read_to("back two");
        // Ctrl-C ends the command, and not the program that started it.
        let mut shell = Shell::start(&format!(
            "{words} sh -c 'echo up; exec sleep 60'; echo status $?; read y; echo $y end"
        ));
        shell.read_to("up");
        shell.write(&[3]);
        shell.read_to("status 130");
        shell.write(b"the\n");
        shell.read_to("the end");
        // Ctrl-C also ends a command with another standard input.
        let mut shell =
            Shell::start(&format!("{words} sh -c 'echo up; exec sleep 60' </dev/null; echo status $?"));
        shell.read_to("up");
        shell.write(&[3]);
        shell.read_to("status 130");
        // Ctrl-Z stops it, in the foreground it goes on.
        let mut shell = Shell::start(&format!(
            "{words} sh -c 'echo up; read x; echo got $x'; echo shell; fg; echo $? end"
        ));
        shell.read_to("up");
        shell.write(&[26]);
        shell.read_to("shell");
        shell.write(b"three\n");
        shell.read_to("got three");
        shell.read_to("0 end");
        // A job in the background that reads stops until it is in the foreground.
        let mut shell =
            Shell::start(&format!("{words} sh -c 'read x; echo got $x' & sleep 1; fg; echo $? end"));
        shell.write(b"four\n");
        shell.read_to("got four");
        shell.read_to("0 end");
    }
    drop(holder);
    await_true("all have ended", || {
        pd(&["ls", "--json"]).output().is_ok_and(|list| !stdout(&list).contains(&net.name("")))
    });
    net.assert_clean();
}
