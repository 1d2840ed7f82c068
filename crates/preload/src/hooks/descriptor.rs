//! Closing, duplicating, flags.
use super::{hooks, stdio};
use crate::aside::{leaving, receiving};
use crate::away::calls;
use crate::call::{aside, call, checked, errno, set_errno, Failure, Outcome};
use crate::closing::{self, before_close};
use crate::ending::drop_fd;
use crate::entry::Entry;
use crate::open_file::OpenFile;
use crate::pipe::numbers;
use crate::short::passing;
use crate::twin::Twin;
use crate::{held, inherited, lookup, reach, real, sandbox, table};
use libc::{c_int, c_uint, c_ulong, c_void};
use pd_client::core::{Inside, KernelReason, Occasion};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Times that a number is found busy before the program is told, and the time between them.
const BUSY_LOOKS: u32 = 40;
const BUSY_LOOK_EVERY: Duration = Duration::from_micros(500);

const FIOASYNC: c_ulong = 0x5452;
/// Of the kernel's interface, not in `libc` everywhere.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

/// Returns the bytes that a connection has for the program: those on the fabric, and after them those in the kernel, for which `ask` has
/// the kernel write its number at `value`.
///
/// # Safety
/// `value` is memory that may be read, and `ask` is `ioctl` into it.
unsafe fn unread(
    entry: &Arc<Entry>,
    twin: &Twin,
    value: *mut c_int,
    ask: impl Fn() -> c_int,
) -> Outcome<c_int> {
    if twin.with_present(entry, |_| Ok(())).is_ok() {
        twin.await_inherited();
        if twin.with_present(entry, |end| Ok(end.received() == 0)) == Ok(true) {
            let _ = twin.hear(entry) || twin.catch_up(Occasion::Rare);
        }
    }
    let begun = receiving::has_begun(twin);
    if begun {
        checked(ask())?;
    }
    // SAFETY: the caller's promise.
    let in_kernel = || unsafe { value.read() };
    if let Some(back) = twin.window() {
        return Ok(twin.with_present(entry, |end| back.there(end, in_kernel() as u64))? as c_int);
    }
    if begun {
        // A receive joins the two from now on.
        leaving::leave(entry, twin, KernelReason::PeerLeft);
    }
    let (on_fabric, is_all) = twin.with_present(entry, |end| {
        let there = end.received();
        Ok((there as c_int, end.ends_elsewhere(there)))
    })?;
    Ok(match begun && is_all {
        true => on_fabric + receiving::without_mark(twin, in_kernel()),
        false => on_fabric,
    })
}

hooks! {
    fn close(fd: c_int) -> c_int {
        if pd_client::core::is_own(fd) {
            set_errno(libc::EBADF);
            return -1;
        }
        held::let_go(fd);
        if table::look(fd) == table::PLAIN {
            return real::close(fd);
        }
        let closing = Closing::begin(fd);
        let result = real::close(fd);
        drop(closing);
        result
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
            sandbox::before_second_table();
        }
        let keep_open = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
        around_own(first, last, |first, last| {
            let closing = if keep_open { Vec::new() } else { close_all(first, last) };
            let result = real::close_range(first, last, flags);
            drop(closing);
            result
        })
    }

    fn closefrom(first: c_int) -> () {
        around_own(first.max(0) as c_uint, c_uint::MAX, |first, last| {
            let closing = close_all(first, last);
            let result = real::close_range(first, last, 0);
            drop(closing);
            result
        });
    }

    fn dup(fd: c_int) -> c_int {
        duplicating(fd, || real::dup(fd))
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        if pd_client::core::is_own(to) {
            set_errno(libc::EBUSY);
            return -1;
        }
        if fd == to {
            return real::dup2(fd, to);
        }
        duplicating_to(fd, to, 0, || real::dup2(fd, to))
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if pd_client::core::is_own(to) {
            set_errno(libc::EBUSY);
            return -1;
        }
        duplicating_to(fd, to, flags, || real::dup3(fd, to, flags))
    }

    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl_by(fd, command, argument, || real::fcntl(fd, command, argument))
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl_by(fd, command, argument, || real::fcntl64(fd, command, argument))
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::ioctl(fd, request, argument);
        }
        if request == FIOASYNC {
            calls::stays(fd);
        }
        let plain = || real::ioctl(fd, request, argument);
        if table::look(fd) == table::PIPE && [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX].contains(&request) {
            return plain();
        }
        // Such a request asks, has a known effect, or changes the number alone.
        let is_known =
            [libc::FIONREAD, libc::TIOCOUTQ, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX].contains(&request);
        if is_known && table::look(fd) == table::FRESH {
            return plain();
        }
        call(
            || {
                let entry = lookup::found(fd)?;
                if !is_known {
                    passing::alter(&entry);
                }
                if let Some(socket) = entry.socket() {
                    let place = argument as *const c_void;
                    if request == libc::FIONBIO && reach::is_readable(place, size_of::<c_int>()) {
                        socket.facts.set_nonblocking(reach::number(place) != 0);
                    }
                    if request == FIOASYNC && reach::number(place) != 0 {
                        wants_signals(&entry);
                    }
                }
                let twin = entry.twin().ok_or(Failure::Plain)?;
                let value = argument as *mut c_int;
                if !reach::is_readable(value, size_of::<c_int>()) {
                    return Err(Failure::Plain);
                }
                twin.is_settled(&entry);
                match request {
                    libc::FIONREAD => value.write(unread(&entry, twin, value, plain)?),
                    libc::TIOCOUTQ if twin.progress().sends() => return Err(Failure::Plain),
                    libc::TIOCOUTQ => value.write(twin.with_present(&entry, |end| Ok(end.undelivered()))? as c_int),
                    libc::FIONBIO => {
                        checked(plain())?;
                        twin.nonblocking.store(value.read() != 0, Ordering::Relaxed);
                    }
                    _ => return Err(Failure::Plain),
                }
                Ok(0)
            },
            plain,
        )
    }

    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
        let arguments = [process as usize, fd as usize, flags as usize, 0, 0, 0];
        // A C library that has no such function has no caller of it either.
        let new = real::system_call(libc::SYS_pidfd_getfd, arguments);
        if new < 0 {
            set_errno(-new as c_int);
            return -1;
        }
        inherited::taken(new as c_int);
        new as c_int
    }

    // glibc has some functions by a second name, too.
    fn __close(fd: c_int) -> c_int {
        close(fd)
    }

    fn __dup2(fd: c_int, to: c_int) -> c_int {
        dup2(fd, to)
    }

    fn __fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl(fd, command, argument)
    }
}

