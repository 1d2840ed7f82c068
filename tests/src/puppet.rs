//! A peer process that carries out commands, line by line. See `puppet` in `bin/peer.rs`.
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command};

/// Seconds after which a process without an answer hangs. The longest command takes some seconds.
const HANGS_AFTER: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// The process; killed when dropped.
#[derive(Debug)]
pub struct Puppet {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Puppet {
    /// Takes over a process that reads commands and writes answers.
    ///
    /// # Panics
    /// If its input and output are not pipes.
    pub fn new(mut child: Child) -> Self {
        let input = Some(child.stdin.take().expect("input"));
        let output = BufReader::new(child.stdout.take().expect("output"));
        Self { child, input, output }
    }

    /// Returns the puppet's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command and does not wait for it: [`Self::answer`] does.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn tell(&mut self, command: &str) {
        let input = self.input.as_mut().expect("input");
        writeln!(input, "{command}").unwrap_or_else(|error| panic!("{command}: {error}"));
    }

    /// Returns the next answer, or errno and message.
    ///
    /// # Errors
    /// Errno and message of the command.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn answer(&mut self) -> Result<String, (i32, String)> {
        let line = self.line();
        if let Some(answer) = line.strip_prefix("ok ") {
            return Ok(answer.to_owned());
        }
        let rest = line.strip_prefix("error ").unwrap_or_else(|| panic!("no answer but {line:?}"));
        let (errno, message) = rest.split_once(' ').expect("errno and message");
        Err((errno.parse().expect("errno"), message.to_owned()))
    }

    /// Returns the next line of its output, without the line feed.
    ///
    /// # Panics
    /// If it cannot be read, or does not come within two minutes.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        if self.output.buffer().is_empty() {
            let mut output = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            let ready = poll(&mut output, Some(&HANGS_AFTER)).expect("poll");
            if ready == 0 {
                // The state that it hangs in is gone afterwards.
                let _ = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/stacks")).status();
                panic!("process {} hangs: no answer within {} s", self.pid(), HANGS_AFTER.tv_sec);
            }
        }
        self.output.read_line(&mut line).expect("output");
        line.trim_end_matches('\n').to_owned()
    }

    /// Gives a command and waits for the answer.
    ///
    /// # Errors
    /// Errno and message of the command.
    pub fn ask(&mut self, command: &str) -> Result<String, (i32, String)> {
        self.tell(command);
        self.answer()
    }

    /// Asks as [`Self::ask`], with a command that has to succeed.
    ///
    /// # Panics
    /// If it fails.
    pub fn ok(&mut self, command: &str) -> String {
        self.ask(command).unwrap_or_else(|error| panic!("{command}: {error:?}"))
    }

    /// Asks as [`Self::ask`], with a command that has to fail. Returns the errno.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn errno(&mut self, command: &str) -> i32 {
        match self.ask(command) {
            Err((errno, message)) => {
                assert!(!message.is_empty(), "{command}: errno {errno} without a message");
                errno
            }
            Ok(answer) => panic!("{command} succeeded: {answer}"),
        }
    }

    /// Ends its input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Ends its input and waits until it has ended well.
    ///
    /// # Panics
    /// If it has not.
    pub fn finish(mut self) {
        self.close_input();
        let status = self.child.wait().expect("wait");
        assert!(status.success(), "{status}");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.kill();
    }
}
