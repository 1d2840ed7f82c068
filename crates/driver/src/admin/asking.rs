//! Asking a driver, and what both ends of the socket do with descriptors.
use super::{Answer, Ask, PortSpec, TapOf};
use crate::openers;
use pd_shm::counters::CounterView;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{
    recvmsg, sendmsg, sockopt, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{BufRead, BufReader, Error, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most descriptors of an answer.
const FDS_MAX: usize = 5;
/// Time for which the successor of a driver that has gone is looked for.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Ring of a tap: some milliseconds of frames at the rate of a busy agent.
const TAP_RING_BYTES: u64 = 4 << 20;

/// A driver's counters, read from its memory.
#[derive(Debug)]
pub struct Counters {
    /// The region.
    pub view: CounterView,
    /// The driver's process, if this one can see it.
    pub pid: Option<u32>,
    alive: OwnedFd,
}

impl Counters {
    /// Tells whether the driver still runs. After its end the region holds its last counts.
    pub fn is_live(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Nothing is ever written: readiness means the driver's end.
        !poll(&mut [PollFd::new(&self.alive, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// Asks the driver at `socket` for its counters. One call is enough: the region can be read any number of times.
///
/// # Errors
/// If there is no driver, or it is of another version.
pub fn counters(socket: &Path) -> std::io::Result<Counters> {
    let stream = connect(socket, &Ask::Counters)?;
    let (answer, fds) = receive_with(&stream)?;
    if let Answer::Error(why) = answer {
        return Err(Error::other(why));
    }
    let mut fds = fds.into_iter();
    let (Some(region), Some(alive)) = (fds.next(), fds.next()) else {
        return Err(Error::other("the driver sent no counters"));
    };
    let pid =
        sockopt::socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
    let view = CounterView::new(&region).map_err(|errno| {
        Error::other(format!("counters of another version of the driver ({errno}): restart it"))
    })?;
    Ok(Counters { view, pid, alive })
}

/// Copies of frames of a port or of a pipe. Ends when dropped.
#[derive(Debug)]
pub struct Tap {
    /// The pipe; its frames are records: [`pd_pipe::Record`].
    pub records: pd_pipe::Pipe,
    life: OwnedFd,
}

impl Tap {
    /// Tells whether the driver still runs. A driver that was killed ends no pipe.
    pub fn is_live(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Readiness tells only that the reading end has gone: no byte is ever read.
        !poll(&mut [PollFd::new(&self.life, PollFlags::empty())], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// Asks the driver at `socket` for copies of frames, at most `snap_bytes` of each. A copy for which the ring has no room is lost and
/// counted.
///
/// # Errors
/// If there is no driver, or no such port or pipe.
pub fn tap(socket: &Path, of: TapOf, snap_bytes: usize) -> std::io::Result<Tap> {
    let stream = connect(socket, &Ask::Tap { of, snap_bytes })?;
    let (answer, fds) = receive_with(&stream)?;
    if let Answer::Error(why) = answer {
        return Err(Error::other(why));
    }
    let [status, control, ring, doorbell, life] = <[OwnedFd; 5]>::try_from(fds)
        .map_err(|_| Error::other("the driver is of another version, and sent no tap"))?;
    let offer = pd_pipe::Offer { shape: tap_shape()?, status, control, ring, doorbell };
    let records = pd_pipe::Pipe::map(offer)?;
    (&stream).write_all(b"\n")?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer)?;
    match serde_json::from_str(&answer)? {
        Answer::Error(why) => Err(Error::other(why)),
        _ => Ok(Tap { records, life }),
    }
}

/// Returns the shape of a tap's pipe.
pub(crate) fn tap_shape() -> rustix::io::Result<pd_pipe::Shape> {
    pd_pipe::Shape::new(pd_pipe::Direction::Receive, pd_pipe::Unit::Frames, TAP_RING_BYTES)
}

/// Receives an answer with descriptors.
fn receive_with(stream: &UnixStream) -> std::io::Result<(Answer, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let (len, fds) = receive_bytes_with(stream, &mut bytes)?;
    Ok((serde_json::from_slice(&bytes[..len])?, fds))
}

fn receive_bytes_with(stream: &UnixStream, bytes: &mut [u8]) -> std::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(bytes)];
    let len = recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut fds = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received);
        }
    }
    Ok((len, fds))
}

pub(crate) fn send_with(stream: &UnixStream, answer: &Answer, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    send_bytes_with(stream, text.as_bytes(), fds)
}

fn send_bytes_with(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Has the driver at `socket` make a port. This process opens the kernel's part of the port, in the network namespace of `namespace` if
/// given, and passes it on.
///
/// # Errors
/// If something is missing, there is no driver, or it answers with an error.
pub fn add_port(socket: &Path, name: &str, port: PortSpec, namespace: Option<&Path>) -> std::io::Result<()> {
    let opened = openers::open(&port, namespace).map_err(Error::other)?;
    let stream = connect(socket, &Ask::PortAdd { name: name.to_owned(), port })?;
    let mut answers = BufReader::new(&stream);
    let mut next = || -> std::io::Result<Answer> {
        let mut line = String::new();
        answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    let mut answer = next()?;
    if matches!(answer, Answer::Descriptors) {
        let fds: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
        send_bytes_with(&stream, b"\n", &fds)?;
        answer = next()?;
    }
    match answer {
        Answer::Done => Ok(()),
        Answer::Error(why) => Err(Error::other(why)),
        _ => Err(Error::other("the driver is of another version")),
    }
}

/// Receives the descriptors that come with a byte.
pub(crate) fn receive_descriptors(stream: &UnixStream) -> std::io::Result<Vec<OwnedFd>> {
    receive_bytes_with(stream, &mut [0; 1]).map(|(_, fds)| fds)
}

fn connect(socket: &Path, ask: &Ask) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut line = serde_json::to_string(ask)?;
    line.push('\n');
    match (&stream).write_all(line.as_bytes()) {
        // The driver may have answered and hung up before it read everything.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(stream),
        written => written.map(|()| stream),
    }
}

/// Asks the driver at `socket`. If the driver goes before it answers, as one does that another driver replaces, the successor is asked. A request
/// that must not be carried out twice is not repeated.
///
/// # Errors
/// If there is no driver, or it answers with an error, or goes before it answers.
pub fn ask(socket: &Path, ask: &Ask) -> std::io::Result<Answer> {
    let until = Instant::now() + SUCCESSOR_WITHIN;
    loop {
        match ask_once(socket, ask)? {
            Some(Answer::Error(why)) => return Err(Error::other(why)),
            Some(answer) => return Ok(answer),
            None if ask.may_repeat() && Instant::now() < until => std::thread::sleep(AGAIN_AFTER),
            None if ask.may_repeat() => return Err(Error::other("the driver hangs up before it answers")),
            None => {
                let why = "the driver ended, or another took its place, before it answered: see whether it was done, and ask again if not";
                return Err(Error::other(why));
            }
        }
    }
}

/// Returns the answer; none if the driver has gone without one.
fn ask_once(socket: &Path, ask: &Ask) -> std::io::Result<Option<Answer>> {
    let stream = connect(socket, ask)?;
    let mut answer = String::new();
    match BufReader::new(stream).read_line(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
        read => read?,
    };
    // A whole answer ends with a line feed.
    if !answer.ends_with('\n') {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&answer)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Asks a driver that goes before it answers, once, and returns the answer of its successor and the number of requests.
    fn ask_two_drivers(what: &Ask, first_says: &str) -> (std::io::Result<Answer>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            let drivers = scope.spawn(|| {
                let (mut asked, mut says) = (0, first_says);
                while let Ok((stream, _)) = listener.accept() {
                    let mut line = String::new();
                    if BufReader::new(&stream).read_line(&mut line).unwrap() == 0 {
                        break;
                    }
                    asked += 1;
                    (&stream).write_all(says.as_bytes()).unwrap();
                    says = "\"done\"\n";
                }
                asked
            });
            let answer = ask(&path, what);
            // Ends the listener.
            drop(UnixStream::connect(&path).unwrap());
            (answer, drivers.join().unwrap())
        })
    }

    #[test]
    fn a_question_goes_to_the_successor_of_a_driver_that_has_gone() {
        for half in ["", "\"do"] {
            let (answer, asked) = ask_two_drivers(&Ask::List, half);
            assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
            assert_eq!(asked, 2);
        }
    }

    #[test]
    fn a_change_is_asked_for_once() {
        let remove = Ask::PortRemove { name: "in".to_owned() };
        let (answer, asked) = ask_two_drivers(&remove, "");
        assert!(answer.unwrap_err().to_string().contains("before it answered"));
        assert_eq!(asked, 1);
    }
}
