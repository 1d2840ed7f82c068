//! Administrators. A process is checked before anything is read from it. Then a thread of its own reads the question, looks up its objects,
//! and writes the answer to a reader that may be slow. The conductor only decides.
use super::bucket::{Bucket, Flow};
use super::listen::Sockets;
use super::messages::{Asked, FromDoor, Registering, Registration};
use super::{Door, TOKEN_ADMIN};
use crate::admin::{self, Answer, Ask, PortSpec, TapOf};
use crate::mailbox::Mailbox;
use crate::mirror::{Copies, Frames, OF_CONNECTIONS};
use crate::peer::{accept_descriptors, Peer};
use crate::pipes::{NewPort, NewTap};
use crate::policy::{Policy, POLICY_BYTES_MAX};
use crate::process::{container_group, network_namespace};
use crate::takeover::{offer, pack};
use pd_pipe::Made;
use pd_shm::counters::CounterRegion;
use rustix::io::Errno;
use rustix::net::{accept_with, SocketFlags};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{geteuid, pidfd_open, Pid, PidfdFlags};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

/// Longest line that the admin socket takes: with a policy, whose ends of lines and quotes take two letters each.
const LINE_BYTES_MAX: u64 = 4 * POLICY_BYTES_MAX as u64;
/// Time that an administrator may take to ask, and to read the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most administrators that are served at once.
const ADMINISTRATORS_MAX: usize = 64;

/// Rate at which processes that are no administrators are told so.
const STRANGERS: Flow = Flow { rate: 500.0, burst: 64.0 };

/// Processes that are no administrators. Once their tokens are used up nobody is accepted for a while, and administrators wait.
#[derive(Debug)]
pub struct Strangers {
    bucket: Bucket,
    is_full: bool,
}

impl Strangers {
    pub fn new(now: Duration) -> Self {
        Self { bucket: Bucket::new(STRANGERS, now), is_full: false }
    }

    /// Returns the time at which the admin socket accepts again.
    pub fn wake_by(&self) -> Option<Duration> {
        self.is_full.then(|| self.bucket.ready_at(STRANGERS))
    }
}

/// State that the threads of administrators share.
#[derive(Debug)]
pub struct Desk {
    conductor: Arc<Mailbox<FromDoor>>,
    counters: Arc<CounterRegion>,
    /// A pipe that hangs up when the driver is no more: its reading end goes with the counter region.
    alive: OwnedFd,
    /// Sockets for a driver that takes this one's place.
    listening: Sockets,
    serving: AtomicUsize,
}

impl Desk {
    pub fn new(
        conductor: Arc<Mailbox<FromDoor>>,
        counters: Arc<CounterRegion>,
        alive: OwnedFd,
        listening: Sockets,
    ) -> Arc<Self> {
        Arc::new(Self { conductor, counters, alive, listening, serving: AtomicUsize::new(0) })
    }

    /// Reads an administrator's question, and answers it.
    fn serve(&self, stream: &UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
        if line.len() as u64 == LINE_BYTES_MAX {
            let why = format!("a question is longer than {LINE_BYTES_MAX} bytes");
            return write_line(stream, &Answer::Error(why));
        }
        let asked =
            serde_json::from_str::<Ask>(&line).map_err(|error| format!("not a question of ours: {error}"));
        if let Ok(Ask::Tap { of, snap_bytes }) = asked {
            return self.tap(stream, of, snap_bytes);
        }
        if let Ok(Ask::PortAdd { name, port }) = asked {
            let answer = match port.takes_descriptors() {
                true => self.passed(stream).and_then(|opened| self.add_port(name, &port, opened)),
                false => self.add_port(name, &port, Vec::new()),
            };
            return write_line(stream, &answer.unwrap_or_else(Answer::Error));
        }
        if let Ok(Ask::TakeOver { format, abi }) = asked {
            return self.offer(stream, format, abi);
        }
        let answer = asked.and_then(|ask| self.ask(ask)).unwrap_or_else(Answer::Error);
        if matches!(answer, Answer::Counters) {
            return admin::send_with(stream, &answer, &[self.counters.fd(), self.alive.as_fd()]);
        }
        write_line(stream, &answer)
    }

