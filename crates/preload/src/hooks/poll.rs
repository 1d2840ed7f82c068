//! `poll` and `select`. As in the kernel, a call holds the open files that it waits for, and looks at its numbers anew each time it wakes: what they
//! stand for by then is what it tells of.
use super::hooks;
use crate::aside::{leaving, receiving};
use crate::away::calls::Stays;
use crate::call::{call, cancellation_point, Failure, Outcome};
use crate::claim::settling;
use crate::entry::{listener, Entry, State};
use crate::epoll_set::carrying;
use crate::fabric::LOOK_FOR_ROOM_EVERY;
use crate::open_file::OpenFile;
use crate::short::{accepting, begun};
use crate::sleep::{kernel_poll, sleep_on};
use crate::twin::waiting::any_finds_more;
use crate::twin::{Stands, Twin};
use crate::{claim, lookup, reach, real, table};
use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use pd_client::core::{sleep_for, KernelReason, Occasion, Socket, ASIDE, SET_BYTES};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

hooks! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        if all_plain(fds, count) {
            return real::poll(fds, count, timeout);
        }
        if let Some(_stays) = kernels_alone(list(fds, count)) {
            return real::poll(fds, count, timeout);
        }
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        cancellation_point();
        call(|| poll_fds(list(fds, count), limit, &Manner::new(std::ptr::null())), || real::poll(fds, count, timeout))
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if room / size_of::<pollfd>() < count as usize || all_plain(fds, count) {
            return real::__poll_chk(fds, count, timeout, room);
        }
        poll(fds, count, timeout)
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if all_plain(fds, count) {
            return real::ppoll(fds, count, timeout, mask);
        }
        if !(is_time(timeout) && is_mask(mask)) {
            return real::ppoll(fds, count, timeout, mask);
        }
        if let Some(_stays) = kernels_alone(list(fds, count)) {
            return real::ppoll(fds, count, timeout, mask);
        }
        let limit = (!timeout.is_null()).then(|| of_timespec(&*timeout));
        cancellation_point();
        call(|| poll_fds(list(fds, count), limit, &Manner::new(mask)), || real::ppoll(fds, count, timeout, mask))
    }

    fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t,
    ) -> c_int {
        if room / size_of::<pollfd>() < count as usize || all_plain(fds, count) {
            return real::__ppoll_chk(fds, count, timeout, mask, room);
        }
        ppoll(fds, count, timeout, mask)
    }

    fn select(
        count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let sets = [Set::new(read, count), Set::new(write, count), Set::new(except, count)];
        let known = timeout.is_null() || reach::is_readable(timeout, size_of::<timeval>());
        if !known || sets.iter().all(|set| set.all_plain()) {
            return real::select(count, read, write, except, timeout);
        }
        let limit = (!timeout.is_null()).then(|| {
            Duration::from_secs((*timeout).tv_sec.max(0) as u64) + Duration::from_micros((*timeout).tv_usec.max(0) as u64)
        });
        let start = Instant::now();
        cancellation_point();
        let found = call(
            || select_fds(&sets, limit, std::ptr::null()),
            || real::select(count, read, write, except, timeout),
        );
        if let Some(limit) = limit {
            // As the kernel does: what is left.
            let left = limit.saturating_sub(start.elapsed());
            (*timeout).tv_sec = left.as_secs() as libc::time_t;
            (*timeout).tv_usec = left.subsec_micros().into();
        }
        found
    }

    fn pselect(
        count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        let sets = [Set::new(read, count), Set::new(write, count), Set::new(except, count)];
        if !(is_time(timeout) && is_mask(mask)) || sets.iter().all(|set| set.all_plain()) {
            return real::pselect(count, read, write, except, timeout, mask);
        }
        let limit = (!timeout.is_null()).then(|| of_timespec(&*timeout));
        cancellation_point();
        call(|| select_fds(&sets, limit, mask), || real::pselect(count, read, write, except, timeout, mask))
    }

    // glibc has some functions by a second name, too.
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        poll(fds, count, timeout)
    }

    fn __select(
        count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        select(count, read, write, except, timeout)
    }
}

