//! Clients that hold the kernel's locks on what they share with the driver, for as long as they like.
use super::stage;
use pd_abi::layout::{channel_control, channel_status};
use pd_abi::{Frame, FrameKind, Operation, Request, SocketId};
use pd_driver::Violation;
use pd_shm::{Own, Region};
use pd_tests::{needs_root, Raw, Withheld};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::write;
use rustix::pipe::{splice, SpliceFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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

/// Holds the lock of a file in a write whose bytes do not come, and calls a function meanwhile.
fn while_held(file: &OwnedFd, run: impl FnOnce()) {
    let page = Withheld::new();
    let at = page.address();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: the kernel reads a byte of memory that stays mapped.
            let _ = unsafe { libc::pwrite(file.as_raw_fd(), at as *const libc::c_void, 1, 0) };
        });
        // Dropped before the thread is waited for, also by a panic.
        let page = page;
        page.wait_wanted();
        run();
    });
}

/// A client holds the lock of its control region, and says that it has sealed it.
#[test]
fn control_regions_that_are_being_written() {
    needs_root("userfaultfd");
    let scene = stage();
    let mut raw = Raw::welcomed(&scene.driver);
    let fd = raw.control_fd.try_clone().unwrap();
    while_held(&fd, || {
        pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::Mapped).with_id(Frame::REGION_CONTROL))
            .unwrap();
        scene.expect_cut_off(&mut raw, Violation::Frame);
        scene.bystander.check(&scene.driver);
        drop(Raw::attach(&scene.driver, 1));
    });
    drop((raw, fd));
    scene.end();
}

/// A direct ring, which the conductor is asked to take into use, is being written.
#[test]
fn direct_rings_that_are_being_written() {
    needs_root("userfaultfd");
    let scene = stage();
    assert_eq!(scene.driver.apply("path = \"direct\""), 0);
    let mut raw = Raw::attach(&scene.driver, 1);
    let (listener, addr) = raw.listen(0, 8);
    let socket = raw.connect(0, addr);
    raw.accept(0, listener);
    let wish = Frame::new(FrameKind::DirectRing).with_id(socket.0);
    let (frame, mut fds) = raw.ask(&wish, FrameKind::DirectRing).expect("a ring");
    let fd = fds.pop().expect("memory");
    let map = Region::<Own>::new(&fd, (frame.bytes + frame.page_bytes) as usize).expect("map");
    while_held(&fd, || {
        pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::DirectMapped).with_id(socket.0)).unwrap();
        scene.expect_cut_off(&mut raw, Violation::Frame);
        scene.bystander.check(&scene.driver);
        drop(Raw::attach(&scene.driver, 1));
    });
    drop((raw, fd, map));
    scene.end();
}
