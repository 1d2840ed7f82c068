//! Start of the library in a program, and of a forked child.
use crate::away::calls;
use crate::claim::settling;
use crate::entry::{self, Entry, State, Thing};
use crate::epoll_set::{self, carrying, instances};
use crate::hooks::{self, stdio};
use crate::pipe::numbers;
use crate::short::{begun, passing};
use crate::{
    aio, call, carried, confined, fallback_cache, heap, image, inherited, local, log, pipe, port, real,
    shared, short, table,
};
use libc::{c_char, c_int, c_void};
use pd_client::core::{setting, StaticLock};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

/// Lowest number of the library's own descriptors where the limit permits. The kernel's table of
/// descriptors grows up to the highest, and a fork copies it.
const OWN_FDS_FROM: c_int = 4096;

/// The loader's facts: `struct facts` of `loader/loader.c`.
#[repr(C)]
pub struct Facts {
    next: real::Next,
    local_offset: isize,
    local_bytes: usize,
    at_fork: real::AtFork,
    settings: *const *const c_char,
    is_given_any: c_int,
}

/// The library proper as the loader knows it: `struct core` of `loader/loader.c`.
#[repr(C)]
pub struct Core {
    build: u64,
    start: unsafe extern "C" fn(*const Facts) -> c_int,
    leaving: extern "C" fn(),
    environment: unsafe extern "C" fn(*const *const c_char, c_int) -> *const *const c_char,
    deep: &'static AtomicPtr<()>,
    hooks: [*const c_void; hooks::table::TABLE.len()],
}

// SAFETY: the pointers are to functions.
unsafe impl Sync for Core {}

/// Found by the loader.
#[no_mangle]
#[allow(non_upper_case_globals)] // As the loader has it.
pub static pd_preload_core: Core = Core {
    build: hooks::table::BUILD,
    start: begin,
    leaving,
    environment: image::environment,
    deep: &DEEP,
    hooks: hooks::table::TABLE,
};

/// Called by the loader once this library is there. Returns whether hooks are to be put in place.
unsafe extern "C" fn begin(facts: *const Facts) -> c_int {
    // SAFETY: the loader's facts, which are there during the call.
    let facts = unsafe { &*facts };
    #[cfg(target_arch = "x86_64")]
    if !local::set(facts.local_offset, facts.local_bytes) {
        return 0;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (facts.local_offset, facts.local_bytes);
    real::set_loader(facts.next, facts.at_fork);
    // SAFETY: the loader's array, which nobody changes.
    unsafe { pd_client::core::set_settings(facts.settings) };
    call::aside(|| start(facts.is_given_any != 0));
    table::enabled().into()
}

fn start(is_given_any: bool) {
    let mode = setting("PD_PRELOAD");
    let is = |name: &str| mode.as_ref().is_some_and(|mode| mode == name);
    if is("short") {
        short::want();
    }
    if is("all") {
        fallback_cache::want_all();
    }
    let place = setting("PD_PRELOAD_LOG").filter(|place| !place.is_empty());
    log::set_place(place.and_then(|place| CString::new(place.into_vec()).ok()));
    table::set_process();
    heap::keep_reserve();
    heap::see_forks();
    pd_client::core::set_floor(floor());
    pd_client::core::prepare(real::at_fork);
    let (instances, files) = if is_given_any { inherited::mark_all() } else { Default::default() };
    stdio::replace_standard_streams();
    hooks::signal::take_over();
    real::at_fork(Some(before_fork), None, Some(in_child));
    image::keep_environment();
    table::enable();
    for &fd in &instances {
        instances::received(fd);
        let is_socket = |record: &carried::Record| table::look(record.fd) == table::INHERITED;
        carrying::inherited(carried::in_kernel(fd).into_iter().filter(is_socket).collect());
    }
    files.into_iter().for_each(|fd| carrying::inherited(carried::read(fd)));
}

/// Numbers that programs hardly get to: the last eighth, or [`OWN_FDS_FROM`].
fn floor() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: room for a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let most = limit.rlim_cur.min(libc::rlim_t::from(u32::MAX >> 1));
    c_int::try_from(most - most / 8).unwrap_or(OWN_FDS_FROM).min(OWN_FDS_FROM)
}

/// Called by the loader before each call by which a process gets another one's descriptors, other than `fork`, or another image.
pub(crate) extern "C" fn leaving() {
    if pipe::any() && !table::is_borrowed() {
        call::aside(numbers::expose_all);
    }
    call::aside(mark_twins);
    call::aside(carrying::carry);
}

