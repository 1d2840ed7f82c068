//! The process that probes. It has one thread, which waits for all its probes at once.
use super::wire::{Question, Verdict, QUESTION_BYTES_MAX};
use super::{PREFIX_BYTES, PROBES_MAX};
use crate::filter;
use crate::rights::{self, Part};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    connect, recv, recvmsg, send, socket_with, sockopt, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{set_parent_process_death_signal, Signal};
use rustix::thread::{move_into_link_name_space, set_no_new_privs, LinkNameSpaceType};
use std::io::{stdin, IoSliceMut, Result};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Most headers of an answer that are parsed. The status stands before them.
const HEADERS_MAX: usize = 8;
/// Delay from the end of a worker to the next one.
const RESTART_AFTER: Duration = Duration::from_millis(200);

/// Runs workers until the driver has closed its end of the channel, which is the standard input. A worker that dies is replaced: it kept
/// nothing.
///
/// # Errors
/// Errors of giving up rights and of making processes.
pub fn supervise() -> Result<()> {
    // Closes descriptors inherited from the driver, such as a lock of the program that started it. SAFETY: this process has
    // opened nothing yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    rights::drop_others(Part::Probe)?;
    rights::hand_on(Part::Probe)?;
    set_no_new_privs(true)?;
    loop {
        // No worker runs while no policy has probes.
        while poll(&mut [PollFd::from_borrowed_fd(stdin().as_fd(), PollFlags::IN)], None).is_err() {}
        let mut command = Command::new("/proc/self/exe");
        command.args(["internal-probe", "--worker"]).env_clear().stdin(Stdio::inherit());
        if command.status()?.success() || has_hung_up()? {
            return Ok(());
        }
        std::thread::sleep(RESTART_AFTER);
    }
}

