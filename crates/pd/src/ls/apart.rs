//! Facts that a process can withhold, or make very long: its arguments, its environment, its map of memory, files that it names.
//!
//! A process apart reads them, [`InternalLook`](LookArgs). Where an answer never comes, as from a file system that takes a request and is
//! silent, not even a signal ends the reader. This program goes on without it.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use pd_driver::admin::RefusedReport;
use procfs::process::Process;
use rustix::net::{send, SendFlags};
use serde::{Deserialize, Serialize};

use super::attaching;

/// Longest wait for one process.
const WAIT_OF_ONE: Duration = Duration::from_secs(1);
/// Longest wait for all that do not answer. Then each has [`WAIT_AT_LEAST`].
const WAIT_OF_ALL: Duration = Duration::from_secs(5);
const WAIT_AT_LEAST: Duration = Duration::from_millis(100);
/// Readers that may be left behind. Then no process is looked at any more.
const SILENT_MAX: usize = 64;

/// Reads facts of processes for `pd ls`, which is at the other end of the standard input and output.
#[derive(clap::Args)]
pub struct LookArgs {}

/// Runs the subcommand; returns the status to exit with.
pub fn main(_: &LookArgs) -> Result<i32> {
    let (mut asked, mut answer) = (io::stdin().lock().lines(), io::stdout().lock());
    let refused: Vec<RefusedReport> = serde_json::from_str(&asked.next().transpose()?.unwrap_or_default())?;
    for pid in asked {
        let facts =
            Process::new(pid?.parse()?).map_or_else(|_| Facts::default(), |it| Facts::of(&it, &refused));
        writeln!(answer, "{}", serde_json::to_string(&facts)?)?;
        answer.flush()?;
    }
    Ok(0)
}

/// Facts of a process that is not attached.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub user: Option<u32>,
    pub command: String,
    pub reason: String,
}

impl Facts {
    fn of(process: &Process, refused: &[RefusedReport]) -> Facts {
        Facts {
            user: process.uid().ok(),
            command: attaching::command(process.pid()),
            reason: attaching::why(process, refused),
        }
    }
}

impl Default for Facts {
    fn default() -> Facts {
        let reason = "not told: its memory, or the file system of its PD_SOCKET, does not answer".to_owned();
        Facts { user: None, command: String::new(), reason }
    }
}

/// The reader, and the time that is left for silent processes.
#[derive(Debug)]
pub struct Apart {
    command: fn() -> Command,
    /// The first line that a reader gets.
    refused: String,
    reader: Option<Reader>,
    left: Duration,
    /// Owners of a process that did not answer. No other process of theirs is looked at.
    silent: HashSet<Owner>,
}

/// Container and user of a process.
pub type Owner = (Option<String>, Option<u32>);

#[derive(Debug)]
struct Reader {
    child: Child,
    lines: BufReader<UnixStream>,
}

impl Apart {
    /// Returns one whose reader is started when it is needed.
    pub fn new(refused: &[RefusedReport]) -> Result<Apart> {
        let command = || {
            let mut command = Command::new(pd_harness::own_exe());
            command.arg("internal-look");
            command
        };
        Ok(Apart::by(command, serde_json::to_string(refused)?))
    }

    fn by(command: fn() -> Command, refused: String) -> Apart {
        Apart { command, refused, reader: None, left: WAIT_OF_ALL, silent: HashSet::new() }
    }

    /// Returns facts of a process of this owner, as far as it does not withhold them.
    pub fn facts(&mut self, pid: i32, owner: Owner) -> Facts {
        if self.silent.contains(&owner) || self.silent.len() >= SILENT_MAX {
            return Facts::default();
        }
        let began = Instant::now();
        self.ask(pid).unwrap_or_else(|_| {
            self.left = self.left.saturating_sub(began.elapsed());
            self.silent.insert(owner);
            if let Some(mut reader) = self.reader.take() {
                // The end of a reader that waits for an answer may never come.
                let _ = reader.child.kill();
            }
            Facts::default()
        })
    }

    fn ask(&mut self, pid: i32) -> io::Result<Facts> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.start()?,
        };
        let wait = self.left.clamp(WAIT_AT_LEAST, WAIT_OF_ONE);
        reader.lines.get_ref().set_read_timeout(Some(wait))?;
        let reader = self.reader.insert(reader);
        say(reader.lines.get_ref(), &pid.to_string())?;
        let mut line = String::new();
        reader.lines.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn start(&self) -> io::Result<Reader> {
        let (own, theirs) = UnixStream::pair()?;
        let output = OwnedFd::from(theirs.try_clone()?);
        let mut command = (self.command)();
        command.stdin(OwnedFd::from(theirs)).stdout(output).stderr(Stdio::null()).current_dir("/");
        let child = command.spawn()?;
        say(&own, &self.refused)?;
        Ok(Reader { child, lines: BufReader::new(own) })
    }
}

/// Sends a line to a reader, whose end is no signal to this program.
fn say(reader: &UnixStream, line: &str) -> io::Result<()> {
    send(reader, format!("{line}\n").as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_process_costs_its_owner_the_answers() {
        let script = || {
            let mut command = Command::new("sh");
            let answer = r#"{"user":1,"command":"'$pid'","reason":"'$refused'"}"#;
            let text = format!(
                "read refused; while read pid; do [ $pid = 2 ] && exec sleep 100; echo '{answer}'; done"
            );
            command.args(["-c", &text]);
            command
        };
        let mut apart = Apart::by(script, "none".to_owned());
        let facts = |pid: &str| Facts { user: Some(1), command: pid.to_owned(), reason: "none".to_owned() };
        let of = |name: &str, user| (Some(name.to_owned()), Some(user));
        assert_eq!(apart.facts(1, of("one", 1)), facts("1"));
        assert_eq!(apart.facts(2, of("one", 1)), Facts::default());
        assert_eq!(apart.facts(3, of("one", 1)), Facts::default());
        assert_eq!(apart.facts(4, of("one", 2)), facts("4"));
        assert_eq!(apart.facts(5, of("two", 1)), facts("5"));
        assert!(apart.left < WAIT_OF_ALL);
    }

    #[test]
    fn a_reader_that_cannot_start_says_nothing() {
        let mut apart = Apart::by(|| Command::new("/nonexistent"), String::new());
        assert_eq!(apart.facts(1, (None, None)), Facts::default());
    }
}
