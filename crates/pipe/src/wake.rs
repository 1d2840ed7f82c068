//! Wake-ups of a program by the agent: a pair of connected sockets, of which each has one.
//!
//! The agent waits for no program. A pipe of the kernel would have it wait: a reader that splices the pipe into a full socket holds the
//! pipe's lock meanwhile, and a `write` takes that lock, whether or not it may block. A send to a socket takes no lock that a reader
//! holds for long.
use rustix::io::Result;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{send, shutdown, socketpair, AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};

/// Makes a pair: the program's end, which becomes readable with each wake-up, and the agent's. The program can send nothing.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOBUFS`.
pub fn wake_pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (theirs, own) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    shutdown(&theirs, Shutdown::Write)?;
    // A few wake-ups, and one is enough: the kernel rounds up.
    set_socket_send_buffer_size(&own, 1)?;
    Ok((theirs, own))
}

/// Wakes the program at the other end. Never blocks, and raises no signal.
pub(crate) fn wake(own: impl AsFd) {
    // Where there is no room, the program's end is readable already.
    let _ = send(own, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::io::{read, write, Errno};
    use rustix::net::recv;
    use rustix::net::RecvFlags;
    use rustix::pipe::{pipe_with, splice, PipeFlags, SpliceFlags};
    use std::time::Duration;

    fn is_readable(fd: &OwnedFd) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn each_wake_up_is_heard_and_the_program_says_nothing() {
        let (theirs, own) = wake_pair().unwrap();
        for _ in 0..100 {
            assert!(!is_readable(&theirs));
            (0..1000).for_each(|_| wake(&own));
            assert!(is_readable(&theirs));
            while read(&theirs, &mut [0; 64]).is_ok() {}
        }
        assert_eq!(send(&theirs, &[1], SendFlags::NOSIGNAL), Err(Errno::PIPE));
        assert_eq!(recv(&own, &mut [0; 8][..], RecvFlags::DONTWAIT).map(|(len, _)| len), Ok(0));
        drop(theirs);
        wake(&own);
    }

    /// A program splices what it is sent into a pipe that is full, which takes for ever. The agent goes on.
    #[test]
    fn a_program_that_holds_its_end_in_a_call_holds_up_no_wake_up() {
        let (theirs, own) = wake_pair().unwrap();
        let (reading, full) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::NONBLOCK).unwrap();
        while write(&full, &[0; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        wake(&own);
        std::thread::scope(|scope| {
            let (theirs, full) = (&theirs, &full);
            let program = scope.spawn(move || splice(theirs, None, full, None, 4096, SpliceFlags::empty()));
            std::thread::sleep(Duration::from_millis(50));
            (0..1000).for_each(|_| wake(&own));
            assert!(!program.is_finished());
            while !program.is_finished() {
                let _ = read(&reading, &mut [0; 4096]);
            }
        });
    }
}