    /// Offers this driver to one that is to take its place. Sends the facts that the other one needs to get ready. Everything else follows
    /// when the other one says that it is ready.
    fn offer(&self, stream: &UnixStream, format: u32, abi: u32) -> std::io::Result<()> {
        if let Err(why) = offer::check(format, abi) {
            return write_line(stream, &Answer::Error(why));
        }
        let policy = match self.ask_conductor(Asked::Plain(Ask::TakeOver { format, abi })) {
            Ok(Answer::Offer { policy }) => policy,
            Ok(answer) => return write_line(stream, &answer),
            Err(why) => return write_line(stream, &Answer::Error(why)),
        };
        write_line(stream, &Answer::Offer { policy: None })?;
        let Sockets { attach, admin, is_safe, maps } = &self.listening;
        let offer = offer::Offer { policy, is_safe: *is_safe, descriptors: pack::descriptors() };
        let mut fds = vec![attach.as_fd(), admin.as_fd()];
        fds.extend(maps.iter().map(|map| map.as_fd()));
        offer::send(stream, &serde_json::to_vec(&offer)?, fds.into_iter())?;
        // The other driver gets ready first.
        stream.set_read_timeout(Some(offer::PREPARATION))?;
        offer::expect(stream, offer::Word::Early)?;
        // While everything goes on: descriptors will be there twice.
        pack::make_room(pack::descriptors());
        let (reply, given) = channel();
        self.conductor.send(FromDoor::Early { reply });
        let given = given.recv().map_err(|_| std::io::Error::other("the driver is ending"))?;
        let (list, files, early) = given.into_parts()?;
        offer::send(stream, &list, files.iter().map(|file| file.as_fd()))?;
        drop(files);
        offer::expect(stream, offer::Word::Now)?;
        self.conductor.send(FromDoor::TakeOver { successor: stream.try_clone()?, early });
        Ok(())
    }

