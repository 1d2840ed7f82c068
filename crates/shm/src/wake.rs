//! Wake-ups of a client that waits in `poll` or `epoll`: a pair of connected sockets, of which driver and client have one each. Protocol and
//! documents call a channel's pair its *wake pipe*.
//!
//! The driver waits for no client. A pipe of the kernel would have it wait: a reader that splices the pipe into a full socket holds the
//! pipe's lock meanwhile, and a `write` takes that lock, whether or not it may block. A send to a socket takes no lock that a reader
//! holds for long.
use rustix::io::{Errno, Result};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_domain, socket_type};
use rustix::net::{send, shutdown, socketpair, AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};

/// Makes a pair: the client's end, which becomes readable with each wake-up, and the driver's. The client can send nothing.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOBUFS`.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (theirs, own) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    shutdown(&theirs, Shutdown::Write)?;
    // A few wake-ups, and one is enough: the kernel rounds up.
    set_socket_send_buffer_size(&own, 1)?;
    Ok((theirs, own))
}

/// Checks an end that another process has passed: [`wake`] cannot wait there.
///
/// # Errors
/// `ENOTSOCK` if it is no socket, `EPROTOTYPE` if it is one of another kind.
pub fn check(own: impl AsFd) -> Result<()> {
    match socket_domain(&own)? == AddressFamily::UNIX && socket_type(&own)? == SocketType::STREAM {
        true => Ok(()),
        false => Err(Errno::PROTOTYPE),
    }
}

/// Wakes the client at the other end. Never blocks, and raises no signal. One system call.
pub fn wake(own: impl AsFd) {
    // Where there is no room, the client's end is readable already.
    let _ = send(own, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::io::{read, write};
    use rustix::net::recv;
    use rustix::net::RecvFlags;
    use rustix::pipe::{pipe_with, splice, PipeFlags, SpliceFlags};
    use std::time::Duration;

    fn is_readable(fd: &OwnedFd) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn each_wake_up_arrives_and_the_client_says_nothing() {
        let (theirs, own) = pair().unwrap();
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

    #[test]
    fn many_wake_ups_are_read_at_once_and_the_end_is_one_of_file() {
        let (theirs, own) = pair().unwrap();
        assert_eq!(read(&theirs, &mut [0; 64]), Err(Errno::AGAIN));
        (0..1000).for_each(|_| wake(&own));
        assert!(read(&theirs, &mut [0; 64]).unwrap() > 1);
        assert_eq!(read(&theirs, &mut [0; 64]), Err(Errno::AGAIN));
        wake(&own);
        drop(own);
        assert_eq!(read(&theirs, &mut [0; 64]), Ok(1));
        assert_eq!(read(&theirs, &mut [0; 64]), Ok(0));
    }

    #[test]
    fn other_descriptors_are_no_end() {
        assert_eq!(check(pair().unwrap().1), Ok(()));
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        for fd in [reading, writing, eventfd] {
            assert_eq!(check(fd), Err(Errno::NOTSOCK));
        }
        for (family, kind) in [
            (AddressFamily::UNIX, SocketType::SEQPACKET),
            (AddressFamily::UNIX, SocketType::DGRAM),
            (AddressFamily::INET, SocketType::STREAM),
        ] {
            assert_eq!(check(rustix::net::socket(family, kind, None).unwrap()), Err(Errno::PROTOTYPE));
        }
    }

    /// A client splices what it is sent into a pipe that is full, which takes for ever. The driver goes on.
    #[test]
    fn a_client_that_holds_its_end_in_a_call_holds_up_no_wake_up() {
        let (theirs, own) = pair().unwrap();
        let (reading, full) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::NONBLOCK).unwrap();
        while write(&full, &[0; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
        // The loop below reads more than there is, if the client's end shows late.
        rustix::fs::fcntl_setfl(&reading, rustix::fs::OFlags::NONBLOCK).unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        wake(&own);
        std::thread::scope(|scope| {
            let (theirs, full) = (&theirs, &full);
            let client = scope.spawn(move || splice(theirs, None, full, None, 4096, SpliceFlags::empty()));
            std::thread::sleep(Duration::from_millis(50));
            (0..1000).for_each(|_| wake(&own));
            assert!(!client.is_finished());
            while !client.is_finished() {
                let _ = read(&reading, &mut [0; 4096]);
            }
        });
    }
}
