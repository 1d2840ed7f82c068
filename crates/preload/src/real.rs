//! The functions behind the hooks: the next ones of their names in the order of the dynamic linker, behind the loader.
//! Looked up once each. One that this system does not have fails with `ENOSYS`.
use libc::{
    aiocb, c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, msghdr, nfds_t, off_t, pollfd, sigevent,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use pd_client::core::OfFork;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

/// Finds the next function of a name that ends with a zero byte. Never null.
pub(crate) type Next = unsafe extern "C" fn(*const c_char) -> *mut c_void;

/// As `pthread_atfork`.
pub(crate) type AtFork = unsafe extern "C" fn(OfFork, OfFork, OfFork) -> c_int;

static LOADER: OnceLock<(Next, AtFork)> = OnceLock::new();

/// Functions of the loader, which has the library's place in the order of the dynamic linker, and among those that are told of forks.
pub(crate) fn set_loader(next: Next, at_fork: AtFork) {
    let _ = LOADER.set((next, at_fork));
}

/// Has functions called before a fork, and after it in the parent and in the child.
pub(crate) fn at_fork(prepare: OfFork, parent: OfFork, child: OfFork) {
    if let Some((_, at_fork)) = LOADER.get() {
        // SAFETY: functions that live as long as the program. The loader has room for all of the library's.
        unsafe { at_fork(prepare, parent, child) };
    }
}

#[cold]
fn resolve(name: &CStr) -> *mut c_void {
    let (next, _) = LOADER.get().expect("hooks are called after the start");
    // SAFETY: a name that ends with a zero byte.
    unsafe { next(name.as_ptr()) }
}

/// Returns a function of libgcc_s, which is then there for good; None where there is no libgcc_s.
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) fn of_libgcc(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the C library's functions, with its signatures.
    unsafe {
        let open: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
            std::mem::transmute(resolve(c"dlopen"));
        let library = open(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE);
        if library.is_null() {
            return None;
        }
        let find: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            std::mem::transmute(resolve(c"dlsym"));
        Some(find(library, name.as_ptr()).cast_const()).filter(|found| !found.is_null())
    }
}

const fn name(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has one zero byte, its last"),
    }
}

macro_rules! next {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        /// The next function of this name. As safe as calling that.
        #[inline]
        #[allow(non_snake_case)] // As the C library has it.
        pub(crate) unsafe fn $name($($arg: $type),*) -> $ret {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let mut next = NEXT.load(Ordering::Relaxed);
            if next.is_null() {
                next = resolve(const { name(concat!(stringify!($name), "\0")) });
                NEXT.store(next, Ordering::Relaxed);
            }
            // SAFETY: the C library's function of this name has this signature; a variadic one takes
            // its integers and pointers in the same places.
            let next = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $ret>(next)
            };
            // SAFETY: the caller's promise.
            unsafe { next($($arg),*) }
        }
    )*};
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: libc::c_uint, last: libc::c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    preadv2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    preadv64v2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    __recvfrom_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: libc::c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    pwritev2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: libc::c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut libc::loff_t, to: c_int, to_offset: *mut libc::loff_t, len: size_t, flags: libc::c_uint) -> ssize_t;
    tee(from: c_int, to: c_int, len: size_t, flags: libc::c_uint) -> ssize_t;
    vmsplice(fd: c_int, pieces: *const iovec, count: size_t, flags: libc::c_uint) -> ssize_t;
    pipe(ends: *mut c_int) -> c_int;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut libc::epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    unshare(flags: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    sleep(seconds: c_uint) -> c_uint;
    sched_yield() -> c_int;
    usleep(time: libc::useconds_t) -> c_int;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    clock_nanosleep(clock: libc::clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    pause() -> c_int;
    pthread_cancel(thread: libc::pthread_t) -> c_int;
    sigsuspend(mask: *const sigset_t) -> c_int;
    sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int;
    sigwaitinfo(set: *const sigset_t, information: *mut libc::siginfo_t) -> c_int;
    sigtimedwait(set: *const sigset_t, information: *mut libc::siginfo_t, time: *const timespec) -> c_int;
    wait(status: *mut c_int) -> libc::pid_t;
    waitpid(process: libc::pid_t, status: *mut c_int, options: c_int) -> libc::pid_t;
    wait3(status: *mut c_int, options: c_int, usage: *mut c_void) -> libc::pid_t;
    wait4(process: libc::pid_t, status: *mut c_int, options: c_int, usage: *mut c_void) -> libc::pid_t;
    waitid(kind: libc::idtype_t, id: libc::id_t, information: *mut libc::siginfo_t, options: c_int) -> c_int;
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    setrlimit(resource: libc::c_uint, limit: *const libc::rlimit) -> c_int;
    setrlimit64(resource: libc::c_uint, limit: *const libc::rlimit) -> c_int;
    prlimit(process: libc::pid_t, resource: libc::c_uint, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int;
    prlimit64(process: libc::pid_t, resource: libc::c_uint, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int;
    mlockall(flags: c_int) -> c_int;
    munlockall() -> c_int;
    _Fork() -> libc::pid_t;
    clone(run: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut libc::pid_t, thread: *mut c_void, child: *mut libc::pid_t) -> c_int;
    prctl(option: c_int, a: libc::c_ulong, b: libc::c_ulong, c: libc::c_ulong, d: libc::c_ulong) -> c_int;
    aio_read(block: *mut aiocb) -> c_int;
    aio_read64(block: *mut aiocb) -> c_int;
    aio_write(block: *mut aiocb) -> c_int;
    aio_write64(block: *mut aiocb) -> c_int;
    aio_fsync(kind: c_int, block: *mut aiocb) -> c_int;
    aio_fsync64(kind: c_int, block: *mut aiocb) -> c_int;
    aio_error(block: *const aiocb) -> c_int;
    aio_error64(block: *const aiocb) -> c_int;
    aio_suspend(list: *const *const aiocb, count: c_int, timeout: *const timespec) -> c_int;
    aio_suspend64(list: *const *const aiocb, count: c_int, timeout: *const timespec) -> c_int;
    aio_cancel(fd: c_int, block: *mut aiocb) -> c_int;
    aio_cancel64(fd: c_int, block: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    chroot(path: *const c_char) -> c_int;
    setuid(user: libc::uid_t) -> c_int;
    seteuid(user: libc::uid_t) -> c_int;
    setreuid(user: libc::uid_t, effective: libc::uid_t) -> c_int;
    setresuid(user: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fileno(stream: *mut libc::FILE) -> c_int;
    fileno_unlocked(stream: *mut libc::FILE) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
}

/// A system call, past the C library.
///
/// # Safety
/// As for the call.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's convention; memory is the caller's business.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") arguments[0],
            in("rsi") arguments[1], in("rdx") arguments[2], in("r10") arguments[3], in("r8") arguments[4],
            in("r9") arguments[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// A system call, past the C library.
///
/// # Safety
/// As for the call.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's convention; memory is the caller's business.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") arguments[0] as isize => result,
            in("x1") arguments[1], in("x2") arguments[2], in("x3") arguments[3], in("x4") arguments[4],
            in("x5") arguments[5], options(nostack));
    }
    result
}