    /// Makes a tap. The observer gets the memory, maps it and says so. Then the memory is sealed, and the agent gets the tap.
    fn tap(&self, stream: &UnixStream, of: TapOf, snap_bytes: usize) -> std::io::Result<()> {
        let (made, files, offer) = Made::new(admin::tap_shape()?)?;
        let (life, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let fds = [&offer.status, &offer.control, &offer.ring, &offer.doorbell, &theirs].map(|fd| fd.as_fd());
        admin::send_with(stream, &Answer::Tap, &fds)?;
        drop((offer, theirs));
        let mut mapped = [0];
        stream.take(1).read_exact(&mut mapped)?;
        let answer = match files.seal() {
            Ok(()) => {
                let tap = Box::new(NewTap { of, snap_bytes, made, life });
                self.ask_conductor(Asked::AddTap(tap)).unwrap_or_else(Answer::Error)
            }
            Err(violation) => Answer::Error(violation.to_string()),
        };
        write_line(stream, &answer)
    }

    /// Receives descriptors from an administrator. The socket takes them from nobody else.
    fn passed(&self, stream: &UnixStream) -> Result<Vec<OwnedFd>, String> {
        let passed = || {
            match accept_descriptors(stream) {
                // Kernels that cannot refuse descriptors pass them.
                Ok(()) | Err(Errno::NOPROTOOPT) => {}
                Err(errno) => return Err(errno.into()),
            }
            write_line(stream, &Answer::Descriptors)?;
            admin::receive_descriptors(stream)
        };
        passed().map_err(|error: std::io::Error| format!("descriptors of the port: {error}"))
    }

    fn add_port(&self, name: String, port: &PortSpec, opened: Vec<OwnedFd>) -> Result<Answer, String> {
        let kind = port.kind();
        if let PortSpec::Mirror { of } = port {
            if let Some(tenant) = of.strip_prefix(OF_CONNECTIONS) {
                return self.add_mirror(name, kind, tenant);
            }
        }
        let port = match (port.make(opened)?, port) {
            (Some(made), _) => NewPort::One(Box::new(made)),
            (None, PortSpec::Mirror { of }) => NewPort::Mirror { of: of.clone() },
            (None, _) => NewPort::Link,
        };
        self.ask_conductor(Asked::AddPort { name, kind, port })
    }

    /// Adds a mirror of connections: of a tenant, or of all if the name is empty. The mirror shows them once its port is there.
    fn add_mirror(&self, name: String, kind: &'static str, tenant: &str) -> Result<Answer, String> {
        let tenant = (!tenant.is_empty()).then(|| tenant.to_owned());
        let copies = Copies::new().map_err(|errno| format!("port {name}: {errno}"))?;
        let frames = Box::new(Frames::new(Arc::clone(&copies)));
        let port = NewPort::Connections { frames, tenant: tenant.clone() };
        match self.ask_conductor(Asked::AddPort { name: name.clone(), kind, port })? {
            Answer::Done => {}
            answer => return Ok(answer),
        }
        let shown = self.ask_conductor(Asked::Show { name: name.clone(), tenant, copies });
        if !matches!(shown, Ok(Answer::Done)) {
            let _ = self.ask_conductor(Asked::Plain(Ask::PortRemove { name }));
        }
        shown
    }

    fn ask(&self, ask: Ask) -> Result<Answer, String> {
        let asked = match ask {
            Ask::Counters => return Ok(Answer::Counters),
            Ask::Apply { text } => Asked::Apply(Policy::parse(&text).map_err(|why| why.to_string())?),
            Ask::Register { name, tenant, pid, addresses, network } => {
                Asked::Register(look_up(pid, Registration { name, tenant, addresses, network })?)
            }
            ask => Asked::Plain(ask),
        };
        self.ask_conductor(asked)
    }

    fn ask_conductor(&self, asked: Asked) -> Result<Answer, String> {
        let (reply, answer) = channel();
        self.conductor.send(FromDoor::Asked { asked: Box::new(asked), reply });
        answer.recv().map_err(|_| "the driver is ending".to_owned())
    }
}

fn write_line(mut stream: &UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

fn look_up(pid: u32, registration: Registration) -> Result<Registering, String> {
    let name = registration.name.clone();
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no such process")?;
    let error = |errno: Errno| format!("process {pid} of container {name}: {errno}");
    let pidfd = Arc::new(pidfd_open(raw, PidfdFlags::NONBLOCK).map_err(error)?);
    let (namespace, namespace_fd) = network_namespace(raw).map_err(error)?;
    let cgroup = container_group(raw, &name);
    Ok(Registering { registration, pidfd, namespace, namespace_fd, cgroup })
}

/// Tells whether the process is of the driver's own user or root. A process in a container is neither, although its root is root, too: of
/// another namespace of process ids, or in control groups of a container, unless the driver is in that container itself.
fn is_administrator(stream: &UnixStream) -> bool {
    let Ok(peer) = Peer::of(stream) else { return false };
    let is_trusted = peer.uid() == 0 || peer.uid() == geteuid().as_raw();
    is_trusted
        && peer.shares_pid_namespace().unwrap_or(false)
        && !peer.is_in_another_container().unwrap_or(true)
}

impl Door {
    /// Serves administrators again once there are tokens for strangers.
    pub(super) fn reopen_desk(&mut self) {
        if self.strangers.is_full && self.strangers.bucket.has(STRANGERS, self.clock.now()) {
            self.strangers.is_full = false;
            self.learn_of(&self.admin, TOKEN_ADMIN, true);
        }
    }

    /// Counts a process that is no administrator.
    fn count_stranger(&mut self) {
        let now = self.clock.now();
        self.strangers.bucket.take(1.0);
        if !self.strangers.bucket.has(STRANGERS, now) {
            self.strangers.is_full = true;
            self.learn_of(&self.admin, TOKEN_ADMIN, false);
        }
        self.conductor.send(FromDoor::TurnedAway { refused: None });
    }

    /// Accepts an administrator, and serves it on a thread of its own.
    pub(super) fn answer_admin(&mut self) {
        let socket = match accept_with(&self.admin, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(error) => {
                self.pause(error);
                return;
            }
        };
        let stream = UnixStream::from(socket);
        let refuse = |why: &str| {
            let _ = admin::send_with(&stream, &Answer::Error(why.to_owned()), &[]);
        };
        if !is_administrator(&stream) {
            self.count_stranger();
            return refuse("the admin socket is not for processes in containers");
        }
        if self.desk.serving.fetch_add(1, Ordering::Relaxed) >= ADMINISTRATORS_MAX {
            self.desk.serving.fetch_sub(1, Ordering::Relaxed);
            return refuse("too many administrators at once: try again later");
        }
        let desk = Arc::clone(&self.desk);
        let serve = move || {
            if let Err(error) = desk.serve(&stream) {
                tracing::debug!(%error, "an administrator did not get its answer");
            }
            desk.serving.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("pd-admin".into()).spawn(serve) {
            self.desk.serving.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "cannot serve an administrator");
        }
    }
}
