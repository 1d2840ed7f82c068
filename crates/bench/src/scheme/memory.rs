//! Memory that starts on a page, and a receive buffer that keeps messages whole.

use anyhow::Result;

const PAGE_BYTES: usize = 4096;
/// Receivers read at most this much at a time, in whole messages.
pub const RECV_BYTES: usize = 256 << 10;

/// Memory that starts on a page.
pub struct PageAligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageAligned {
    /// Makes a buffer of `len` bytes, zeroed.
    pub fn new(len: usize) -> PageAligned {
        let bytes = vec![0; len + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        PageAligned { bytes, start, len }
    }

    /// Returns the bytes.
    pub fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// A reused receive buffer of whole messages, for one stream.
pub struct Inbox {
    buffer: PageAligned,
    message_bytes: usize,
    filled: usize,
    taken: usize,
    /// Bytes still to come, if known.
    left: Option<u64>,
}

impl Inbox {
    /// Makes an inbox for messages of `message_bytes`.
    pub fn new(message_bytes: usize) -> Inbox {
        let messages = (RECV_BYTES / message_bytes).max(1);
        let buffer = PageAligned::new(messages * message_bytes);
        Inbox { buffer, message_bytes, filled: 0, taken: 0, left: None }
    }

    /// Tells how many bytes come next: the last of them are lent whole message or not. With 0 all are lent as they come.
    pub fn expect(&mut self, bytes: u64) {
        self.left = Some(bytes);
    }

    /// Returns all of the buffer, for a caller that keeps no message whole.
    pub fn whole_buffer(&mut self) -> &mut [u8] {
        self.buffer.get()
    }

    /// Calls `read` with free memory until at least one whole message has arrived. Lends all whole messages
    /// to `take`, and returns their bytes. When `read` returns zero, the remaining bytes are lent, whole or
    /// not.
    pub fn recv(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> Result<usize>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        loop {
            let buffer = self.buffer.get();
            let n = read(&mut buffer[self.filled..])?;
            self.filled += n;
            self.left = self.left.map(|left| left.saturating_sub(n as u64));
            let whole = if n == 0 || self.left == Some(0) {
                self.filled
            } else {
                self.filled - self.filled % self.message_bytes
            };
            let lent = whole - self.taken;
            if lent > 0 {
                take(&buffer[self.taken..whole]);
            }
            self.taken = whole;
            if self.taken == self.filled {
                (self.filled, self.taken) = (0, 0);
            }
            if lent > 0 || n == 0 {
                return Ok(lent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_whole_however_they_arrive() {
        let sent: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let mut inbox = Inbox::new(1000);
        let (mut at, mut step, mut received) = (0, 1, Vec::new());
        while received.len() < sent.len() {
            let read = |memory: &mut [u8]| {
                let n = step.min(memory.len()).min(sent.len() - at);
                memory[..n].copy_from_slice(&sent[at..at + n]);
                at += n;
                step = step * 7 % 5003 + 1;
                Ok(n)
            };
            let mut lent = Vec::new();
            let n = inbox.recv(read, &mut |bytes| lent.extend_from_slice(bytes)).unwrap();
            assert_eq!((n, n % 1000), (lent.len(), 0));
            received.extend(lent);
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn the_last_of_what_was_expected_is_lent_whole_message_or_not() {
        let mut inbox = Inbox::new(10);
        inbox.expect(14);
        let mut steps = [12usize, 2].into_iter();
        let mut read = |_: &mut [u8]| Ok(steps.next().unwrap());
        assert_eq!(inbox.recv(&mut read, &mut |_| ()).unwrap(), 10);
        assert_eq!(inbox.recv(&mut read, &mut |_| ()).unwrap(), 4);
    }

    #[test]
    fn the_end_of_a_stream_lends_the_rest() {
        let mut inbox = Inbox::new(10);
        let mut steps = [4usize, 0].into_iter();
        let n = inbox.recv(|_| Ok(steps.next().unwrap()), &mut |_| ()).unwrap();
        assert_eq!(n, 4);
    }
}
