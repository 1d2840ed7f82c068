//! What a descriptor stands for: a TCP socket, an epoll instance or a pipe. Descriptors made by `dup` share an
//! entry, as they share the kernel's open file.
pub(crate) mod listener;

use self::listener::Listener;
use crate::address::is_nonblocking;
use crate::aside::leaving;
use crate::away::Away;
use crate::call::{self, lock, Failure, Outcome};
use crate::epoll_set::{self, EpollSet};
use crate::fabric::{self, Taken};
use crate::pipe::Pipe;
use crate::short::facts::Facts;
use crate::short::reuse;
use crate::twin::{self, Twin};
use crate::unclaimed::settling;
use crate::{address, table, unix};
use libc::c_int;
use pd_client::core::KernelReason;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A TCP socket, an epoll instance, or a pipe that is spliced by.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its numbers in this process.
    fds: Mutex<Vec<c_int>>,
    /// One of them when the kernel got the connection, for calls that had begun; -1: it has not.
    left_as: AtomicI32,
    pub(crate) thing: Thing,
}

#[derive(Debug)]
pub(crate) enum Thing {
    Socket(Socket),
    Epoll(EpollSet),
    Pipe(Arc<Pipe>),
}

/// A TCP socket that is not yet plain for good.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    state: OnceLock<State>,
    /// A [`KernelReason`]: what the program has asked for that the fabric does not have. 0: nothing.
    unfit: AtomicU32,
    pub(crate) facts: Facts,
    /// Of AF_UNIX, not TCP.
    pub(crate) unix: AtomicBool,
    /// It was on the fabric, and may come back.
    pub(crate) away: OnceLock<Away>,
    /// Epoll instances that it is in.
    pub(crate) watchers: Mutex<Vec<Watcher>>,
}

/// How far it has come. Without a state: not connected, not listening.
#[derive(Debug)]
pub(crate) enum State {
    Listener(Listener),
    Twin(Box<Twin>),
}

/// One registration in an epoll instance.
#[derive(Clone, Debug)]
pub(crate) struct Watcher {
    pub(crate) instance: Weak<Entry>,
    pub(crate) fd: c_int,
    pub(crate) event: (u32, u64),
}

impl Watcher {
    pub(crate) fn new(instance: &Arc<Entry>, fd: c_int, event: (u32, u64)) -> Self {
        Self { instance: Arc::downgrade(instance), fd, event }
    }

    /// Whether it is this registration, by whichever number of the instance.
    pub(crate) fn is(&self, instance: &Arc<Entry>, fd: c_int) -> bool {
        self.fd == fd && std::ptr::eq(self.instance.as_ptr(), Arc::as_ptr(instance))
    }
}

impl Entry {
    pub(crate) fn new(thing: Thing) -> Arc<Self> {
        Arc::new(Self { fds: Mutex::default(), left_as: AtomicI32::new(-1), thing })
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        match &self.thing {
            Thing::Socket(socket) => Some(socket),
            _ => None,
        }
    }

    pub(crate) fn epoll(&self) -> Option<&EpollSet> {
        match &self.thing {
            Thing::Epoll(set) => Some(set),
            _ => None,
        }
    }

    pub(crate) fn pipe(&self) -> Option<&Arc<Pipe>> {
        match &self.thing {
            Thing::Pipe(pipe) => Some(pipe),
            _ => None,
        }
    }

    pub(crate) fn twin(&self) -> Option<&Twin> {
        match self.socket()?.state.get()? {
            State::Twin(twin) => Some(twin),
            State::Listener(_) => None,
        }
    }

    pub(crate) fn add_fd(&self, fd: c_int) {
        lock(&self.fds).push(fd);
    }

    /// Its numbers.
    pub(crate) fn fds(&self) -> Vec<c_int> {
        lock(&self.fds).clone()
    }

    /// Any of its numbers.
    pub(crate) fn any_fd(&self) -> Option<c_int> {
        lock(&self.fds).first().copied()
    }

    /// The same for a call that goes on in the kernel, which may have got the connection meanwhile.
    pub(crate) fn kernels_fd(&self) -> Option<c_int> {
        self.any_fd().or_else(|| Some(self.left_as.load(Ordering::Acquire)).filter(|&fd| fd >= 0))
    }

    fn take_fds(&self) -> Vec<c_int> {
        let mut fds = lock(&self.fds);
        if let Some(&fd) = fds.first() {
            self.left_as.store(fd, Ordering::Release);
        }
        std::mem::take(&mut fds)
    }

