//! Pipes: rings of frames, messages or bytes between an agent, which is trusted, and a program, which is not (Ensō).
//!
//! A pipe gives a program packets as contiguous bytes in its own memory. The agent is the NIC: it appends frames that a port
//! receives to the ring of a pipe, and delivers frames that programs send. Both sides are here:
//!
//! - [`Agent`]: ports, pipes, and the turns in which bytes move. The agent trusts no word, entry or byte of a program.
//! - [`Pipe`]: the program's end, with borrowed frames and messages.
//! - [`packetised`]: the descriptor interface of common NICs over the same ports, to compare pipes with.
//!
//! [`notify`] and [`intake`] are the protocol of the two directions, over traits for the words that they touch; [`handover`] is that of the
//! direct path of a link, on which a program reads the ring of another. The layout of the words
//! is in [`pd_abi::pipe`]. The crate knows neither driver nor sockets, opens no files and attaches to nobody: an [`Offer`] is passed on
//! by its user. Ports of the kernel ([`Device`]) are made of descriptors that their user has opened.
//!
//! A firewall, with its NIC in the same thread:
//!
//! ```
//! use pd_abi::pipe::{DROP, PIPE_RING_BYTES_DEFAULT};
//! use pd_pipe::{Agent, Direction, Gen, Pipe, Port, Recipe, Shape, Unit};
//!
//! # fn main() -> rustix::io::Result<()> {
//! let mut agent = Agent::new()?;
//! let recipe = Recipe { sizes: vec![64, 1500], flows: 2, frames: 100 };
//! let port = agent.add_port(Port::Gen(Gen::new(recipe)?));
//! let shape = Shape::new(Direction::Forward, Unit::Frames, PIPE_RING_BYTES_DEFAULT)?;
//! let (id, offer) = agent.open(shape, port, &[], None)?;
//! // The other process: it maps the offer, and the agent seals what it has mapped.
//! let mut pipe = Pipe::map(offer)?;
//! agent.seal(id)?;
//!
//! agent.turn();
//! let mut frames = pipe.frames()?;
//! while let Some(mut frame) = frames.next() {
//!     if frame.bytes().len() > 1000 {
//!         frame.verdict(DROP);
//!     }
//! }
//! drop(frames);
//! agent.turn();
//! let counts = agent.counts(id).unwrap();
//! assert_eq!((counts.frames_sent, counts.frames_dropped), (50, 50));
//! # Ok(())
//! # }
//! ```
mod agent;
mod client;
mod flow;
pub mod handover;
pub mod intake;
mod memory;
pub mod notify;
pub mod packetised;
mod port;
mod shape;
mod signaller;
mod violation;

pub use agent::{
    end_resumed, Agent, Lease, LinkState, PipeCounts, PipeId, PipeState, PortCounts, PortId, Route, Tokens,
    HEADER_BYTES, PIPES_MAX,
};
pub use agent::{Record, TapCounts, TapId, Tapped, Way, TAPS_MAX};
pub use client::{Broker, Frame, Frames, Messages, Pipe, Prefix};
pub use flow::{Fields, Flow, Net};
pub use memory::{Eventfds, Files, Made, Mapped, Offer, PeerOffer, Resumed};
pub use port::{
    Check, Gen, GenCounts, GenState, Pcap, PcapCounts, Port, Recipe, Sink, Trace, GEN_BYTES_MIN,
    GEN_FLOWS_MAX,
};
pub use port::{
    Device, Memif, Steer, Taken, Tap as TapDevice, Xsk, XSK_FRAME_BYTES, XSK_MEMORY_BYTES, XSK_RING_ENTRIES,
};
pub use shape::{Direction, Shape, Unit};
pub use violation::Violation;