/// Returns whether the kernel can read the time-out, if there is one.
fn is_time(time: *const timespec) -> bool {
    time.is_null() || reach::may_be(time, size_of::<timespec>())
}

/// Returns whether the kernel can read the set of signals, if there is one.
pub(super) fn is_mask(mask: *const sigset_t) -> bool {
    mask.is_null() || reach::may_be(mask, SET_BYTES)
}

/// A time-out; negative ones are the kernel's to refuse and count as none here.
pub(super) fn of_timespec(time: &timespec) -> Duration {
    Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_nanos(time.tv_nsec.max(0) as u64)
}

unsafe fn list<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's array.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

/// Returns whether the call is the kernel's alone. It says what is wrong with an array that is none.
#[inline]
unsafe fn all_plain(fds: *mut pollfd, count: nfds_t) -> bool {
    let bytes = (count as usize).saturating_mul(size_of::<pollfd>());
    if table::end() == 0 || !reach::may_be(fds, bytes) {
        return true;
    }
    // SAFETY: the caller's array.
    unsafe { list(fds, count) }.iter().all(|poll| table::look(poll.fd) == table::PLAIN)
}

/// Keeps connections that are away in the kernel, if it alone can tell what is ready.
#[inline]
fn kernels_alone(fds: &[pollfd]) -> Option<Stays> {
    if begun::are_any() {
        return None;
    }
    Stays::alone(fds.iter().map(|poll| poll.fd))
}

/// Facts of a call that hold for each look.
struct Manner {
    mask: *const sigset_t,
    /// `select`, which fails if a number is closed when the call begins, and not if that is closed later.
    selects: bool,
    /// Set once the call has slept.
    has_slept: Cell<bool>,
}

impl Manner {
    fn new(mask: *const sigset_t) -> Self {
        Self { mask, selects: false, has_slept: Cell::new(false) }
    }
}

/// One of a poll's descriptors that is a connection with a twin.
struct Member {
    place: usize,
    file: Arc<OpenFile<Entry>>,
    /// As the program says it, and with one name for each event.
    asked: u32,
    wanted: u32,
    /// Of a listener: what of it is the fabric's.
    listening: Option<Arc<Socket>>,
    /// Of a connection.
    stands: Option<Stands>,
}

impl Member {
    /// Returns whether the number has to be asked in another way: the connection leaves the fabric, or has left, or another thread has closed the
    /// number.
    fn has_moved(&self, fd: c_int) -> bool {
        !table::is_of(fd, &self.file) || self.file.twin().map(Twin::stands) != self.stands
    }

    /// Returns whether its sends go over the kernel.
    fn is_the_kernels(&self) -> bool {
        self.stands.is_some_and(|stands| stands.fabric_without != 0)
    }

    /// Its peer has left the fabric: follows.
    #[cold]
    fn follow(&self) -> bool {
        self.file.twin().is_some_and(|twin| leaving::leave(&self.file, twin, KernelReason::PeerLeft))
    }

    /// Returns its readiness; `None` if the peer has left the fabric.
    fn look(&self) -> Option<i16> {
        let ready = match (&self.listening, self.file.twin()) {
            (Some(end), _) => end.ready(self.wanted) & libc::POLLIN as u32,
            (None, Some(twin)) if self.is_the_kernels() => {
                twin.ready(&self.file, self.wanted & !(libc::POLLOUT as u32)) & libc::POLLIN as u32
            }
            (None, Some(twin)) => twin.ready(&self.file, self.wanted),
            (None, None) => return Some(0),
        };
        if ready & ASIDE != 0 {
            return None;
        }
        let mut ready = ready & (self.wanted | (libc::POLLERR | libc::POLLHUP) as u32);
        // The other names of the two.
        if ready & libc::POLLIN as u32 != 0 {
            ready |= libc::POLLRDNORM as u32;
        }
        if ready & libc::POLLOUT as u32 != 0 {
            ready |= libc::POLLWRNORM as u32;
        }
        Some((ready & (self.asked | (libc::POLLERR | libc::POLLHUP) as u32)) as i16)
    }