    /// A number is about to be closed.
    pub(crate) fn before_close(self: &Arc<Self>, fd: c_int) {
        if let Some(pipe) = self.pipe() {
            return pipe.expose();
        }
        if lock(&self.fds).len() != 1 {
            return;
        }
        epoll_set::leave_all(self);
        match self.socket().and_then(|socket| socket.state.get()) {
            Some(State::Listener(_)) => fabric::unlisten(fd),
            Some(State::Twin(twin)) => {
                twin.note_reset(self, fd);
                if !twin.is_shared() {
                    settling::settle_before_close(self);
                    reuse::keep(fd, self, twin);
                }
            }
            _ => {}
        }
    }

    /// A number is closed; with the last one the thing ends for this process. The kernel's is closed
    /// first: whether another process holds it, too, decides what becomes of a twin.
    pub(crate) fn drop_fd(self: &Arc<Self>, fd: c_int) {
        let last = {
            let mut fds = lock(&self.fds);
            fds.retain(|&known| known != fd);
            fds.is_empty()
        };
        if !last {
            return;
        }
        match &self.thing {
            Thing::Epoll(set) => set.close(self),
            Thing::Pipe(_) => {}
            Thing::Socket(socket) => {
                epoll_set::leave_all(self);
                if let Some(away) = socket.away.get().filter(|_| socket.is_away()) {
                    away.end();
                }
                match socket.state.get() {
                    Some(State::Twin(twin)) => twin.close(),
                    Some(State::Listener(listener)) => listener.short.close(),
                    None => {}
                }
            }
        }
    }

    /// It has left the fabric, and may come back: its numbers are `away`'s.
    pub(crate) fn hand_to(&self, away: &Arc<Self>) {
        for fd in self.take_fds() {
            table::set(fd, away);
        }
    }

    /// It is plain from now on: all its numbers are, and nobody looks at it any more.
    pub(crate) fn give_up(&self) {
        for fd in self.take_fds() {
            table::clear(fd);
        }
    }
}

impl Entry {
    /// The program wants a signal for each event: only the kernel sends those.
    pub(crate) fn wants_signals(self: &Arc<Self>) {
        if let Some(socket) = self.socket().filter(|socket| socket.is_fresh()) {
            socket.make_unfit(KernelReason::Signals);
        }
        if let Some(twin) = self.twin() {
            leaving::leave(self, twin, KernelReason::Signals);
        }
    }
}

impl Socket {
    pub(crate) fn state(&self) -> Option<&State> {
        self.state.get()
    }

    /// The twin of one that comes back.
    pub(crate) fn set_twin(&self, twin: Twin) {
        let _ = self.state.set(State::Twin(Box::new(twin)));
    }

    /// What of it the fabric does not have, if anything.
    pub(crate) fn unfit(&self) -> Option<KernelReason> {
        KernelReason::from_raw(self.unfit.load(Ordering::Relaxed))
    }

    /// The program has asked for something that the fabric does not have.
    pub(crate) fn make_unfit(&self, reason: KernelReason) {
        self.unfit.store(reason as u32, Ordering::Relaxed);
    }

    /// Whether it is in epoll instances.
    pub(crate) fn is_watched(&self) -> bool {
        !lock(&self.watchers).is_empty()
    }

    /// Whether the kernel has it, from where it may come back.
    pub(crate) fn is_away(&self) -> bool {
        self.away.get().is_some() && self.state.get().is_none()
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.state.get().is_none()
    }

    /// It listens: see [`Listener::join`]. Says whether what is accepted may have a twin.
    pub(crate) fn join_listener(&self, fd: c_int) -> bool {
        match self.state.get_or_init(|| State::Listener(Listener::default())) {
            State::Listener(listener) => listener.join(fd),
            State::Twin(_) => false,
        }
    }

    /// Of a listener that this process may not speak for: twins of what it accepts are to be asked for one by one.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.state(), Some(State::Listener(listener)) if listener.is_refused())
    }
}

/// An entry of a socket, not yet in the table.
pub(crate) fn make(state: Option<State>) -> Arc<Entry> {
    let socket = Socket::default();
    if let Some(state) = state {
        let _ = socket.state.set(state);
    }
    Entry::new(Thing::Socket(socket))
}

/// Gives a number that has none an entry as a socket. None if that cannot be.
pub(crate) fn adopt(fd: c_int, state: Option<State>) -> Option<Arc<Entry>> {
    let entry = make(state);
    table::set(fd, &entry).then_some(entry)
}

/// The connection of a socket that has an entry, or of one that gets one, has a twin from now on.
pub(crate) fn attach_twin(fd: c_int, twin: Twin) {
    let state = State::Twin(Box::new(twin));
    let entry = match table::entry(fd) {
        Some(entry) => {
            if let Some(socket) = entry.socket() {
                let _ = socket.state.set(state);
            }
            entry
        }
        None => match adopt(fd, Some(state)) {
            Some(entry) => entry,
            None => return,
        },
    };
    if let Some(twin) = entry.twin() {
        move_watchers(&entry);
        twin.register(&entry);
    }
}

