//! Job control. A container's command has a process group of its own, so that signals to its group stay in the container. The
//! terminal of `pd` is lent to that group while the command runs, as a shell lends it to a job.

use std::process::Command;

use rustix::process::{
    getpgrp, kill_current_process_group, kill_process, kill_process_group, Pid, Signal, WaitStatus,
};
use rustix::termios::{isatty, tcgetpgrp};
use serde::{Deserialize, Serialize};

use crate::sys;

/// A command's relation to the terminal that `pd` has as standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Terminal {
    /// Standard input is none.
    #[default]
    None,
    /// The terminal belongs to another group for now.
    Background,
    /// The terminal belongs to the command.
    Foreground,
}

impl Terminal {
    /// Returns the calling process's relation to its terminal.
    pub fn of_caller() -> Terminal {
        let input = std::io::stdin();
        match isatty(&input) {
            false => Terminal::None,
            true if tcgetpgrp(&input) == Ok(getpgrp()) => Terminal::Foreground,
            true => Terminal::Background,
        }
    }
}

/// Makes `command` begin in a process group of its own, without blocked signals.
pub fn in_own_group(command: &mut Command, terminal: Terminal) -> &mut Command {
    sys::in_own_group(command, terminal == Terminal::Foreground)
}

/// Passes a signal on to a command, or to all of its process group.
pub fn signal(command: Pid, signal: i32, group: bool) {
    // Fails only when the command is ending already.
    let _ = match Signal::from_named_raw(signal) {
        Some(signal) if group => kill_process_group(command, signal),
        Some(signal) => kill_process(command, signal),
        None => Ok(()),
    };
}

/// Returns the status that a shell would report of a command that has ended: 128 + n if signal n ended it.
pub fn exit_code(status: WaitStatus) -> i32 {
    let signalled = status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or(signalled).unwrap_or(1)
}

/// Resumes a stopped process group, with the terminal if it has that now.
pub fn resume(group: Pid, terminal: Terminal) {
    if terminal == Terminal::Foreground {
        lend(group);
    }
    // Fails if all processes of the group have ended.
    let _ = kill_process_group(group, Signal::CONT);
}

/// Lends the terminal to a group of the caller's session, or takes it back for the caller's own.
fn lend(group: Pid) {
    // Fails if the terminal has gone, or belongs to another session now.
    let _ = sys::set_foreground(group);
}

/// The terminal in the hands of a command, as the process sees it that waits for the command.
pub struct Lent {
    terminal: Terminal,
}

impl Lent {
    /// Makes the record of a command that began with `terminal`.
    pub fn new(terminal: Terminal) -> Lent {
        Lent { terminal }
    }

    /// Handles a stop of the command by `signal`. If the terminal is the cause, stops the caller's process group, too, and returns the
    /// terminal that the command goes on with. The caller's group is not stopped if only the terminal was missing and the caller has it.
    pub fn stopped(&mut self, signal: i32) -> Option<Terminal> {
        let wants_terminal = signal == libc::SIGTTIN || signal == libc::SIGTTOU;
        if self.terminal == Terminal::None || !(wants_terminal || signal == libc::SIGTSTP) {
            return None;
        }
        if !(wants_terminal && Terminal::of_caller() == Terminal::Foreground) {
            // Returns once the shell continues this job. A group without a shell is not stopped.
            let _ = kill_current_process_group(Signal::TSTP);
        }
        self.terminal = Terminal::of_caller();
        Some(self.terminal)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.terminal == Terminal::Foreground {
            lend(getpgrp());
        }
    }
}
