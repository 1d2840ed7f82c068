//! Datagrams there and back.
use super::{Held, PATIENCE};
use pd_pipe::Pipe;
use rustix::io::Errno;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A program that sends datagrams back to where they came from, until it is dropped or its pipe ends.
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Errno>>,
}

impl Echo {
    pub fn start(held: Held) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The client as well as its pipe.
        let run = move || {
            let mut held = held;
            Self::run(&mut held.pipe, &stopped)
        };
        Self { stop, thread: Some(std::thread::spawn(run)) }
    }

    fn run(pipe: &mut Pipe, stopped: &AtomicBool) -> Errno {
        loop {
            match pipe.wait(Duration::from_millis(50)) {
                Err(Errno::AGAIN) if !stopped.load(Ordering::Relaxed) => continue,
                Err(errno) => break errno,
                Ok(()) => {}
            }
            let mut frames = pipe.frames().unwrap();
            while let Some(mut frame) = frames.next() {
                if let Some(bytes) = frame.bytes_mut() {
                    swap(bytes, 0, 6);
                    swap(bytes, 26, 4);
                    swap(bytes, 34, 2);
                }
            }
        }
    }

    /// Returns the error that its pipe ended with.
    pub fn ended(mut self) -> Errno {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Exchanges two neighbouring fields of `len` bytes.
fn swap(bytes: &mut [u8], at: usize, len: usize) {
    let (first, second) = bytes[at..at + 2 * len].split_at_mut(len);
    first.swap_with_slice(second);
}

/// Sends datagrams of many sizes one after the other, each of which is to come back.
pub fn exchange(socket: &UdpSocket, count: usize) {
    let mut buffer = [0; 2048];
    for number in 0..count {
        let bytes: Vec<_> = (0..1 + number * 37 % 1472).map(|at| (at + number) as u8).collect();
        socket.send(&bytes).unwrap();
        let len = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("datagram {number}: {error}"));
        assert_eq!(buffer[..len], bytes, "datagram {number}");
    }
}

pub fn udp(from: &str, to: &str) -> UdpSocket {
    let socket = UdpSocket::bind(from).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(to).unwrap();
    socket
}
