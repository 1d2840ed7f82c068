//! Ports: what feeds a pipe and what drains it.
//!
//! Those of the agent's own push back: a source waits for a full pipe, and a sender for a full receiver. Nothing is dropped but by a
//! verdict or a lease, and that is counted. Ports that lead out ([`Device`]) drop what a full pipe has no room for, as a NIC does, so
//! that no program holds up another; that is counted, too.
mod checksum;
mod device;
mod gen;
mod memif;
mod pcap;
mod sink;
mod tap;
mod trace;
mod xsk;

pub use device::{Device, Taken};
pub use gen::{Gen, GenCounts, Recipe, GEN_BYTES_MIN, GEN_FLOWS_MAX};
pub use memif::Memif;
pub use pcap::{Pcap, PcapCounts};
pub use sink::Sink;
pub use tap::Tap;
pub use trace::{Check, Trace};
pub use xsk::{Steer, Xsk, XSK_FRAME_BYTES, XSK_MEMORY_BYTES, XSK_RING_ENTRIES};

/// The next frame of a source, if it has one.
type Frame<'a> = Option<&'a [u8]>;

/// What a port is.
#[derive(Debug)]
pub enum Port {
    /// Makes frames, and checks those that come back.
    Gen(Gen),
    /// Counts what is sent. Nothing is received.
    Sink(Sink),
    /// Reads frames from a capture, writes what is sent to another.
    Pcap(Pcap),
    /// Plays prepared frames or pieces of a stream, and compares what comes back.
    Trace(Trace),
    /// One end of a link: what is sent here is received at the other end, the port of this number.
    Link(usize),
    /// Copies of another port's frames.
    Mirror,
    /// Leads out of the agent.
    Device(Box<dyn Device>),
}

impl Port {
    /// The next frame that pipes of this port receive, other than from a link.
    pub(crate) fn peek(&mut self) -> Frame<'_> {
        match self {
            Self::Gen(gen) => gen.peek(),
            Self::Pcap(pcap) => pcap.peek(),
            Self::Trace(trace) => trace.peek(),
            Self::Device(device) => device.peek(),
            Self::Sink(_) | Self::Link(_) | Self::Mirror => None,
        }
    }

    /// Counts that frame as received.
    pub(crate) fn advance(&mut self) {
        match self {
            Self::Gen(gen) => gen.advance(),
            Self::Pcap(pcap) => pcap.advance(),
            Self::Trace(trace) => trace.advance(),
            Self::Device(device) => device.advance(),
            Self::Sink(_) | Self::Link(_) | Self::Mirror => {}
        }
    }

    /// Takes what a pipe sent, a private copy, other than into a link.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Taken {
        match self {
            Self::Gen(gen) => gen.check(bytes),
            Self::Pcap(pcap) => pcap.write(bytes),
            Self::Sink(sink) => sink.take(bytes),
            Self::Trace(trace) => trace.take(bytes),
            Self::Link(_) | Self::Mirror => {}
            Self::Device(device) => return device.send(bytes),
        }
        Taken::Done
    }

    /// The device that it leads to, if it does.
    pub(crate) fn device(&mut self) -> Option<&mut (dyn Device + 'static)> {
        match self {
            Self::Device(device) => Some(&mut **device),
            _ => None,
        }
    }

    /// Returns whether its frames are those of Ethernet, so that it has no use for an unmarked stream.
    pub(crate) fn wants_frames(&self) -> bool {
        matches!(self, Self::Gen(_) | Self::Pcap(_) | Self::Device(_) | Self::Mirror)
    }
}
