//! Streams that go on until they are told to end.
use crate::fill;
use pd_client::{SendBuffer, Shutdown, Stream};
use std::sync::atomic::{AtomicBool, Ordering};

/// Sends the stream called `seed` until it is over, and its end. Returns the number of bytes.
pub fn send_until(stream: &Stream, seed: u64, is_over: &AtomicBool) -> u64 {
    let mut buffers: Vec<_> = (0..3).map(|_| SendBuffer::new(50_000).unwrap()).collect();
    let mut position = 0;
    while !is_over.load(Ordering::Relaxed) {
        for buffer in &mut buffers {
            let len = 1 + (position as usize * 31) % 50_000;
            fill(seed, position, &mut buffer.wait_mut().unwrap()[..len]);
            assert_eq!(stream.send(buffer, ..len).unwrap(), len);
            position += len as u64;
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
    position
}
