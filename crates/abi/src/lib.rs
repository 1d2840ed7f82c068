//! Every byte that two parties of PipeDevice share: layouts, limits, version.
//!
//! Parties are the trusted driver, the untrusted clients, and the engines. They share
//!
//! - the engine's command queues ([`Command`], the paper's Figure 6), and the registers of its hardware form
//!   ([`registers`]);
//! - per client, a *control region*, which the client writes and the driver only reads, and a
//!   *status region*, which the driver writes and the client can only read ([`layout`]): every
//!   shared page has one writer. They hold the request rings ([`Request`]), the event rings
//!   ([`Event`]) and one line per socket ([`layout::socket_status`], [`layout::socket_control`]);
//! - send regions (client writes) and receive regions (driver writes), which hold payload only;
//! - fixed-size messages on the attach socket ([`Frame`]), which carry file descriptors to the client; and on the file
//!   socket ([`PassedFile`]), which carry those of files to the driver.
//!
//! A pipe's rings and words are in [`pipe`].
//!
//! The driver and those who may use its admin socket share the *counter region* ([`counters`]).
//!
//! Nothing here allocates, dereferences a pointer or trusts a value. Each word, entry, kind and limit is declared once
//! ([`declare`]); the C header (`include/pd_abi.h`), the SystemVerilog package (`rtl/gen`) and the tables of the documents
//! (`docs/reference`) are generated from the declarations by the tests of this crate.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod address;
#[cfg(test)]
mod cheader;
mod command;
pub mod counters;
pub mod declare;
#[cfg(test)]
mod describe;
mod event;
mod frame;
pub mod layout;
pub mod limits;
mod passed;
pub mod pipe;
mod reason;
pub mod registers;
mod request;
#[cfg(test)]
mod svpackage;
#[cfg(test)]
mod tables;
mod twin;

pub use address::{Address, Family};
pub use command::{Command, CommandStatus, CommandType, TableId};
pub use event::{Event, EventKind};
pub use frame::{Frame, FrameKind};
pub use passed::PassedFile;
pub use reason::{KernelReason, KERNEL_REASONS};
pub use request::{
    FileId, Operation, Request, SocketId, SocketOption, Span, BESIDE_KERNEL, CLOSE_LEFT, CLOSE_RESETS,
    LEFT_BEFORE, LEFT_RECEIVING, LEFT_SENDING, LISTENS_TO_OTHERS, OTHER_NETWORKS, PEER_LEFT, PEER_UNMARKED,
    RECEIVES_SHARED, STEP_ASIDE_BY_CHOICE, STEP_ASIDE_CLAIM_MARK, STEP_ASIDE_UNMARKED, TAKEN_ASIDE, UNMARKED,
};
pub use twin::{twin_request, TwinOperation, TwinRequest, TWIN_REQUEST_BYTES};

declare::constants! {
    IDENTITY:
    /// Version of everything in this crate. A driver refuses a client of another version.
    VERSION: u32 = 19;
    /// First word of the status region and of every [`Frame`]: "PipeDev1", little endian.
    MAGIC: u64 = u64::from_le_bytes(*b"PipeDev1");
}
