//! Messages in a pipe of bytes: each has its length before it.
use super::Pipe;
use rustix::io::{Errno, Result};

/// Format of the length before a message, in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// Two bytes, as DNS does over streams.
    Two,
    /// Four bytes.
    Four,
}

impl Prefix {
    /// Returns the bytes of the prefix.
    pub fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Returns the length that `bytes` begin with.
    fn length(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Two => bytes.first_chunk().map(|bytes| u16::from_be_bytes(*bytes).into()),
            Self::Four => bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize),
        }
    }

    /// Writes the length before `message`, into a buffer of both sizes together.
    ///
    /// # Errors
    /// `EMSGSIZE` where the prefix is too short for the length.
    pub fn write(self, message: &[u8], to: &mut [u8]) -> Result<()> {
        let (head, body) = to.split_at_mut_checked(self.bytes()).ok_or(Errno::INVAL)?;
        let length = u32::try_from(message.len()).map_err(|_| Errno::MSGSIZE)?;
        match self {
            Self::Two => {
                let length = u16::try_from(length).map_err(|_| Errno::MSGSIZE)?;
                head.copy_from_slice(&length.to_be_bytes());
            }
            Self::Four => head.copy_from_slice(&length.to_be_bytes()),
        }
        body.get_mut(..message.len()).ok_or(Errno::INVAL)?.copy_from_slice(message);
        Ok(())
    }
}

/// The whole messages announced when this was made. Each is lent until the next call. Space is given back in pieces meanwhile, and
/// all of it on drop.
#[derive(Debug)]
pub struct Messages<'a> {
    pipe: &'a mut Pipe,
    prefix: Prefix,
    lent: usize,
}

impl<'a> Messages<'a> {
    pub(super) fn new(pipe: &'a mut Pipe, prefix: Prefix) -> Self {
        Self { pipe, prefix, lent: 0 }
    }

    /// Returns the next message, without its prefix; none if its rest has not arrived. [`Pipe::wait`] and [`Pipe::arm`] wait for that from then on
    /// ([`Pipe::need`]).
    ///
    /// # Errors
    /// `EMSGSIZE` if the message is longer than the ring, and can never arrive as a whole.
    #[allow(clippy::should_implement_trait)] // lends
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        self.finish();
        let head = self.prefix.bytes();
        let unread = self.pipe.known_stream() as usize;
        let Some(length) = self.prefix.length(self.pipe.stream(unread.min(head))) else {
            if unread > 0 {
                self.pipe.need(head)?;
            }
            return Ok(None);
        };
        if head + length > unread {
            // Refused if it is longer than the ring.
            self.pipe.need(head + length)?;
            return Ok(None);
        }
        self.lent = head + length;
        Ok(Some(&self.pipe.stream(self.lent)[head..]))
    }

    fn finish(&mut self) {
        self.pipe.consume_stream(std::mem::take(&mut self.lent) as u64);
        if self.pipe.reader.due() {
            self.pipe.give_back();
        }
    }
}

impl Drop for Messages<'_> {
    fn drop(&mut self) {
        self.finish();
        self.pipe.give_back();
    }
}