/// The loader's function that leads references of objects to the hooks, while there may be some that were bound past them.
static DEEP: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Called before the program gets another socket.
#[inline]
pub(crate) fn bind_deep_objects() {
    if !DEEP.load(Ordering::Relaxed).is_null() {
        bind_now();
    }
}

#[cold]
fn bind_now() {
    let function = DEEP.swap(std::ptr::null_mut(), Ordering::Acquire);
    if !function.is_null() {
        // SAFETY: what the loader puts there.
        unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(function)() };
    }
}

/// Marks the sockets of all twins for whoever gets them. A child of `vfork` finds those of its parent marked.
fn mark_twins() {
    if table::is_borrowed() {
        return;
    }
    for fd in (0..table::end()).filter(|&fd| table::look(fd) == table::SOCKET) {
        if let Some(entry) = table::entry(fd) {
            entry.twin().into_iter().for_each(|twin| twin.mark(fd));
        }
    }
}

/// Does what is done before a fork that the C library does not report.
pub(crate) fn about_to_fork() {
    before_fork();
    pd_client::core::before_fork();
    heap::before_fork();
}

/// Does what is done after a fork that the C library does not report, in the parent and in the child.
pub(crate) fn after_fork(is_child: bool) {
    heap::after_fork();
    if is_child {
        pd_client::core::in_child();
        in_child();
    } else {
        pd_client::core::after_fork();
    }
}

/// The child will have all twins, too: from now on they are shared.
extern "C" fn before_fork() {
    call::aside(|| {
        numbers::expose_all();
        confined::before_fork();
        passing::before_fork();
        let mut seen = HashSet::new();
        for fd in 0..table::end() {
            calls::stays(fd);
            if table::look(fd) != table::SOCKET {
                continue;
            }
            if let Some(entry) = table::entry(fd) {
                // A child's bytes could not be told from those that were kept before.
                settling::settle_now(&entry);
                if let Some(twin) = entry.twin().filter(|_| table::look(fd) == table::SOCKET) {
                    if seen.insert(Arc::as_ptr(&entry)) {
                        twin.share(&entry);
                    }
                }
            }
        }
        if table::end() > 0 {
            port::prepare();
        }
        pd_client::core::hold(&LOCKS);
    });
}

/// Locks that a fork holds until the client library's part of it lets go.
static LOCKS: [&dyn StaticLock; 10] = [
    &begun::SETTLING,
    &begun::BEGUN,
    &begun::FOUND,
    &settling::WAITING,
    &instances::HOSTING,
    &instances::HOSTED,
    &epoll_set::SENT,
    &carried::LAST,
    &image::MADE,
    &stdio::STREAMS,
];

/// The table is made anew: the old entries are the parent's, and other threads of its may have been at
/// work on them.
extern "C" fn in_child() {
    call::aside(|| {
        shared::in_child();
        table::set_process();
        settling::forget();
        aio::forget();
        passing::forget();
        instances::forget_all();
        let mut made: HashMap<*const Entry, Arc<Entry>> = HashMap::new();
        let mut all = Vec::new();
        for (fd, old) in table::forget_all() {
            let new = made.entry(Arc::as_ptr(&old)).or_insert_with(|| again(&old)).clone();
            all.push((fd, old, new));
        }
        for (fd, _, new) in &all {
            table::set(*fd, new);
        }
        let mut seen = HashSet::new();
        for (_, old, new) in all {
            if seen.insert(Arc::as_ptr(&old)) {
                carrying::inherit(&old, &new, |known| made.get(&known).cloned());
            }
            std::mem::forget(old);
        }
    });
}

fn again(old: &Entry) -> Arc<Entry> {
    let socket = match &old.thing {
        Thing::Epoll(set) => return Entry::new(Thing::Epoll(set.in_child())),
        Thing::Pipe(pipe) => return Entry::new(Thing::Pipe(pipe.clone())),
        Thing::Socket(socket) => socket,
    };
    // A thread of the parent's that holds the lock is changing it.
    let watched = socket.watchers.try_lock().map_or(true, |watchers| !watchers.is_empty());
    let state = socket.state().map(|state| match state {
        State::Listener(listener) => State::Listener(listener.again(watched)),
        State::Twin(twin) => State::Twin(Box::new(twin.in_child())),
    });
    let entry = entry::make(state);
    if let Some(new) = entry.socket() {
        if let Some(reason) = socket.unfit() {
            new.make_unfit(reason);
        }
        new.facts.set_nonblocking(socket.facts.nonblocking());
        new.facts.behind.again(&socket.facts.behind);
        new.unix.store(socket.unix.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    entry
}
