//! The protocol between `pd bench` and its peers: one JSON object a line (see
//! [`pd_harness::peer`]). The peer that listens receives; the peer that connects sends.

use std::path::PathBuf;

use pd_harness::digest::Touch;
use serde::{Deserialize, Serialize};

use crate::attack::{Attack, Done};
use crate::catalogue::Scheme;

/// A set of connections of one scheme.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Open {
    /// How the bytes move.
    pub scheme: Scheme,
    /// Largest message.
    pub message_bytes: usize,
    /// Connections.
    pub connections: usize,
    /// The core that this peer is to stay on.
    pub core: Option<usize>,
    /// Tells whether kernel TCP sends without a copy where it can.
    pub zero_copy: bool,
    /// Bytes of the memory that the sender sends from in turn; the scheme's own choice if there are none.
    pub window_bytes: Option<usize>,
}

/// The source of a stream's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Messages in the sender's memory, rewritten before each is sent.
    Memory,
    /// The sender's files, read as one, over and over.
    Files,
}

/// Files to send.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Files {
    /// Where they are, in the order of the stream.
    pub paths: Vec<PathBuf>,
    /// Bytes that PipeDevice's sender checksums and sends at a time.
    pub read_bytes: usize,
}

/// A stream of messages, dealt out to the connections in turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Bytes of each message.
    pub message_bytes: usize,
    /// Bytes of the whole stream, over all connections. The last message is what is left.
    pub bytes: u64,
    /// Where they come from.
    pub content: Content,
    /// The checksum that this side takes of them.
    pub touch: Touch,
    /// Throughput that the sender does not exceed.
    pub target_gbit_per_s: Option<f64>,
    /// Tells whether the receiver reads its clock at each piece, to know [`Streamed::first_ns`] and [`Streamed::gap_ns`].
    pub gaps: bool,
}

impl Order {
    /// Orders `messages` of memory, checksummed, as fast as they go.
    pub fn of(message_bytes: usize, messages: u64) -> Order {
        Order {
            message_bytes,
            bytes: message_bytes as u64 * messages,
            content: Content::Memory,
            touch: Touch::Checksum,
            target_gbit_per_s: None,
            gaps: false,
        }
    }

    /// Messages of the whole stream.
    pub fn messages(&self) -> u64 {
        self.bytes.div_ceil(self.message_bytes as u64)
    }
}

/// From `pd bench` to a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case")]
pub enum Request {
    /// Receiver: listen. Answered with [`Reply::At`].
    Listen(Open),
    /// Sender: connect. Answered with [`Reply::At`], its own address where the scheme has one.
    Connect {
        /// What.
        open: Open,
        /// Where to.
        to: String,
    },
    /// Receiver: accept. Answered with [`Reply::Done`].
    Accept {
        /// The sender's address, where the scheme has one.
        from: String,
    },
    /// Sender: open and map files. Answered with [`Reply::Done`].
    Files(Files),
    /// Both: stream. Answered with [`Reply::Streamed`].
    Stream(Order),
    /// Sender: send messages and wait for each to come back; receiver: send them back. Answered with
    /// [`Reply::Latency`], which is empty at the receiver.
    PingPong(Order),
    /// Both: stream on all connections at once, each in a thread of its own, for so many milliseconds.
    /// Answered with [`Reply::Shares`].
    Share {
        /// Bytes of each message.
        message_bytes: usize,
        /// How long.
        ms: u64,
    },
    /// Both: open connections, as many at a time as `open` says, and close them. Answered with [`Reply::Streamed`],
    /// in which bytes count connections.
    SetUp {
        /// How.
        open: Open,
        /// To where; empty at the receiver, which listens already.
        to: String,
        /// How many.
        connections: u64,
    },
    /// One peer alone: what a local scheme does.
    Local {
        /// Which.
        scheme: Scheme,
        /// How much.
        order: Order,
    },
    /// Receiver: start a server, a program that listens on a port. Answered with [`Reply::At`].
    Serve {
        /// With the library or not.
        scheme: Scheme,
        /// Its command.
        command: Vec<String>,
        /// The port.
        port: u16,
    },
    /// Sender: run a program. Answered with [`Reply::Printed`].
    Run {
        /// With the library or not.
        scheme: Scheme,
        /// Its command.
        command: Vec<String>,
    },
    /// Both: say what they have: a congestion control, a path. Answered with [`Reply::Printed`].
    Describe {
        /// Of which scheme.
        scheme: Scheme,
    },
    /// An attacker alone: begin, and go on until it is killed. Answered with [`Reply::Done`] once all is set up.
    Attack {
        /// What.
        attack: Attack,
    },
    /// An attacker alone: say what it has done so far. Answered with [`Reply::Attacked`].
    Attacked,
    /// An attacker alone: say how many bytes came through between two moments. Answered with [`Reply::Carried`].
    Carried {
        /// Monotonic clock.
        from_ns: u64,
        /// The same.
        to_ns: u64,
    },
    /// Both: close. Answered with [`Reply::Done`].
    Close,
    /// Both: end. Answered with [`Reply::Done`].
    Quit,
}

/// From a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// It did what was asked.
    Done,
    /// It is there.
    At {
        /// As the scheme writes addresses.
        address: String,
    },
    /// It streamed.
    Streamed(Streamed),
    /// It measured round trips.
    Latency(Latency),
    /// The program has run, and printed this.
    Printed {
        /// As text.
        text: String,
    },
    /// The work of the attack so far.
    Attacked(Done),
    /// To [`Request::Carried`].
    Carried {
        /// Bytes.
        bytes: f64,
    },
    /// Bytes that each connection carried.
    Shares {
        /// In the order of the connections.
        bytes: Vec<u64>,
        /// Checksums of the connections, added up.
        checksum: String,
        /// For how long.
        seconds: f64,
    },
}

/// One side's report of a stream.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Streamed {
    /// Bytes it sent or received.
    pub bytes: u64,
    /// Their checksum.
    pub checksum: String,
    /// Monotonic clock before the first byte.
    pub start_ns: u64,
    /// Monotonic clock after the last was sent, or received and checksummed.
    pub end_ns: u64,
    /// CPU time of this process in user mode.
    pub user_s: f64,
    /// CPU time of this process in the kernel.
    pub system_s: f64,
    /// Monotonic clock at the first bytes received; 0 unless asked for.
    pub first_ns: u64,
    /// Longest time between two pieces received; 0 unless asked for.
    pub gap_ns: u64,
}

/// Round trips.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99 % are at most this.
    pub p99_us: f64,
    /// 99.9 % are at most this.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}