/// Tells whether the driver has closed its end of the channel.
fn has_hung_up() -> rustix::io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let input = stdin();
    let mut channel = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::empty())];
    poll(&mut channel, Some(&now))?;
    Ok(channel[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

/// Answers questions until the driver has closed its end of the channel.
///
/// # Errors
/// Errors of confining itself and of the channel.
pub fn work() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let home = open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rights::drop_others(Part::Probe)?;
    filter::install_for_probes()?;
    Ok(serve(stdin().as_fd(), home.as_fd())?)
}

/// A probe under way.
struct Probe {
    id: u64,
    socket: OwnedFd,
    until: Instant,
    stage: Stage,
}

enum Stage {
    /// Connecting; then this request is sent, if any.
    Connecting(Option<Vec<u8>>),
    /// Reading the answer; the bytes so far.
    Answering(Vec<u8>),
}

/// Answers questions from a channel. `home`: this process's namespace.
fn serve(channel: BorrowedFd<'_>, home: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut probes: Vec<Probe> = Vec::new();
    loop {
        let now = Instant::now();
        let until = probes.iter().map(|probe| probe.until).min();
        let wait = until.map(|until| {
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        // A full worker reads no questions: the channel fills, and the driver keeps further ones.
        let asks = if probes.len() < PROBES_MAX { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::from_borrowed_fd(channel, asks)];
        fds.extend(probes.iter().map(|probe| PollFd::new(&probe.socket, probe.stage.waits_for())));
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] && probes.len() == PROBES_MAX {
            // Not polled for input, so this is a hang-up: the driver has gone.
            return Ok(());
        }
        let (now, mut place) = (Instant::now(), 0);
        probes.retain_mut(|probe| {
            place += 1;
            let verdict = if ready[place] { probe.go_on() } else { None };
            let verdict = verdict.or((probe.until <= now).then_some(Verdict::TimedOut));
            verdict.inspect(|verdict| reply(channel, probe.id, *verdict)).is_none()
        });
        while ready[0] && probes.len() < PROBES_MAX {
            match receive(channel, home) {
                Ok(Some(probe)) => probes.push(probe),
                Ok(None) => {}
                Err(Errno::AGAIN | Errno::INTR) => break,
                // The driver has gone.
                Err(Errno::PIPE) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Sends a reply. A driver that does not read its replies misses them.
fn reply(channel: BorrowedFd<'_>, id: u64, verdict: Verdict) {
    let _ = send(channel, &verdict.encode(id), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Receives a question and begins its probe; none: it is answered already.
///
/// # Errors
/// `EPIPE`: there will be no more questions. `EAGAIN`: there is none now.
fn receive(channel: BorrowedFd<'_>, home: BorrowedFd<'_>) -> rustix::io::Result<Option<Probe>> {
    let mut bytes = [0; QUESTION_BYTES_MAX + 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(channel, &mut [IoSliceMut::new(&mut bytes)], &mut along, flags)?;
    if got.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let namespace = along.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let Some(question) = Question::decode(&bytes[..got.bytes]) else { return Ok(None) };
    let id = question.id;
    let begun = namespace.ok_or(Errno::BADF).and_then(|namespace| begin(question, namespace.as_fd(), home));
    match begun {
        Ok(probe) => Ok(Some(probe)),
        Err(errno) => {
            reply(channel, id, of_errno(errno));
            Ok(None)
        }
    }
}

/// Begins a connection in a namespace. This process returns to its own afterwards, so that the other namespace can end.
fn begin(question: Question, namespace: BorrowedFd<'_>, home: BorrowedFd<'_>) -> rustix::io::Result<Probe> {
    let network = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace, network)?;
    let family = if question.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(family, SocketType::STREAM, flags, None);
    move_into_link_name_space(home, network)?;
    let socket = made?;
    // Closing leaves no socket in TIME_WAIT, which would hold a port for a minute.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    match connect(&socket, &question.to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno),
    }
    let asks = question.path.map(|path| request(&path, &question.to.to_string()));
    let until = Instant::now() + question.timeout;
    Ok(Probe { id: question.id, socket, until, stage: Stage::Connecting(asks) })
}

fn request(path: &str, host: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: pipedevice-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// Returns the verdict of a failed connect.
fn of_errno(errno: Errno) -> Verdict {
    match errno {
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::HOSTUNREACH | Errno::NETUNREACH => Verdict::Refused,
        Errno::TIMEDOUT => Verdict::TimedOut,
        other => Verdict::Unknown(other.raw_os_error() as u16),
    }
}

impl Stage {
    fn waits_for(&self) -> PollFlags {
        match self {
            Self::Connecting(_) => PollFlags::OUT,
            Self::Answering(_) => PollFlags::IN,
        }
    }
}

impl Probe {
    /// Handles an event of the socket. Returns the verdict, once there is one.
    fn go_on(&mut self) -> Option<Verdict> {
        match &mut self.stage {
            Stage::Connecting(asks) => {
                match sockopt::socket_error(&self.socket) {
                    Ok(Ok(())) => {}
                    Ok(Err(errno)) | Err(errno) => return Some(of_errno(errno)),
                }
                let Some(request) = asks.take() else { return Some(Verdict::Well) };
                // A new connection's buffer has room for it.
                let sent = send(&self.socket, &request, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                if sent != Ok(request.len()) {
                    return Some(Verdict::BadAnswer(0));
                }
                self.stage = Stage::Answering(Vec::new());
                None
            }
            Stage::Answering(answer) => {
                let mut bytes = [0; PREFIX_BYTES];
                let room = PREFIX_BYTES - answer.len();
                match recv(&self.socket, &mut bytes[..room], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => Some(Verdict::BadAnswer(0)),
                    Ok((len, _)) => {
                        answer.extend_from_slice(&bytes[..len]);
                        judge(answer)
                    }
                    Err(Errno::AGAIN | Errno::INTR) => None,
                    Err(_) => Some(Verdict::BadAnswer(0)),
                }
            }
        }
    }
}

/// Returns the verdict on the received part of an answer; none: more is needed.
pub(super) fn judge(answer: &[u8]) -> Option<Verdict> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(answer);
    match (response.code, parsed) {
        (Some(200..=399), _) => Some(Verdict::Well),
        (Some(status), _) => Some(Verdict::BadAnswer(status)),
        (None, Ok(_)) if answer.len() < PREFIX_BYTES => None,
        (None, _) => Some(Verdict::BadAnswer(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Prober;
    use super::*;
    use proptest::prelude::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

    /// A worker in a thread of this process, and its questions.
    struct Asker {
        prober: Prober,
        namespace: OwnedFd,
    }

    impl Asker {
        fn new() -> Self {
            let (prober, theirs) = Prober::with_other_end();
            let own = || open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let home = own();
            std::thread::spawn(move || serve(theirs.as_fd(), home.as_fd()).unwrap());
            Self { prober, namespace: own() }
        }

        fn ask(&self, id: u64, to: SocketAddr, timeout_ms: u64, path: Option<&str>) {
            let timeout = Duration::from_millis(timeout_ms);
            let question = Question { id, to, timeout, path: path.map(Into::into) };
            assert_eq!(self.prober.ask(&question, self.namespace.as_fd()), Ok(true));
        }

        fn reply(&self) -> (u64, Verdict) {
            loop {
                if let Some(reply) = self.prober.replies().unwrap().first() {
                    return *reply;
                }
                poll(&mut [PollFd::from_borrowed_fd(self.prober.fd(), PollFlags::IN)], None).unwrap();
            }
        }
    }

    /// Starts a server that answers each connection with these bytes; none: with nothing.
    fn server(answer: Option<&'static [u8]>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if let Some(answer) = answer {
                    let mut bytes = [0; 1024];
                    let _ = stream.read(&mut bytes).and_then(|_| stream.write_all(answer));
                } else {
                    kept.push(stream);
                }
            }
        });
        at
    }

    #[test]
    fn verdicts_are_about_what_backends_do() {
        assert!(rustix::process::geteuid().is_root(), "entering a namespace needs root");
        let asker = Asker::new();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let cases: [(SocketAddr, Option<&str>, Verdict); 8] = [
            (server(None), None, Verdict::Well),
            (closed, None, Verdict::Refused),
            (closed, Some("/"), Verdict::Refused),
            (server(None), Some("/"), Verdict::TimedOut),
            (server(Some(b"HTTP/1.1 204 No Content\r\n\r\n")), Some("/"), Verdict::Well),
            (server(Some(b"HTTP/1.0 503 Service Unavailable\r\n\r\n")), Some("/"), Verdict::BadAnswer(503)),
            (server(Some(b"")), Some("/"), Verdict::BadAnswer(0)),
            (server(Some(&[b'x'; 1 << 20])), Some("/"), Verdict::BadAnswer(0)),
        ];
        for (number, (to, path, verdict)) in cases.into_iter().enumerate() {
            let timeout_ms = if verdict == Verdict::TimedOut { 50 } else { 10_000 };
            asker.ask(number as u64, to, timeout_ms, path);
            assert_eq!(asker.reply(), (number as u64, verdict));
        }
    }

    /// Calls that the driver itself may make, and that the worker does not need.
    #[test]
    fn the_worker_opens_nothing_and_starts_nothing() {
        let run = || {
            filter::confine_for_probes(seccompiler::SeccompAction::Errno(libc::EBADE as u32)).unwrap();
            let refused =
                |result: std::io::Result<()>| result.unwrap_err().raw_os_error() == Some(libc::EBADE);
            assert!(refused(std::fs::File::open("/proc/self/status").map(drop)), "a file");
            assert!(refused(std::os::unix::net::UnixStream::pair().map(drop)), "a socket of the host's");
            assert!(std::thread::Builder::new().spawn(|| {}).is_err(), "a thread");
            let raw = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None);
            assert_eq!(raw.map(drop), Err(Errno::from_raw_os_error(libc::EBADE)));
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).map(drop)
        };
        assert_eq!(std::thread::spawn(run).join().unwrap(), Ok(()));
    }

    /// No probe waits for one that hangs.
    #[test]
    fn many_probes_are_all_answered() {
        assert!(rustix::process::geteuid().is_root(), "entering a namespace needs root");
        let asker = Asker::new();
        let (hung, well) = (server(None), server(Some(b"HTTP/1.1 200 OK\r\n\r\n")));
        asker.ask(0, hung, 60_000, Some("/"));
        (1..=100).for_each(|id| asker.ask(id, well, 60_000, Some("/")));
        let mut replies = Vec::new();
        while replies.len() < 100 {
            replies.extend(asker.prober.replies().unwrap());
            let _ = poll(&mut [PollFd::from_borrowed_fd(asker.prober.fd(), PollFlags::IN)], Some(&SOON));
        }
        replies.sort_by_key(|(id, _)| *id);
        let expected: Vec<_> = (1..=100).map(|id| (id, Verdict::Well)).collect();
        assert_eq!(replies, expected);
    }

    proptest! {
        /// An answer read in any pieces has its verdict within the prefix, which is the verdict on the whole.
        #[test]
        fn any_answer_has_a_verdict(
            start in prop::sample::select(vec!["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 404 No\r\n", "HTTP/1.1 2", "HTTP/9"]),
            rest in prop::collection::vec(any::<u8>(), PREFIX_BYTES),
        ) {
            let mut answer = start.as_bytes().to_vec();
            answer.extend(rest);
            answer.truncate(PREFIX_BYTES);
            let whole = judge(&answer);
            prop_assert!(whole.is_some());
            let first = (1..=answer.len()).find_map(|len| judge(&answer[..len]));
            prop_assert_eq!(first, whole);
        }
    }
}
