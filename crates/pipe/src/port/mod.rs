//! Ports: sources and sinks of pipes' frames.
//!
//! The agent's own ports push back: a source waits for a full pipe, and a sender for a full receiver. Only a verdict or a lease drops
//! frames, and drops are counted. Ports that lead out ([`Device`]) drop frames for which a pipe has no room, as a NIC does, so that
//! no program holds up another. These drops are counted, too.
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
pub use gen::{Gen, GenCounts, GenState, Recipe, GEN_BYTES_MIN, GEN_FLOWS_MAX};
pub use memif::Memif;
pub use pcap::{Pcap, PcapCounts};
pub use sink::Sink;
pub use tap::Tap;
pub use trace::{Check, Trace};
pub use xsk::{Steer, Xsk, XSK_FRAME_BYTES, XSK_MEMORY_BYTES, XSK_RING_ENTRIES};

/// The next frame of a source, if there is one.
type Frame<'a> = Option<&'a [u8]>;

/// Kinds of ports.
#[derive(Debug)]
pub enum Port {
    /// Generator of frames, which checks frames that come back.
    Gen(Gen),
    /// Counter of sent frames. Nothing is received.
    Sink(Sink),
    /// Reader of a capture, and writer of sent frames to another.
    Pcap(Pcap),
    /// Player of prepared frames or pieces of a stream, which compares those that come back.
    Trace(Trace),
    /// End of a link: frames sent here are received at the other end, the port of this number.
    Link(usize),
    /// Copies of another port's frames.
    Mirror,
    /// Device that leads out of the agent.
    Device(Box<dyn Device>),
}

impl Port {
    /// Returns the next frame that pipes of this port receive, other than from a link.
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

    /// Takes a frame or bytes that a pipe sent, a private copy, other than into a link.
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

    /// Returns the device, if the port leads out.
    pub(crate) fn device(&mut self) -> Option<&mut (dyn Device + 'static)> {
        match self {
            Self::Device(device) => Some(&mut **device),
            _ => None,
        }
    }

    /// Returns whether the port carries Ethernet frames only, so that it takes no unmarked stream.
    pub(crate) fn wants_frames(&self) -> bool {
        matches!(self, Self::Gen(_) | Self::Pcap(_) | Self::Device(_) | Self::Mirror)
    }
}