    /// Tells whether it is asked for bytes, an end or room that it has not.
    fn misses(&self, revents: i16) -> bool {
        const ENDS: i16 = libc::POLLIN | libc::POLLERR | libc::POLLHUP;
        let asked_in =
            self.asked & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) as u32 != 0 || self.asked == 0;
        let asked_out = self.wanted & libc::POLLOUT as u32 != 0;
        revents & ENDS == 0 && (asked_in || asked_out && revents & libc::POLLOUT == 0)
    }

    /// Looks whether its peer has gone, if the program may have learned that. Returns whether another look may find more.
    fn hears(&self) -> bool {
        self.file.twin().is_some_and(|twin| twin.hear(&self.file))
    }

    fn has_pair(&self) -> bool {
        self.file.twin().is_some_and(|twin| twin.has_pair())
    }

    /// Has the driver bring what the peer has done before. Returns whether another look may find more.
    fn catch_up(&self, occasion: Occasion) -> bool {
        self.file.twin().is_some_and(|twin| twin.catch_up(occasion))
    }

    /// Of what the kernel says of it: what is the program's.
    fn of_kernel(&self, kernel: &mut pollfd) {
        if let Some(twin) = self.file.twin().filter(|_| kernel.fd >= 0 && kernel.revents != 0) {
            let told = u32::from(kernel.revents as u16);
            kernel.revents = receiving::told_by_kernel(&self.file, twin, kernel.fd, told) as i16;
        }
    }
}

fn wanted(events: i16) -> u32 {
    let mut wanted = events as u16 as u32;
    if wanted & libc::POLLRDNORM as u32 != 0 {
        wanted |= libc::POLLIN as u32;
    }
    if wanted & libc::POLLWRNORM as u32 != 0 {
        wanted |= libc::POLLOUT as u32;
    }
    wanted
}

fn poll_fds(fds: &mut [pollfd], timeout: Option<Duration>, manner: &Manner) -> Outcome<c_int> {
    begun::settle_all();
    let (mut members, mut unknown) = (Vec::new(), false);
    // One more place for the fabric's descriptor.
    let mut kernel = Vec::with_capacity(fds.len() + 1);
    for (place, poll) in fds.iter().enumerate() {
        let mut file = lookup::find_now(poll.fd).and_then(|_| table::file_now(poll.fd));
        let entry = file.as_ref().map(|file| file.entry());
        unknown |= lookup::is_unknown(poll.fd);
        entry.into_iter().for_each(carrying::expose);
        match entry.and_then(|entry| entry.socket()?.state()) {
            Some(State::Twin(twin)) => twin.attention.is_polled(),
            Some(State::Listener(listener)) => {
                listener.attention.is_polled();
                accepting::announce(poll.fd);
            }
            None => {}
        }
        let listening = entry.and_then(listener::listening);
        file = file.filter(|file| file.twin().is_some() || listening.is_some());
        // One that leaves, or comes back, is in both.
        let stands = file.as_ref().and_then(|file| file.twin().map(Twin::stands));
        let without = stands.map(|stands| stands.kernel_without);
        let fd = if without == Some(None) { -1 } else { poll.fd };
        let events = poll.events & !(without.flatten().unwrap_or(0) as i16);
        kernel.push(pollfd { fd, events, revents: 0 });
        members.extend(file.map(|file| Member {
            place,
            file,
            asked: u32::from(poll.events as u16),
            wanted: wanted(poll.events),
            listening,
            stands,
        }));
    }
    if unknown {
        return poll_unknown(fds, timeout, manner);
    }
    // Connections that are away do not come back during this call.
    let stays = Stays::all(fds.iter().map(|poll| poll.fd));
    if members.is_empty() {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        return if stays.is_empty() { Err(Failure::Plain) } else { plain(fds, until, manner) };
    }
    wait(fds, &members, &mut kernel, timeout, manner)
}

