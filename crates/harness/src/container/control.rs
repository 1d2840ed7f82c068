//! The line protocol between the `pd` that holds a container and the two helpers inside it: one JSON message
//! a line over a Unix socket. Each helper has a connection of its own and ends when the other end closes. In
//! this way a container ends when its `pd` is killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};

use super::confine::Inside;
use super::jobs::Terminal;

/// A message over the socket.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub enum Message {
    /// Helper: the namespaces exist.
    Unshared,
    /// Holder: the link is in place, go on.
    Proceed,
    /// Holder: start the command, with this.
    Begin {
        /// Facts about the container.
        inside: Inside,
    },
    /// Helper: the command runs.
    Started,
    /// Helper: it cannot go on.
    Failed {
        /// The failure, and the remedy.
        reason: String,
    },
    /// Helper: a signal has stopped the command.
    Stopped {
        /// Number of the signal.
        signal: i32,
    },
    /// Holder: the command goes on.
    Continue {
        /// The terminal as the command has it from now on.
        terminal: Terminal,
    },
    /// Holder: send this signal to the command.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Tells whether the command's whole process group gets it.
        group: bool,
    },
}

/// An end of the protocol.
pub struct Channel {
    reader: BufReader<UnixStream>,
}

impl Channel {
    /// Makes an end over a connected socket.
    pub fn new(stream: UnixStream) -> Channel {
        // Takes no more than a line: the socket is readable for as long as there is a message.
        Channel { reader: BufReader::with_capacity(1, stream) }
    }

    /// Returns the socket.
    pub fn stream(&self) -> &UnixStream {
        self.reader.get_ref()
    }

    /// Makes another end for sending.
    pub fn try_clone(&self) -> Result<Channel> {
        Ok(Channel::new(self.stream().try_clone()?))
    }

    /// Sends one message.
    pub fn send(&self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream().write_all(&line).context("the other end of the container's control socket is gone")
    }

    /// Returns the next message; `None` when the other end is closed.
    pub fn receive(&mut self) -> Result<Option<Message>> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line).context("garbage on the control socket")?)),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            Err(e) => Err(e).context("cannot read the control socket"),
        }
    }

    /// Waits for one message in particular; a failure reported instead becomes the error.
    pub fn expect(&mut self, wanted: &Message) -> Result<()> {
        match self.receive()? {
            Some(message) if message == *wanted => Ok(()),
            Some(Message::Failed { reason }) => bail!("{reason}"),
            other => bail!("expected {wanted:?} on the container's control socket, got {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{poll, PollFd, PollFlags, Timespec};

    /// A holder waits for the socket between two messages.
    #[test]
    fn the_socket_is_readable_until_the_last_message_is_taken() {
        let (own, other) = UnixStream::pair().unwrap();
        let (mut own, other) = (Channel::new(own), Channel::new(other));
        other.send(&Message::Started).unwrap();
        other.send(&Message::Stopped { signal: 21 }).unwrap();
        let readable = |own: &Channel| {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(own.stream(), PollFlags::IN)], Some(&at_once)).unwrap() > 0
        };
        own.expect(&Message::Started).unwrap();
        assert!(readable(&own));
        assert_eq!(own.receive().unwrap(), Some(Message::Stopped { signal: 21 }));
        assert!(!readable(&own));
    }
}
