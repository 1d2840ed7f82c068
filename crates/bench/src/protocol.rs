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
    /// Scheme of the stream.
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
    /// Paths of the files, in the order of the stream.
    pub paths: Vec<PathBuf>,
    /// Bytes that PipeDevice's sender checksums and sends at a time.
    pub read_bytes: usize,
}

/// A stream of messages, dealt out to the connections in turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Bytes of each message.
    pub message_bytes: usize,
    /// Bytes of the whole stream, over all connections. The last message is the rest.
    pub bytes: u64,
    /// Source of the bytes.
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
        /// Parameters of the end.
        open: Open,
        /// Address to connect to.
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
    /// Both: stream on all connections at once, each in a thread of its own, for `ms` milliseconds. Answered
    /// with [`Reply::Shares`].
    Share {
        /// Bytes of each message.
        message_bytes: usize,
        /// Length in milliseconds.
        ms: u64,
    },
    /// Both: open connections, as many at a time as `open` says, and close them. Answered with [`Reply::Streamed`],
    /// in which bytes count connections.
    SetUp {
        /// Parameters of the connections.
        open: Open,
        /// To where; empty at the receiver, which listens already.
        to: String,
        /// Number of connections.
        connections: u64,
    },
    /// Run a local scheme, in one peer alone.
    Local {
        /// The scheme.
        scheme: Scheme,
        /// Amount and size of the messages.
        order: Order,
    },
    /// Receiver: start a server, a program that listens on a port. Answered with [`Reply::At`].
    Serve {
        /// With the library or not.
        scheme: Scheme,
        /// The server's command.
        command: Vec<String>,
        /// The port.
        port: u16,
    },
    /// Sender: run a program. Answered with [`Reply::Printed`].
    Run {
        /// With the library or not.
        scheme: Scheme,
        /// The client's command.
        command: Vec<String>,
    },
    /// Both: describe the connection: its congestion control, or its path. Answered with [`Reply::Printed`].
    Describe {
        /// Of which scheme.
        scheme: Scheme,
    },
    /// An attacker alone: begin, and go on until it is killed. Answered with [`Reply::Done`] once all is set up.
    Attack {
        /// The attack.
        attack: Attack,
    },
    /// An attacker alone: report the counts so far. Answered with [`Reply::Attacked`].
    Attacked,
    /// An attacker alone: say how many bytes came through between two moments. Answered with [`Reply::Carried`].
    Carried {
        /// Monotonic clock.
        from_ns: u64,
        /// Monotonic clock.
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
    /// The request was carried out.
    Done,
    /// The address of an end that listens or has connected.
    At {
        /// As the scheme writes addresses.
        address: String,
    },
    /// Report of a stream.
    Streamed(Streamed),
    /// Report of round trips.
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

/// A side's report of a stream.
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
    /// Number of round trips.
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
