//! The demo's schemes under its own names, and its two parts.

use clap::ValueEnum;
use pd_bench::catalogue;
use pd_bench::protocol::Content;
use serde::{Deserialize, Serialize};

/// A way to move the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Kernel TCP; in the file part with read() and send().
    Tcp,
    /// Kernel TCP with sendfile(), the sender's checksum taken through a mapping of the file.
    TcpSendfile,
    /// Kernel TCP as `tcp-sendfile` without the sender's checksum: for information, because it does less than the others.
    TcpSendfileUntouched,
    /// Kernel TCP as `tcp` between containers with the tuning that `pd bench tune` has found best.
    TcpTuned,
    /// Kernel TCP as `tcp-tuned` with sendfile().
    TcpTunedSendfile,
    /// PipeDevice between two containers that no policy mentions.
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

    /// Returns the name on the command line and in results.
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

    /// Returns the benchmarks' scheme that it is.
    pub fn in_catalogue(self) -> catalogue::Scheme {
        match self {
            Scheme::Tcp => catalogue::Scheme::Tcp,
            Scheme::TcpSendfile => catalogue::Scheme::TcpSendfile,
            Scheme::TcpSendfileUntouched => catalogue::Scheme::TcpSendfileUntouched,
            Scheme::TcpTuned => catalogue::Scheme::TcpTuned,
            Scheme::TcpTunedSendfile => catalogue::Scheme::TcpTunedSendfile,
            Scheme::Pipedevice => catalogue::Scheme::PipedeviceDefault,
            Scheme::PipedeviceMediated => catalogue::Scheme::Pipedevice,
        }
    }

    /// Returns whether it makes sense for bytes already in memory.
    pub fn fits(self, part: Part) -> bool {
        part == Part::File || !self.in_catalogue().sends_files()
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
    /// Returns the name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Part::File => "file",
            Part::Bulk => "bulk",
        }
    }

    /// Returns where its bytes come from.
    pub fn content(self) -> Content {
        match self {
            Part::File => Content::Files,
            Part::Bulk => Content::Memory,
        }
    }
}