/// `fcntl` on a pipe, if it is about its size.
fn fcntl_of_pipe(fd: c_int, command: c_int, argument: c_ulong) -> Option<c_int> {
    if ![libc::F_GETPIPE_SZ, libc::F_SETPIPE_SZ].contains(&command) {
        return None;
    }
    let pipe = numbers::find(fd)?;
    if command == libc::F_GETPIPE_SZ {
        let mut size = 0;
        aside(|| size = pipe.size());
        return c_int::try_from(size).ok().filter(|&size| size > 0);
    }
    aside(|| pipe.settle());
    // SAFETY: changes the pipe's size alone.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result >= 0 {
        aside(|| pipe.resized());
    }
    Some(result)
}

/// A number that is closed, from the steps before the kernel's close to those after it.
struct Closing {
    fd: c_int,
    /// The entry that ends with the number, or has one fewer.
    entry: Option<Arc<Entry>>,
    /// The open file that calls of other threads go on with.
    outlived: Option<Arc<OpenFile<Entry>>>,
}

impl Closing {
    /// Takes the steps before the kernel's close. None for a number that the library does not know, and in a child of `vfork`, whose table is
    /// the parent's.
    fn begin(fd: c_int) -> Option<Self> {
        if table::look(fd) == table::PLAIN || table::is_borrowed() {
            return None;
        }
        let mut closing = Self { fd, entry: None, outlived: None };
        aside(|| {
            let entry = table::entry(fd);
            // A connection that another thread is making leave leaves with this number, or with the one that it goes on with.
            let leaving = entry.as_ref().and_then(|entry| entry.twin()).map(|twin| twin.aside.pause());
            match table::begin_close(fd).map(|file| closing::close(file, fd)) {
                Some(Ok(entry)) => closing.entry = Some(entry),
                Some(Err(file)) => closing.outlived = Some(file),
                None => {}
            }
            drop(leaving);
            if let Some(entry) = &closing.entry {
                before_close(entry, fd);
            }
        });
        Some(closing)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        table::end_close(self.fd);
        if let Some(entry) = self.entry.take() {
            aside(|| drop_fd(&entry, self.fd));
        }
        if let Some(file) = self.outlived.take() {
            aside(|| drop(file));
        }
    }
}

fn close_all(first: c_uint, last: c_uint) -> Vec<Closing> {
    let end = table::end() as c_uint;
    (first..=last.min(end)).for_each(|fd| held::let_go(fd as c_int));
    (first..=last.min(end)).filter_map(|fd| Closing::begin(fd as c_int)).collect()
}

/// Duplicates to a number that the library may be opening a file under, in another thread: the kernel says `EBUSY` for that moment.
fn unless_busy(duplicate: impl Fn() -> c_int) -> c_int {
    for _ in 0..BUSY_LOOKS {
        let new = duplicate();
        if new >= 0 || errno() != libc::EBUSY {
            return new;
        }
        std::thread::sleep(BUSY_LOOK_EVERY);
    }
    duplicate()
}