/// `poll` with connections that cannot be taken over now, of which nobody knows how they stand: they are ready, for the program's next call
/// on them waits for that, or says that it would have to.
#[cold]
fn poll_unknown(fds: &mut [pollfd], timeout: Option<Duration>, manner: &Manner) -> Outcome<c_int> {
    const READY: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLOUT | libc::POLLWRNORM;
    // A program that does not wait anywhere else calls again at once.
    sleep_for(timeout.map_or(LOOK_FOR_ROOM_EVERY, |timeout| timeout.min(LOOK_FOR_ROOM_EVERY)));
    let is_unknown: Vec<bool> = fds.iter().map(|poll| lookup::is_unknown(poll.fd)).collect();
    let mut others = fds.to_vec();
    for (other, _) in others.iter_mut().zip(&is_unknown).filter(|(_, &is_unknown)| is_unknown) {
        other.fd = -1;
    }
    again(&mut others, Some(Instant::now()), manner)?;
    for ((poll, other), &is_unknown) in fds.iter_mut().zip(&others).zip(&is_unknown) {
        poll.revents = if is_unknown { poll.events & READY } else { other.revents };
    }
    Ok(fds.iter().filter(|poll| poll.revents != 0).count() as c_int)
}

fn wait(
    fds: &mut [pollfd],
    members: &[Member],
    kernel: &mut Vec<pollfd>,
    timeout: Option<Duration>,
    manner: &Manner,
) -> Outcome<c_int> {
    let zero = Some(Duration::ZERO);
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut caught_up = false;
    loop {
        if claim::any_pending() {
            settling::look();
        }
        if members.iter().any(|it| it.has_moved(fds[it.place].fd)) {
            return again(fds, until, manner);
        }
        fds.iter_mut().for_each(|poll| poll.revents = 0);
        let mut found = false;
        for member in members {
            let revents = match member.look() {
                Some(revents) => revents,
                None if member.follow() => return again(fds, until, manner),
                // The member cannot follow; a read reports why.
                None => libc::POLLIN,
            };
            fds[member.place].revents = revents;
            found |= revents != 0;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let only_looking = found || timeout == zero || left == zero;
        if only_looking && !std::mem::replace(&mut caught_up, true) {
            let occasion = if found { Occasion::Frequent } else { Occasion::Rare };
            let asks = |it: &Member| it.hears() || it.misses(fds[it.place].revents) && it.catch_up(occasion);
            if any_finds_more(members, Member::has_pair, asks) {
                continue;
            }
        }
        if kernel.iter().any(|poll| poll.fd >= 0) {
            kernel_poll(kernel, zero, std::ptr::null())?;
            members.iter().for_each(|member| member.of_kernel(&mut kernel[member.place]));
            found |= kernel.iter().any(|poll| poll.fd >= 0 && poll.revents != 0);
        }
        if !found && only_looking && !manner.mask.is_null() {
            // Nothing is ready: a signal that only the mask lets in ends the call, as it ends the kernel's.
            kernel_poll(&mut [], zero, manner.mask)?;
        }
        if found || only_looking {
            for (poll, kernel) in fds.iter_mut().zip(kernel.iter()).filter(|(_, kernel)| kernel.fd >= 0) {
                poll.revents |= kernel.revents;
            }
            return Ok(fds.iter().filter(|poll| poll.revents != 0).count() as c_int);
        }
        let left = if claim::any_pending() {
            Some(left.map_or(claim::LOOK_EVERY, |l| l.min(claim::LOOK_EVERY)))
        } else {
            left
        };
        let has_moved = || members.iter().any(|it| it.has_moved(fds[it.place].fd));
        manner.has_slept.set(true);
        sleep(members, kernel, left, manner.mask, &has_moved)?;
    }
}

/// `poll` with what is left of the time, after some of the connections have moved.
#[cold]
fn again(fds: &mut [pollfd], until: Option<Instant>, manner: &Manner) -> Outcome<c_int> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    match poll_fds(fds, left, manner) {
        Err(Failure::Plain) => plain(fds, until, manner),
        other => other,
    }
}

/// `poll` after all, with what is left of the time.
fn plain(fds: &mut [pollfd], until: Option<Instant>, manner: &Manner) -> Outcome<c_int> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let mut all = fds.to_vec();
    let mut found = 0;
    if manner.selects && !manner.has_slept.get() {
        found = kernel_poll(&mut all, Some(Duration::ZERO), std::ptr::null())?;
    }
    if found == 0 {
        manner.has_slept.set(true);
        found = kernel_poll(&mut all, left, manner.mask)?;
    }
    fds.copy_from_slice(&all);
    Ok(found)
}

