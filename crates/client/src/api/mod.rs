//! The Rust API.
mod buffer;
mod epoll;
mod listener;
mod poll;
mod stream;

pub use buffer::SendBuffer;
pub use epoll::{Epoll, Event, Interest};
pub use listener::{Incoming, Listener, ListenerOptions};
pub use poll::{poll, PollFd};
pub use stream::{Received, Stream};
