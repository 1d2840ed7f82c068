//! What the demo and its two endpoints say to each other: one JSON request a line on an endpoint's
//! standard input, one JSON reply a line on its standard output.

use std::net::SocketAddr;

use clap::ValueEnum;
use pd_harness::digest::Touch;
use serde::{Deserialize, Serialize};

/// A way to move the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Kernel TCP; in the file part with read() and send().
    Tcp,
    /// Kernel TCP with sendfile(), the sender's checksum taken through a mapping of the file.
    TcpSendfile,
    /// The same without the sender's checksum: for information, for it does less than the others.
    TcpSendfileUntouched,
    /// The one of `tcp` between containers whose TCP is tuned as `pd bench tune` has found best.
    TcpTuned,
    /// The same with sendfile().
    TcpTunedSendfile,
    /// PipeDevice as two containers have it that no policy mentions.
    Pipedevice,
    /// PipeDevice between two containers for which a rule of the policy says `path = "offloaded"`.
    PipedeviceMediated,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 7] = [
        Scheme::Tcp,
        Scheme::TcpSendfile,
        Scheme::TcpSendfileUntouched,
        Scheme::TcpTuned,
        Scheme::TcpTunedSendfile,
        Scheme::Pipedevice,
        Scheme::PipedeviceMediated,
    ];

    /// As it is written on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Tcp => "tcp",
            Scheme::TcpSendfile => "tcp-sendfile",
            Scheme::TcpSendfileUntouched => "tcp-sendfile-untouched",
            Scheme::TcpTuned => "tcp-tuned",
            Scheme::TcpTunedSendfile => "tcp-tuned-sendfile",
            Scheme::Pipedevice => "pipedevice",
            Scheme::PipedeviceMediated => "pipedevice-mediated",
        }
    }

    /// Returns what carries it.
    pub fn transport(self) -> Transport {
        match self {
            Scheme::Pipedevice | Scheme::PipedeviceMediated => Transport::Pipedevice,
            _ => Transport::Tcp,
        }
    }

    /// Between which containers.
    pub fn place(self) -> Place {
        match self {
            Scheme::TcpTuned | Scheme::TcpTunedSendfile => Place::Tuned,
            Scheme::PipedeviceMediated => Place::Mediated,
            _ => Place::Plain,
        }
    }

    /// Returns whether the kernel takes the bytes out of the file.
    pub fn sends_files(self) -> bool {
        matches!(self, Scheme::TcpSendfile | Scheme::TcpSendfileUntouched | Scheme::TcpTunedSendfile)
    }

    /// Returns whether it is kernel TCP with both sides touching every byte: a baseline.
    pub fn is_baseline(self) -> bool {
        self.transport() == Transport::Tcp && self != Scheme::TcpSendfileUntouched
    }

    /// Returns what its sender does with the bytes in timed rounds.
    pub fn sender_touch(self) -> Touch {
        match self {
            Scheme::TcpSendfileUntouched => Touch::Nothing,
            _ => Touch::Checksum,
        }
    }

    /// Returns whether it makes sense for bytes already in memory.
    pub fn fits(self, part: Part) -> bool {
        part == Part::File || !self.sends_files()
    }
}

/// A kind of connection; one of each is open at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Kernel TCP.
    Tcp,
    /// PipeDevice.
    Pipedevice,
}

/// A pair of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// As `pd run` makes them, with Linux's own TCP.
    Plain,
    /// With TCP tuned.
    Tuned,
    /// Of a tenant that the policy keeps on the offloaded path.
    Mediated,
}

impl Place {
    /// As it is in names of containers, with a `-` after it.
    pub fn prefix(self) -> &'static str {
        match self {
            Place::Plain => "",
            Place::Tuned => "tuned-",
            Place::Mediated => "mediated-",
        }
    }
}

/// A part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// From the page cache to the receiver's memory.
    File,
    /// From the sender's memory, rewritten before each send, to the receiver's memory.
    Bulk,
}

impl Part {
    /// As it is written on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Part::File => "file",
            Part::Bulk => "bulk",
        }
    }
}

/// One side's orders for one round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Order {
    /// How the bytes move.
    pub scheme: Scheme,
    /// Where they come from.
    pub part: Part,
    /// How many.
    pub bytes: u64,
    /// What this side does with them.
    pub touch: Touch,
}

/// From the demo to an endpoint.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case")]
pub enum Request {
    /// Receiver: listen. Answered with [`Reply::Listening`].
    Listen {
        /// On what.
        transport: Transport,
    },
    /// Sender: connect. Answered with [`Reply::Connected`].
    Connect {
        /// With what.
        transport: Transport,
        /// Where to.
        to: SocketAddr,
    },
    /// Receiver: accept the connection. Answered with [`Reply::Connected`].
    Accept {
        /// Of which.
        transport: Transport,
    },
    /// Both: allocate and fill what the round needs. Answered with [`Reply::Done`].
    Prepare(Order),
    /// Both: stream. Answered with [`Reply::Round`].
    Round(Order),
    /// Both: close the connections in order and end. Answered with [`Reply::Done`].
    Quit,
}

/// What an endpoint says about one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Streamed {
    /// Bytes it sent or received.
    pub bytes: u64,
    /// Their checksum.
    pub checksum: String,
    /// Monotonic clock before the first byte.
    pub start_ns: u64,
    /// Monotonic clock after the last was sent, or received and checksummed.
    pub end_ns: u64,
}

/// From an endpoint to the demo.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// It listens.
    Listening {
        /// There.
        at: SocketAddr,
    },
    /// It has the connection.
    Connected {
        /// And this: a congestion control, or a path.
        has: String,
    },
    /// It did what was asked.
    Done,
    /// It streamed.
    Round(Streamed),
}
