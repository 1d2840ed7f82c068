//! `syscall`: programs that go past the C library's functions by its own means. What a function of the library's does for a
//! descriptor it does for the call of the same name.
use super::{
    descriptor, epoll, fork, hooks, limit, move_data, names, poll, receive, sandbox, send, socket, splice,
    submit,
};
use crate::call::set_errno;
use crate::{hearsay, reach, real, start, table};
use libc::{c_int, c_long, c_ulong, timespec};
use pd_client::core::SET_BYTES;

/// As the system call has them.
type Arguments = [usize; 6];

hooks! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let arguments = [a, b, c, d, e, f];
        let done = any(number, arguments).or_else(|| waits(number, arguments)).or_else(|| {
            if table::look(a as c_int) == table::PLAIN { None } else { on_known(number, arguments) }
        });
        if let Some(done) = done {
            return done;
        }
        let done = fork::by_system_call(number, arguments).unwrap_or_else(|| real::system_call(number, arguments));
        checked(if number == libc::SYS_futex { hearsay::told_outside(done) } else { done })
    }
}

/// Sets errno as the C library does after a system call.
fn checked(result: isize) -> c_long {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result as c_long
}

/// Calls that make a descriptor, change what a number stands for, or are about one that the table does not know of.
unsafe fn any(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the caller's promises are those of the call.
    let done = unsafe {
        match number {
            // Its waits would be for the kernel's sockets. Containers often do without it, so programs can.
            libc::SYS_io_uring_setup if table::enabled() => {
                set_errno(libc::ENOSYS);
                -1
            }
            libc::SYS_socket => socket::socket(a as c_int, b as c_int, c as c_int),
            libc::SYS_close => descriptor::close(fd),
            libc::SYS_close_range => descriptor::close_range(a as u32, b as u32, c as c_int),
            libc::SYS_dup => descriptor::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptor::dup2(fd, b as c_int),
            libc::SYS_dup3 => descriptor::dup3(fd, b as c_int, c as c_int),
            libc::SYS_prlimit64 => limit::prlimit64(a as _, b as _, c as _, d as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_setrlimit => limit::setrlimit(a as _, b as _),
            libc::SYS_mlockall => limit::mlockall(a as c_int),
            libc::SYS_munlockall => limit::munlockall(),
            libc::SYS_epoll_create1 => epoll::epoll_create1(a as c_int),
            libc::SYS_epoll_ctl => epoll::epoll_ctl(fd, b as c_int, c as c_int, d as _),
            libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => {
                sandbox::prctl(a as c_int, b as _, c as _, d as _, 0)
            }
            libc::SYS_seccomp if sandbox::is_filter(a) => {
                crate::sandbox::before();
                return None;
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_pipe => splice::pipe(a as _),
            libc::SYS_pipe2 => splice::pipe2(a as _, b as c_int),
            libc::SYS_splice => {
                return Some(splice::splice(fd, b as _, c as c_int, d as _, e, f as _) as c_long)
            }
            libc::SYS_tee => return Some(splice::tee(fd, b as c_int, c, d as _) as c_long),
            libc::SYS_vmsplice => return Some(splice::vmsplice(fd, b as _, c, d as _) as c_long),
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_execve | libc::SYS_execveat => {
                start::leaving();
                return None;
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork => {
                start::leaving();
                return None;
            }
            libc::SYS_io_submit => return Some(checked(submit::submit(a as _, b as _, c as _))),
            libc::SYS_pidfd_getfd => descriptor::pidfd_getfd(fd, b as c_int, c as _),
            libc::SYS_sendfile => return Some(move_data::sendfile(fd, b as c_int, c as _, d) as c_long),
            _ => return None,
        }
    };
    Some(done.into())
}

/// Waits for several descriptors.
unsafe fn waits(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    let fd = a as c_int;
    // The C library's functions read a time-out themselves.
    let is_time = |at: usize| at == 0 || reach::may_be(at as *const timespec, size_of::<timespec>());
    // SAFETY: the caller's promises are those of the call.
    let done = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => poll::poll(a as _, b as _, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select if is_time(e) => poll::select(fd, b as _, c as _, d as _, e as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(fd, b as _, c as c_int, d as c_int),
            // Of a set of another size the kernel says what is wrong.
            libc::SYS_ppoll if is_time(c) && (d == 0 || e == SET_BYTES) => {
                poll::ppoll(a as _, b as _, c as _, d as _)
            }
            libc::SYS_epoll_pwait if e == 0 || f == SET_BYTES => {
                epoll::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _)
            }
            libc::SYS_epoll_pwait2 if e == 0 || f == SET_BYTES => {
                epoll::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _)
            }
            libc::SYS_pselect6 if is_time(e) => {
                if f != 0 && !reach::is_readable(f as *const [usize; 2], size_of::<[usize; 2]>()) {
                    return None;
                }
                // The last argument has the address of a set and its size.
                let [mask, size] = if f == 0 { [0, 0] } else { *(f as *const [usize; 2]) };
                if mask != 0 && size != SET_BYTES {
                    return None;
                }
                poll::pselect(fd, b as _, c as _, d as _, e as _, mask as _)
            }
            _ => return None,
        }
    };
    Some(done.into())
}

/// Calls on a descriptor that is a socket or an epoll instance.
unsafe fn on_known(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the caller's promises are those of the call.
    let done = unsafe {
        match number {
            libc::SYS_read => receive::read(fd, b as _, c) as c_long,
            libc::SYS_readv => receive::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom => receive::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_recvmsg => receive::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvmmsg => receive::recvmmsg(fd, b as _, c as _, d as c_int, e as _).into(),
            libc::SYS_write => send::write(fd, b as _, c) as c_long,
            libc::SYS_writev => send::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendto => send::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendmsg => send::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmmsg => send::sendmmsg(fd, b as _, c as _, d as c_int).into(),
            libc::SYS_bind => names::bind(fd, b as _, c as _).into(),
            libc::SYS_getsockname => names::getsockname(fd, b as _, c as _).into(),
            libc::SYS_getpeername => names::getpeername(fd, b as _, c as _).into(),
            libc::SYS_listen => socket::listen(fd, b as c_int).into(),
            libc::SYS_connect => socket::connect(fd, b as _, c as _).into(),
            libc::SYS_accept => socket::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => socket::accept4(fd, b as _, c as _, d as c_int).into(),
            libc::SYS_shutdown => socket::shutdown(fd, b as c_int).into(),
            libc::SYS_setsockopt => socket::setsockopt(fd, b as c_int, c as c_int, d as _, e as _).into(),
            libc::SYS_getsockopt => socket::getsockopt(fd, b as c_int, c as c_int, d as _, e as _).into(),
            libc::SYS_fcntl => descriptor::fcntl(fd, b as c_int, c as c_ulong).into(),
            libc::SYS_ioctl => descriptor::ioctl(fd, b as _, c as c_ulong).into(),
            _ => return None,
        }
    };
    Some(done)
}
