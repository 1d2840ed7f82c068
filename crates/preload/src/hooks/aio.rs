//! POSIX aio. Requests on descriptors that the library knows are its own ([`crate::aio`]), all others the C library's.
use super::{hooks, poll, receive, send};
use crate::aio::lists::Batch;
use crate::aio::{self, waiting, Block, Event, Job};
use crate::call::{call, errno, set_errno, Failure, Outcome};
use crate::{reach, real, table};
use libc::{aiocb, c_int, sigevent, timespec};
use pd_client::core::outside;
use std::sync::atomic::{fence, Ordering};

hooks! {
    fn aio_read(block: *mut aiocb) -> c_int {
        if is_own(block) { begin(block, aio::LIO_READ) } else { real::aio_read(block) }
    }

    fn aio_read64(block: *mut aiocb) -> c_int {
        if is_own(block) { begin(block, aio::LIO_READ) } else { real::aio_read64(block) }
    }

    fn aio_write(block: *mut aiocb) -> c_int {
        if is_own(block) { begin(block, aio::LIO_WRITE) } else { real::aio_write(block) }
    }

    fn aio_write64(block: *mut aiocb) -> c_int {
        if is_own(block) { begin(block, aio::LIO_WRITE) } else { real::aio_write64(block) }
    }

    fn aio_fsync(kind: c_int, block: *mut aiocb) -> c_int {
        match of_sync(kind) {
            Some(operation) if is_own(block) => begin(block, operation),
            _ => real::aio_fsync(kind, block),
        }
    }

    fn aio_fsync64(kind: c_int, block: *mut aiocb) -> c_int {
        match of_sync(kind) {
            Some(operation) if is_own(block) => begin(block, operation),
            _ => real::aio_fsync64(kind, block),
        }
    }

    fn aio_error(block: *const aiocb) -> c_int {
        let error = real::aio_error(block);
        // A result that is read after this is that of the request.
        fence(Ordering::Acquire);
        error
    }

    fn aio_error64(block: *const aiocb) -> c_int {
        let error = real::aio_error64(block);
        fence(Ordering::Acquire);
        error
    }

    fn aio_suspend(list: *const *const aiocb, count: c_int, timeout: *const timespec) -> c_int {
        match own_in(list, count) {
            Some(blocks) => suspend(blocks, timeout),
            None => real::aio_suspend(list, count, timeout),
        }
    }

    fn aio_suspend64(list: *const *const aiocb, count: c_int, timeout: *const timespec) -> c_int {
        match own_in(list, count) {
            Some(blocks) => suspend(blocks, timeout),
            None => real::aio_suspend64(list, count, timeout),
        }
    }

    fn aio_cancel(fd: c_int, block: *mut aiocb) -> c_int {
        cancel(fd, block, || real::aio_cancel(fd, block))
    }

    fn aio_cancel64(fd: c_int, block: *mut aiocb) -> c_int {
        cancel(fd, block, || real::aio_cancel64(fd, block))
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        list_io(mode, list, count, event, &|mode, list, count, event| real::lio_listio(mode, list, count, event))
    }

    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        list_io(mode, list, count, event, &|mode, list, count, event| real::lio_listio64(mode, list, count, event))
    }
}

/// Returns whether a request is the library's: its descriptor may be a connection's, or has other such requests.
///
/// # Safety
/// `block` leads nowhere, or to a control block.
unsafe fn is_own(block: *const aiocb) -> bool {
    if !reach::may_be(block, size_of::<aiocb>()) {
        return false;
    }
    // SAFETY: the caller's promise.
    let fd = unsafe { (*block).aio_fildes };
    table::look(fd) != table::PLAIN || aio::has_requests(fd)
}

/// Operation of `aio_fsync`. None: the C library says what is wrong.
fn of_sync(kind: c_int) -> Option<c_int> {
    match kind {
        libc::O_DSYNC => Some(aio::LIO_DSYNC),
        libc::O_SYNC => Some(aio::LIO_SYNC),
        _ => None,
    }
}

unsafe fn begin(block: *mut aiocb, operation: c_int) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { aio::enqueue(block.cast(), operation, carry, None) }.map(|()| 0), || -1)
}

