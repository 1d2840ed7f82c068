//! Clients that hold the kernel's locks on what they share with the driver, for as long as they like.
use super::stage;
use pd_abi::layout::{channel_control, channel_status};
use pd_abi::{Frame, FrameKind, Operation, Request, SocketId};
use pd_tests::Raw;
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::write;
use rustix::pipe::{splice, SpliceFlags};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time in which a thread gets as far as the call in which it waits. If it takes longer, the test shows less.
const UNDER_WAY: Duration = Duration::from_millis(100);

fn set_blocking(fd: impl AsFd, blocks: bool) {
    let flags = fcntl_getfl(&fd).unwrap() - OFlags::NONBLOCK;
    fcntl_setfl(&fd, if blocks { flags } else { flags | OFlags::NONBLOCK }).unwrap();
}

/// Has the driver post events, and wake the reader by the wake pipe at each.
fn wake(raw: &mut Raw, count: u64) {
    let at = |word| Raw::channel_word(0, word);
    let produced = raw.status.load_u64(at(channel_status::EVENT_PRODUCER), Ordering::Acquire);
    raw.control.store_u32(at(channel_control::PIPE_WANTED), 1, Ordering::SeqCst);
    for n in 1..=count {
        raw.control.store_u64(at(channel_control::EVENT_WAKE_AT), produced + n, Ordering::SeqCst);
        // Always answered, with `EBADF`.
        raw.post(0, &Request::new(Operation::Adopt, SocketId(u32::MAX), 5));
        let until = Instant::now() + Duration::from_secs(10);
        while raw.status.load_u64(at(channel_status::EVENT_PRODUCER), Ordering::Acquire) < produced + n {
            assert!(Instant::now() < until, "the mover posts no events");
            std::thread::yield_now();
        }
    }
}

/// A client moves wake-ups into a full socket, which holds the lock of a pipe of the kernel for ever. The mover goes on.
#[test]
fn wake_pipes_that_are_spliced() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let wish = Frame::new(FrameKind::WakePipe).with_id(0);
    let pipe = raw.ask(&wish, FrameKind::WakePipe).unwrap().1.pop().unwrap();
    let (full, other_end) = UnixStream::pair().unwrap();
    set_blocking(&full, false);
    while write(&full, &[0; 4096]).is_ok() {}
    set_blocking(&full, true);
    set_blocking(&pipe, true);
    wake(&mut raw, 1);
    std::thread::scope(|scope| {
        let splicing = scope.spawn(|| splice(&pipe, None, &full, None, 4096, SpliceFlags::empty()));
        std::thread::sleep(UNDER_WAY);
        wake(&mut raw, 20);
        scene.bystander.check(&scene.driver);
        drop(other_end);
        // The end of the client's waits: its socket has no other end, and the wake pipe something in it.
        let _ = splicing.join();
    });
    drop((raw, pipe, full));
    scene.end();
}