/// Takes the steps before `dup3` closes what `to` is. None if the call will fail.
fn replace(from: c_int, to: c_int, flags: c_int) -> Option<Closing> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: asks for a flag, and for a limit, for which there is room.
    let mut works = || unsafe {
        real::fcntl(from, libc::F_GETFD, 0) >= 0
            && libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0
            && (to as libc::rlim_t) < limit.rlim_cur
    };
    if from != to {
        held::let_go(to);
    }
    if table::look(to) == table::PLAIN || from == to || flags & !libc::O_CLOEXEC != 0 || !works() {
        return None;
    }
    Closing::begin(to)
}

/// Duplicates a number. What it stands for is held meanwhile: if another thread closes the number, the new one goes on with it.
fn duplicating(from: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    // No handler leaves by a jump with the file.
    let inside = (table::look(from) != table::PLAIN && !table::is_borrowed()).then(Inside::enter);
    let file = inside.as_ref().and_then(|_| table::file_now(from));
    let new = duplicate();
    let before = errno();
    duplicated(from, file, new);
    drop(inside);
    set_errno(before);
    new
}

/// [`duplicating`] to a number that is closed in the same step, if something has it.
fn duplicating_to(from: c_int, to: c_int, flags: c_int, duplicate: impl Fn() -> c_int) -> c_int {
    duplicating(from, || {
        let closing = replace(from, to, flags);
        let new = unless_busy(duplicate);
        drop(closing);
        new
    })
}

fn duplicated(from: c_int, file: Option<Arc<OpenFile<Entry>>>, to: c_int) {
    if to >= 0 && (file.is_some() || table::look(from) != table::PLAIN || table::look(to) != table::PLAIN) {
        if !table::is_borrowed() {
            aside(|| lookup::duplicate(from, file, to));
            if to <= libc::STDERR_FILENO {
                stdio::follow(to);
            }
        } else if table::look(from) != table::PLAIN {
            table::note_copy();
        }
    }
}

/// `fcntl`, by the function that `do_it` calls.
fn fcntl_by(fd: c_int, command: c_int, argument: c_ulong, do_it: impl FnOnce() -> c_int) -> c_int {
    if let Some(done) = fcntl_of_pipe(fd, command, argument) {
        return done;
    }
    if [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&command) {
        return duplicating(fd, do_it);
    }
    before_fcntl(fd, command, argument);
    let result = do_it();
    after_fcntl(fd, command, argument, result);
    result
}

fn before_fcntl(fd: c_int, command: c_int, argument: c_ulong) {
    let known = match command {
        libc::F_GETFD | libc::F_SETFD | libc::F_GETFL | libc::F_GETOWN => true,
        libc::F_SETFL => argument as c_int & (libc::O_ASYNC | libc::O_APPEND) == 0,
        _ => false,
    };
    if !known && table::look(fd) == table::SOCKET {
        aside(|| table::entry(fd).iter().for_each(passing::alter));
    }
    let signals = command == libc::F_SETFL && argument as c_int & libc::O_ASYNC != 0;
    if signals || [libc::F_SETOWN, F_SETOWN_EX, F_SETSIG].contains(&command) {
        calls::stays(fd);
    }
    let owned = [libc::F_SETOWN, F_SETOWN_EX, F_SETSIG].contains(&command);
    if owned && [table::SOCKET, table::INHERITED, table::FRESH].contains(&table::look(fd)) {
        aside(|| lookup::find(fd).iter().for_each(wants_signals));
    }
}

fn after_fcntl(fd: c_int, command: c_int, argument: c_ulong, result: c_int) {
    if result < 0 {
        return;
    }
    match command {
        libc::F_SETFL if table::look(fd) == table::FRESH && argument as c_int & libc::O_ASYNC == 0 => {}
        libc::F_SETFL if table::look(fd) != table::PLAIN => aside(|| {
            let Some(entry) = lookup::find(fd) else { return };
            let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
            if let Some(socket) = entry.socket() {
                socket.facts.set_nonblocking(nonblocking);
                if argument as c_int & libc::O_ASYNC != 0 {
                    wants_signals(&entry);
                }
            }
            entry.twin().inspect(|twin| twin.nonblocking.store(nonblocking, Ordering::Relaxed));
        }),
        _ => {}
    }
}

/// Does something with each part of a range between the library's own descriptors.
fn around_own(mut first: c_uint, last: c_uint, mut each: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    for own in pd_client::core::own_fds() {
        let own = own as c_uint;
        if own < first || own > last {
            continue;
        }
        if own > first {
            let result = each(first, own - 1);
            if result != 0 {
                return result;
            }
        }
        first = own + 1;
    }
    if first <= last {
        each(first, last)
    } else {
        0
    }
}

/// The program wants a signal for each event: only the kernel sends those.
fn wants_signals(entry: &Arc<Entry>) {
    if let Some(socket) = entry.socket().filter(|socket| socket.is_fresh()) {
        socket.make_unfit(KernelReason::Signals);
    }
    if let Some(twin) = entry.twin() {
        leaving::leave(entry, twin, KernelReason::Signals);
    }
}