fn sleep(
    members: &[Member],
    kernel: &mut Vec<pollfd>,
    left: Option<Duration>,
    mask: *const sigset_t,
    has_moved: &dyn Fn() -> bool,
) -> Outcome<()> {
    let mut wanted: Vec<(Arc<Socket>, u32)> = Vec::new();
    for member in members {
        let twin = || member.file.twin()?.with(&member.file, |socket| Ok(socket.clone())).ok();
        let Some(socket) = member.listening.clone().or_else(twin) else { continue };
        match wanted.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &socket)) {
            Some((_, events)) => *events |= member.wanted,
            None => wanted.push((socket, member.wanted)),
        }
    }
    sleep_on(wanted, kernel, left, mask, has_moved)
}

/// One of `select`'s sets.
struct Set {
    at: *mut libc::c_ulong,
    count: usize,
}

const WORD: usize = libc::c_ulong::BITS as usize;

impl Set {
    fn new(set: *mut libc::fd_set, count: c_int) -> Self {
        let count = if set.is_null() { 0 } else { count.max(0) as usize };
        Self { at: set.cast(), count }
    }

    fn fds(&self) -> impl Iterator<Item = c_int> + '_ {
        (0..self.count.div_ceil(WORD))
            .flat_map(move |place| {
                // SAFETY: the program's set reaches up to `count`.
                let mut word = unsafe { self.at.add(place).read() };
                std::iter::from_fn(move || {
                    let bit = word.trailing_zeros() as usize;
                    word &= word.wrapping_sub(1);
                    (bit < WORD).then_some((place * WORD + bit) as c_int)
                })
            })
            .filter(|&fd| (fd as usize) < self.count)
    }

    /// Returns whether it has no descriptor that the library knows, or is no set.
    fn all_plain(&self) -> bool {
        let known = self.count.min(table::end() as usize);
        let set = Self { at: self.at, count: known };
        let bytes = known.div_ceil(WORD) * size_of::<libc::c_ulong>();
        known == 0 || !reach::may_be(self.at, bytes) || set.fds().all(|fd| table::look(fd) == table::PLAIN)
    }

    fn clear(&self) {
        for place in 0..self.count.div_ceil(WORD) {
            // SAFETY: as in `fds`.
            unsafe { self.at.add(place).write(0) };
        }
    }

    fn insert(&self, fd: c_int) {
        // SAFETY: `fd` came from this set.
        unsafe { *self.at.add(fd as usize / WORD) |= 1 << (fd as usize % WORD) };
    }
}

/// Events that each set asks for, and events that set its bit. A number that was closed during the call sets it (Linux 5.17).
const ASKED: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR | libc::POLLNVAL),
    (libc::POLLPRI, libc::POLLPRI | libc::POLLNVAL),
];

fn select_fds(sets: &[Set; 3], timeout: Option<Duration>, mask: *const sigset_t) -> Outcome<c_int> {
    let mut fds: Vec<pollfd> = Vec::new();
    for (set, (asked, _)) in sets.iter().zip(ASKED) {
        for fd in set.fds() {
            match fds.iter_mut().find(|poll| poll.fd == fd) {
                Some(poll) => poll.events |= asked,
                None => fds.push(pollfd { fd, events: asked, revents: 0 }),
            }
        }
    }
    let manner = Manner { selects: true, ..Manner::new(mask) };
    poll_fds(&mut fds, timeout, &manner)?;
    if fds.iter().any(|poll| poll.revents & libc::POLLNVAL != 0) && !manner.has_slept.get() {
        return Err(Failure::Errno(libc::EBADF));
    }
    let mut found = 0;
    for (set, (asked, told)) in sets.iter().zip(ASKED) {
        set.clear();
        for poll in fds.iter().filter(|poll| poll.events & asked != 0 && poll.revents & told != 0) {
            set.insert(poll.fd);
            found += 1;
        }
    }
    Ok(found)
}
