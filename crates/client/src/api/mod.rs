//! The Rust API.
mod buffer;
mod epoll;
mod listener;
mod stream;

pub use buffer::SendBuffer;
pub use epoll::{Epoll, Event, Interest};
pub use listener::{Incoming, Listener, ListenerOptions};
pub use stream::{Received, Stream};
