//! Attachment of a process to the driver, made when it is first needed, and the steps at forks and at the end of the program.
use crate::arena;
use crate::attachment::Attachment;
use crate::error::Result;
use crate::forks::{self, count_fork};
use crate::kept;
use crate::patience::Patience;
use crate::per_process::PerProcess;
use crate::setting::{known_socket_path, remember_socket_path};
use crate::sockets;
use crate::turn::lock;
use pd_abi::KernelReason;
use pd_shm::{barrier, spinning_allowed};
use rustix::fs::{accessat, Access, AtFlags, CWD};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest time that a normal exit waits for delivery of sends.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(5);

static ATTACHED: PerProcess<Attached> = PerProcess::new();
static HOOKED: AtomicBool = AtomicBool::new(false);
static FORKS_SEEN: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Default)]
struct Attached {
    attachment: Mutex<Option<Arc<Attachment>>>,
    /// When the driver of an earlier attachment was followed by another.
    reattached: Mutex<Option<Instant>>,
}

/// From now on forked children are told apart, and the end of the program waits for what was sent. Call before the process has
/// objects of the library's.
pub(crate) fn begin() {
    if !HOOKED.load(Ordering::Acquire) {
        hook();
    }
}

#[cold]
fn hook() {
    if !HOOKED.swap(true, Ordering::AcqRel) {
        see_forks(at_fork);
        // SAFETY: a function without arguments that lives as long as the program.
        unsafe { libc::atexit(at_exit) };
        barrier::register_early();
    }
}

/// From now on forked children are told apart.
fn see_forks(at_fork: AtFork) {
    if !FORKS_SEEN.swap(true, Ordering::AcqRel) {
        at_fork(Some(before_fork), Some(after_fork), Some(in_child));
    }
}

/// Called around forks.
pub type OfFork = Option<extern "C" fn()>;
/// Has functions called before a fork, and after it in the parent and in the child.
pub type AtFork = fn(OfFork, OfFork, OfFork);

fn at_fork(prepare: OfFork, parent: OfFork, child: OfFork) {
    let as_libc = |function: OfFork| function.map(|it| it as unsafe extern "C" fn());
    // SAFETY: functions without arguments that live as long as the program.
    unsafe { libc::pthread_atfork(as_libc(prepare), as_libc(parent), as_libc(child)) };
}

/// Does what is to be done before the program has threads, or clears its environment: looks where the driver is, now and for
/// good, and registers for barriers. What is told of forks after this, by `at_fork`, is told when the library knows of them.
pub fn prepare(at_fork: AtFork) {
    remember_socket_path();
    kept::prepare();
    see_forks(at_fork);
    barrier::register_early();
}

/// Attaches to the driver, unless the process is attached.
///
/// # Errors
/// `ENETDOWN` without a driver, `EACCES` if its socket is not for this user or its policy does not let the
/// process in.
pub fn attach() -> Result<()> {
    attachment().map(drop)
}

/// Tells whether the process is attached to a driver that lives. Makes no system call.
pub fn is_attached() -> bool {
    living_attachment().is_some()
}

/// Returns the attachment, if the process has one to a driver that lives. Makes no system call.
pub(crate) fn living_attachment() -> Option<Arc<Attachment>> {
    lock(&ATTACHED.made()?.attachment).clone().filter(|attachment| attachment.alive())
}

/// Tells whether the driver's socket is where this process can connect to it, as the file system has it.
pub fn is_driver_near() -> bool {
    let flags = AtFlags::EACCESS;
    accessat(CWD, known_socket_path(), Access::WRITE_OK, flags).is_ok()
}

/// Tells the driver why a connection of this process is the kernel's, if the process is attached. `inode` is that of
/// its socket, or 0 for any that no other reason is told of. Takes no call of the kernel's and no time of the driver's.
pub fn stays_on_kernel(reason: KernelReason, inode: u32) {
    if let Some(attachment) = last_attachment() {
        attachment.stays_on_kernel(reason, inode);
    }
}

/// Does what is to be done before a fork. For forks of which the C library tells nobody, as the next two.
pub extern "C" fn before_fork() {
    // Begins what begins at first use: no other thread is about to.
    let _ = spinning_allowed();
    let locks = crate::own::LOCKS.into_iter().chain([crate::kernel::LOCK]);
    forks::hold(&locks.collect::<Vec<_>>());
}

/// Does in the parent what is to be done after a fork, or after one that failed.
pub extern "C" fn after_fork() {
    forks::let_go();
}

/// Does in a forked child what is to be done there.
pub extern "C" fn in_child() {
    forks::let_go();
    crate::own::close_inherited();
    crate::kernel::close_inherited();
    crate::handlers::in_child();
    count_fork();
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(wait_for_sends);
}

/// The attachment; attaches if there is none or the driver of the last one has gone.
pub(crate) fn attachment() -> Result<Arc<Attachment>> {
    begin();
    let attached = ATTACHED.get();
    let mut slot = lock(&attached.attachment);
    if let Some(attachment) = slot.as_ref().filter(|attachment| attachment.alive()) {
        return Ok(attachment.clone());
    }
    let attachment = Attachment::new()?;
    if slot.replace(attachment.clone()).is_some() {
        *lock(&attached.reattached) = Some(Instant::now());
    }
    sockets::reap_all();
    arena::release_dead();
    Ok(attachment)
}

/// The attachment that was made last, if any. Its driver may have gone.
fn last_attachment() -> Option<Arc<Attachment>> {
    begin();
    lock(&ATTACHED.get().attachment).clone()
}

/// Tells whether the driver is another one since less than `time`, so that others may not yet be attached again.
pub(crate) fn reattached_within(time: Duration) -> bool {
    lock(&ATTACHED.get().reattached).is_some_and(|at| at.elapsed() < time)
}

/// Looks whether the driver is still there.
pub(crate) fn check_driver() {
    if let Some(attachment) = last_attachment() {
        attachment.check_alive();
    }
}

fn wait_for_sends() {
    let mut patience = Patience::new(EXIT_WAIT_MAX);
    let mut pause = Duration::from_micros(20);
    let mut slept = Duration::ZERO;
    while sockets::undelivered() && patience.lasts() {
        std::thread::sleep(pause);
        slept += pause;
        pause = (pause * 2).min(Duration::from_millis(5));
        if slept >= Duration::from_millis(250) {
            slept = Duration::ZERO;
            check_driver();
        }
    }
}
