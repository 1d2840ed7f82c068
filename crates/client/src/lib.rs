//! PipeDevice sockets: connected programs on one host exchange bytes without copying them
//! themselves and, in steady state, without system calls.
//!
//! A process attaches to the driver at first use (`PD_SOCKET`, or `/run/pipedevice/driver.sock`).
//! [`SendBuffer`] is memory that can be sent from; [`Stream::send`] hands it to the driver until the
//! bytes are moved; [`Stream::recv`] lends the received bytes where the driver put them.
//!
//! ```no_run
//! use pd_client::{Listener, SendBuffer, Stream};
//!
//! # fn main() -> pd_client::Result<()> {
//! let mut listener = Listener::bind("10.1.0.2:7000".parse().unwrap())?;
//! let stream = Stream::connect("10.1.0.2:7000".parse().unwrap())?;
//! let mut buffer = SendBuffer::new(4096)?;
//! buffer.wait_mut()?.fill(7);
//! stream.send(&buffer, ..)?;
//! let peer = listener.accept()?;
//! assert_eq!(peer.recv(1)?[0], 7);
//! # Ok(())
//! # }
//! ```
//!
//! Signals interrupt no call: waits go on after a handler has run. A forked child starts without an
//! attachment; the parent's sockets are closed in it. A normal exit waits up to five seconds until
//! what was sent is delivered. Nothing copies payload but reading and writing as of [`std::io`], and [`Stream::send`] on the direct path
//! ([`Path`]), once, which [`Stream::send_with`] spares.
//!
//! [`core`] is what the C API is built on.

mod api;
mod arena;
mod attachment;
mod cancel;
mod catch_up;
mod channel;
mod close;
mod control;
mod copying;
mod direct;
mod due;
mod epoll;
mod error;
mod files;
mod forks;
mod forward;
mod handlers;
mod kept;
mod kernel;
mod link;
mod listen;
mod lock;
mod malloc;
mod open;
mod own;
mod path;
mod patience;
mod pause;
mod per_process;
pub mod pipe;
mod poll;
mod process;
mod reasons;
mod recv;
mod send;
mod setting;
mod sids;
mod socket;
mod sockets;
mod turn;
mod twin;

pub use api::{
    poll, Epoll, Event, Incoming, Interest, Listener, ListenerOptions, PollFd, Received, SendBuffer, Stream,
};
pub use control::Shutdown;
pub use copying::Reading;
pub use error::{Error, Result};
pub use path::Path;
pub use setting::SOCKET_PATH_DEFAULT;

/// The calls as the C API needs them: raw pointers, sockets by number.
pub mod core {
    pub use crate::arena::free;
    pub use crate::cancel::{begin as begin_cancel, has_begun as cancels, interrupt, number_of};
    pub use crate::catch_up::{has_pairs, sleeps_for_driver, spend, Occasion};
    pub use crate::control::{Departure, Left};
    pub use crate::due::{handler_flags, sleep_for};
    pub use crate::epoll::hosted::Armed;
    pub use crate::epoll::other::{Other, Readiness};
    pub use crate::epoll::ready::{ASIDE, LEFT};
    pub use crate::epoll::{ready, Epoll};
    pub use crate::error::ELSEWHERE;
    pub use crate::forks::{hold, StaticLock};
    pub use crate::handlers::{
        are_put_off, catcher_address, installed, interruptible, is_inside, let_run, may_be_in_handler,
        outside, runs, take_cancelled, was_cancelled, Handlers, Inside, Installed, Runs, SET_BYTES,
    };
    pub use crate::kept::Kept;
    pub use crate::malloc::malloc;
    pub use crate::own::{is_own, keep_numbers, own_fds, set_floor, OwnFd};
    pub use crate::patience::Patience;
    pub use crate::pause::Pause;
    pub use crate::poll::{poll, Target};
    pub use crate::process::{
        after_fork, attach, before_fork, in_child, is_attached, is_driver_near, prepare, stays_on_kernel,
        OfFork,
    };
    pub use crate::recv::side::Handout;
    pub use crate::send::side::Fill;
    pub use crate::setting::{set_settings, setting};
    pub use crate::sids::{insert, remove, with, with_socket, Named, FIRST_SID};
    pub use crate::socket::{Socket, Takes};
    pub use pd_abi::KernelReason;
    pub use pd_shm::bias::this_thread;
    pub use pd_shm::{never_yield, yield_now, Spin};

    /// Twins of kernel sockets.
    pub mod twin {
        pub use crate::twin::{
            claim, claim_again, connect, connect_again, connect_unix, listen, take, unlisten, withdraw,
        };
    }
}
