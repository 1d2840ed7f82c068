//! `syscall`: programs that go past the C library's functions by its own means.
use super::{descriptor, epoll, hooks, receive, send};
use crate::call::set_errno;
use crate::{real, start, table};
use libc::{c_int, c_long};
use pd_client::core::SET_BYTES;

hooks! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let fd = a as c_int;
        match number {
            // Its waits would be for the kernel's sockets. Containers often do without it, so programs can.
            libc::SYS_io_uring_setup if start::enabled() => {
                set_errno(libc::ENOSYS);
                return -1;
            }
            libc::SYS_close => return descriptor::close(fd).into(),
            libc::SYS_close_range => {
                return descriptor::close_range(a as u32, b as u32, c as c_int).into();
            }
            libc::SYS_epoll_create1 => return epoll::epoll_create1(a as c_int).into(),
            libc::SYS_epoll_ctl => return epoll::epoll_ctl(fd, b as c_int, c as c_int, d as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => return epoll::epoll_wait(fd, b as _, c as c_int, d as c_int).into(),
            // Of a set of another size the kernel says what is wrong.
            libc::SYS_epoll_pwait if e == 0 || f == SET_BYTES => {
                return epoll::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _).into();
            }
            libc::SYS_epoll_pwait2 if e == 0 || f == SET_BYTES => {
                return epoll::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _).into();
            }
            libc::SYS_read if table::look(fd) != table::PLAIN => return receive::read(fd, b as _, c) as c_long,
            libc::SYS_write if table::look(fd) != table::PLAIN => return send::write(fd, b as _, c) as c_long,
            libc::SYS_readv if table::look(fd) != table::PLAIN => {
                return receive::readv(fd, b as _, c as c_int) as c_long;
            }
            libc::SYS_writev if table::look(fd) != table::PLAIN => {
                return send::writev(fd, b as _, c as c_int) as c_long;
            }
            libc::SYS_recvfrom if table::look(fd) != table::PLAIN => {
                return receive::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long;
            }
            libc::SYS_sendto if table::look(fd) != table::PLAIN => {
                return send::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long;
            }
            _ => {}
        }
        let result = real::system_call(number, [a, b, c, d, e, f]);
        if (-4095..0).contains(&result) {
            set_errno(-result as c_int);
            return -1;
        }
        result as c_long
    }
}
