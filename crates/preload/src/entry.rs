//! Objects behind descriptors: a TCP socket, an epoll instance or a pipe. Descriptors made by `dup` share an
//! entry, as they share the kernel's open file.
pub(crate) mod listener;

use self::listener::Listener;
use crate::away::Away;
use crate::call::lock;
use crate::epoll_set::EpollSet;
use crate::open_file::OpenFile;
use crate::pipe::Pipe;
use crate::short::facts::Facts;
use crate::twin::Twin;
use libc::c_int;
use pd_client::core::KernelReason;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A TCP socket, an epoll instance, or a pipe that is spliced by.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its numbers in this process.
    fds: Mutex<Vec<c_int>>,
    /// One of them when the kernel got the connection, for calls that had begun; -1: it has not.
    left_as: AtomicI32,
    /// The open file of those numbers, as long as there is one.
    file: Mutex<Weak<OpenFile<Entry>>>,
    /// Calls that have slept.
    sleepers: AtomicUsize,
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
    /// Set once the connection has left the fabric, to which it may come back.
    pub(crate) away: OnceLock<Away>,
    /// Epoll instances that it is in.
    pub(crate) watchers: Mutex<Vec<Watcher>>,
}

/// State of a socket. Without one it is neither connected nor listening.
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
    /// A one-shot registration that had reported when this process was forked, until the connection is taken over.
    pub(crate) spent: bool,
}

impl Watcher {
    pub(crate) fn new(instance: &Arc<Entry>, fd: c_int, event: (u32, u64)) -> Self {
        Self { instance: Arc::downgrade(instance), fd, event, spent: false }
    }

    /// Returns whether it is this registration, by whichever number of the instance.
    pub(crate) fn is(&self, instance: &Arc<Entry>, fd: c_int) -> bool {
        self.fd == fd && std::ptr::eq(self.instance.as_ptr(), Arc::as_ptr(instance))
    }
}

impl Entry {
    pub(crate) fn new(thing: Thing) -> Arc<Self> {
        let left_as = AtomicI32::new(-1);
        Arc::new(Self {
            fds: Mutex::default(),
            left_as,
            file: Mutex::default(),
            sleepers: AtomicUsize::new(0),
            thing,
        })
    }

    /// Returns its open file, for one number more.
    pub(crate) fn file(self: &Arc<Self>) -> Arc<OpenFile<Self>> {
        OpenFile::of(self, &self.file)
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

    /// Returns any number for a call that goes on in the kernel, which may have got the connection meanwhile.
    pub(crate) fn kernels_fd(&self) -> Option<c_int> {
        let kept = || {
            let file = lock(&self.file).upgrade();
            file.and_then(|file| file.number())
        };
        self.any_fd()
            .or_else(kept)
            .or_else(|| Some(self.left_as.load(Ordering::Acquire)).filter(|&fd| fd >= 0))
    }

    /// A call is about to sleep. It goes on with the open file, whatever becomes of the number.
    pub(crate) fn sleeps(&self) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        Sleeper(self)
    }

    /// Returns the open file of its numbers for calls that have slept, if there are any.
    pub(crate) fn file_of_sleepers(&self) -> Option<Arc<OpenFile<Self>>> {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return None;
        }
        lock(&self.file).upgrade()
    }

    /// One of its numbers is closed. True: it was the last one.
    pub(crate) fn remove_fd(&self, fd: c_int) -> bool {
        let mut fds = lock(&self.fds);
        fds.retain(|&known| known != fd);
        fds.is_empty()
    }

    /// Its last number is about to be closed: it goes on with another one, which is not in the table. Returns false if it has got a further number
    /// meanwhile.
    pub(crate) fn move_to(&self, from: c_int, to: c_int) -> bool {
        let mut fds = lock(&self.fds);
        let is_last = *fds == [from];
        if is_last {
            *fds = vec![to];
        }
        is_last
    }

    /// Returns whether it has one number.
    pub(crate) fn has_one_fd(&self) -> bool {
        lock(&self.fds).len() == 1
    }

    /// Has no numbers from now on. Returns those that it had.
    pub(crate) fn take_fds(&self) -> Vec<c_int> {
        let mut fds = lock(&self.fds);
        if let Some(&fd) = fds.first() {
            self.left_as.store(fd, Ordering::Release);
        }
        std::mem::take(&mut fds)
    }
}

/// A call that has slept.
#[derive(Debug)]
pub(crate) struct Sleeper<'a>(&'a Entry);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Socket {
    pub(crate) fn state(&self) -> Option<&State> {
        self.state.get()
    }

    /// Its connection has a twin.
    pub(crate) fn set_twin(&self, twin: Box<Twin>) -> Result<(), Box<Twin>> {
        self.state.set(State::Twin(twin)).map_err(|refused| match refused {
            State::Twin(twin) => twin,
            State::Listener(_) => unreachable!("a twin was to be set"),
        })
    }

    /// Returns the property that keeps the socket off the fabric, if there is one.
    pub(crate) fn unfit(&self) -> Option<KernelReason> {
        KernelReason::from_raw(self.unfit.load(Ordering::Relaxed))
    }

    /// The program has asked for something that the fabric does not have.
    pub(crate) fn make_unfit(&self, reason: KernelReason) {
        self.unfit.store(reason as u32, Ordering::Relaxed);
    }

    /// Returns whether it is in epoll instances.
    pub(crate) fn is_watched(&self) -> bool {
        !lock(&self.watchers).is_empty()
    }

    /// Returns whether the kernel has it, from where it may come back.
    pub(crate) fn is_away(&self) -> bool {
        self.away.get().is_some() && self.state.get().is_none()
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.state.get().is_none()
    }

    /// Listens: see [`Listener::join`]. Says whether accepted connections may have twins.
    pub(crate) fn join_listener(&self, fd: c_int) -> bool {
        match self.state.get_or_init(|| State::Listener(Listener::default())) {
            State::Listener(listener) => listener.join(fd),
            State::Twin(_) => false,
        }
    }

    /// Of a listener that this process may not register: twins of what it accepts are to be asked for one by one.
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