/// Where a connection was waited for in the kernel it is from now on by its twin.
pub(crate) fn move_watchers(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    let watchers = std::mem::take(&mut *lock(&socket.watchers));
    for watcher in watchers {
        epoll_set::move_over(entry, watcher);
    }
}

/// The entry of a socket, looking at what it is if it was inherited.
pub(crate) fn find(fd: c_int) -> Option<Arc<Entry>> {
    match table::look(fd) {
        table::SOCKET => table::entry(fd),
        table::INHERITED => resolve(fd),
        table::PIPE => {
            expose(fd);
            None
        }
        table::FRESH => {
            let entry = make(None);
            entry.socket()?.facts.set_nonblocking(is_nonblocking(fd));
            table::set_fresh(fd, entry)
        }
        _ => None,
    }
}

/// Makes a pipe the kernel's for good, with what is lent to it.
#[cold]
pub(crate) fn expose(fd: c_int) {
    if let Some(entry) = table::entry(fd) {
        entry.pipe().inspect(|pipe| pipe.expose());
        if entry.pipe().is_some() {
            entry.give_up();
        }
    }
}

/// The pipe that a number is a private end of.
pub(crate) fn pipe(fd: c_int) -> Option<Arc<Pipe>> {
    if table::look(fd) != table::PIPE {
        return None;
    }
    table::entry(fd)?.pipe().cloned()
}

/// Something is done with a descriptor other than splicing; another process may get it.
pub(crate) fn passes(fd: c_int) {
    match table::look(fd) {
        table::PIPE => call::aside(|| expose(fd)),
        table::SOCKET => call::aside(|| {
            if let Some(entry) = table::entry(fd) {
                entry.twin().inspect(|twin| twin.lender.forbid());
            }
        }),
        _ => {}
    }
}

/// A number is about to stand for something else.
pub(crate) fn replaced(fd: c_int) {
    if table::look(fd) == table::PIPE && !table::is_borrowed() {
        call::aside(|| expose(fd));
    }
}

/// The same of an epoll instance, too.
pub(crate) fn find_any(fd: c_int) -> Option<Arc<Entry>> {
    match table::look(fd) {
        table::EPOLL | table::BARE => table::epoll(fd),
        _ => find(fd),
    }
}

/// The entry of a connection with a twin; the call is the kernel's otherwise.
pub(crate) fn twinned(fd: c_int) -> Outcome<Arc<Entry>> {
    let Some(entry) = find(fd) else {
        return Err(if table::look(fd) == table::AWAY { Failure::Kernel } else { Failure::Plain });
    };
    if entry.twin().is_some() {
        Ok(entry)
    } else {
        reuse::renew(&entry);
        Err(Failure::Plain)
    }
}

/// Whether a TCP socket has a port.
fn is_bound(fd: c_int) -> bool {
    address::local(fd).is_some_and(|(_, local)| local.port() != 0)
}

/// Looks at a socket that came from another image or process.
#[cold]
fn resolve(fd: c_int) -> Option<Arc<Entry>> {
    table::clear(fd);
    let unix = !address::is_tcp(fd);
    if unix && !unix::is_unix(fd) {
        return None;
    }
    if address::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1) {
        if unix && !unix::may_listen(fd) {
            return None;
        }
        let entry = adopt(fd, None)?;
        entry.socket()?.unix.store(unix, Ordering::Relaxed);
        entry.socket()?.facts.set_nonblocking(is_nonblocking(fd));
        entry.socket()?.join_listener(fd);
        return Some(entry);
    }
    let connected = if unix { unix::connected(fd) } else { address::peer(fd).map(|_| true) };
    match connected {
        // One whose connection has ended in both directions has no peer either, but perhaps bytes on the fabric.
        None if !unix && is_bound(fd) => {}
        None => {
            let entry = adopt(fd, None)?;
            entry.socket()?.unix.store(unix, Ordering::Relaxed);
            return Some(entry);
        }
        Some(false) => return None,
        Some(true) => {}
    }
    match fabric::take(fd, false) {
        Taken::None | Taken::Departed if connected.is_none() => return adopt(fd, None),
        Taken::None | Taken::Departed => return None,
        Taken::Twin(socket) => {
            // Another program may have wanted it.
            twin::may_linger();
            attach_twin(fd, Twin::new(fd, socket.clone(), false).taken());
            if let Some(entry) = table::entry(fd).filter(|_| socket.is_taken_aside()) {
                entry.twin().map(|twin| twin.go_on_aside(&entry, &socket));
            }
        }
        // It came back to where it was sent from.
        Taken::Own => table::set(fd, &table::find_twin(address::cookie(fd)?)?).then_some(())?,
    }
    table::entry(fd)
}