/// Carries a request out, in a thread of its own.
///
/// # Safety
/// The requirements of `read` or `write`.
unsafe fn carry(job: Job) -> Result<isize, c_int> {
    loop {
        // SAFETY: the caller's promise.
        let result = unsafe {
            match job.operation {
                aio::LIO_READ => receive::read(job.fd, job.buffer, job.len),
                aio::LIO_WRITE => send::write(job.fd, job.buffer, job.len),
                aio::LIO_DSYNC => libc::fdatasync(job.fd) as isize,
                aio::LIO_SYNC => libc::fsync(job.fd) as isize,
                _ => {
                    set_errno(libc::EINVAL);
                    -1
                }
            }
        };
        match errno() {
            _ if result >= 0 => return Ok(result),
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

/// The list, if a request of the library's that is not done is in it.
unsafe fn own_in<'a>(list: *const *const aiocb, count: c_int) -> Option<&'a [*const Block]> {
    if !aio::any() {
        return None;
    }
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| reach::may_be(list, count * size_of::<*const aiocb>()))?;
    // SAFETY: the caller's list.
    let blocks = unsafe { std::slice::from_raw_parts(list.cast::<*const Block>(), count) };
    let mut has_own = false;
    crate::call::aside(|| has_own = waiting::has_own(blocks));
    has_own.then_some(blocks)
}

unsafe fn suspend(blocks: &[*const Block], timeout: *const timespec) -> c_int {
    // SAFETY: the caller's time-out.
    let limit = (!timeout.is_null()).then(|| poll::of_timespec(unsafe { &*timeout }));
    // SAFETY: the caller's control blocks.
    call(|| unsafe { waiting::for_any(blocks, limit) }.map(|()| 0), || -1)
}

unsafe fn cancel(fd: c_int, block: *mut aiocb, theirs: impl Fn() -> c_int) -> c_int {
    // SAFETY: the caller's control block.
    let is_of_other = || !block.is_null() && unsafe { (*block).aio_fildes } != fd;
    // The C library says what is wrong.
    if !aio::any() || is_of_other() {
        return theirs();
    }
    // SAFETY: asks for flags.
    if unsafe { real::fcntl(fd, libc::F_GETFL, 0) } < 0 {
        return theirs();
    }
    let mut own = None;
    crate::call::aside(|| own = aio::cancel(fd, (!block.is_null()).then_some(block.cast_const().cast())));
    match own {
        None => theirs(),
        Some(own) if !block.is_null() => own,
        Some(own) => match (own, theirs()) {
            (aio::NOT_CANCELED, _) | (_, aio::NOT_CANCELED) => aio::NOT_CANCELED,
            _ => own,
        },
    }
}

/// `lio_listio` of the C library.
type Theirs<'a> = &'a dyn Fn(c_int, *const *mut aiocb, c_int, *mut sigevent) -> c_int;

unsafe fn list_io(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut sigevent,
    theirs: Theirs<'_>,
) -> c_int {
    let len = usize::try_from(count).unwrap_or(0);
    let is_known = [aio::LIO_WAIT, aio::LIO_NOWAIT].contains(&mode)
        && table::end() > 0
        && reach::may_be(list, len * size_of::<*mut aiocb>());
    // SAFETY: the caller's list.
    let blocks = if is_known && len > 0 { unsafe { std::slice::from_raw_parts(list, len) } } else { &[] };
    // SAFETY: the caller's control blocks.
    let asks = |block: *mut aiocb| !block.is_null() && unsafe { (*block).aio_lio_opcode } != aio::LIO_NOP;
    // SAFETY: as above.
    let (own, others): (Vec<_>, Vec<_>) =
        blocks.iter().copied().filter(|&block| asks(block)).partition(|&block| unsafe { is_own(block) });
    if own.is_empty() {
        return theirs(mode, list, count, event);
    }
    let waits = mode == aio::LIO_WAIT;
    // SAFETY: the caller's event.
    let event = if waits || event.is_null() { None } else { Some(unsafe { event.cast::<Event>().read() }) };
    // SAFETY: the caller's promise.
    call(|| unsafe { list_own(&own, &others, waits, event, theirs) }.map(|()| 0), || -1)
}

unsafe fn list_own(
    own: &[*mut aiocb],
    others: &[*mut aiocb],
    waits: bool,
    event: Option<Event>,
    theirs: Theirs<'_>,
) -> Outcome<()> {
    let batch = event.filter(Event::is_told).map(|event| Batch::new(event, own.len() + 1));
    let mut done = Ok(());
    for &block in own {
        // SAFETY: the caller's control block.
        let queued = unsafe { aio::enqueue(block.cast(), (*block).aio_lio_opcode, carry, batch.clone()) };
        if queued.is_err() {
            batch.iter().for_each(|batch| batch.one_is_done());
            done = queued;
        }
    }
    if others.is_empty() {
        batch.iter().for_each(|batch| batch.one_is_done());
    } else {
        let mut told = batch.as_ref().map(Batch::for_part);
        let told = told.as_mut().map_or(std::ptr::null_mut(), |told| std::ptr::from_mut(told).cast());
        // An event is told for a part none of which could begin, too.
        if outside(|| theirs(aio::LIO_NOWAIT, others.as_ptr(), others.len() as c_int, told)) != 0 {
            done = Err(Failure::Errno(errno()));
        }
    }
    if !waits {
        return done;
    }
    let all: Vec<_> = own.iter().chain(others).map(|block| block.cast_const().cast::<Block>()).collect();
    // SAFETY: the caller's control blocks.
    unsafe {
        waiting::for_all(&all)?;
        match all.iter().any(|&block| waiting::has_failed(block)) || done.is_err() {
            true => Err(Failure::Errno(libc::EIO)),
            false => Ok(()),
        }
    }
}
