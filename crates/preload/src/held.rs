//! Calls in progress on a number, and the open files that they hold.
use crate::call::{self, Failure, Outcome};
use crate::entry::Entry;
use crate::open_file::OpenFile;
use crate::{address, lookup};
use libc::c_int;
use pd_client::core::are_put_off;
use std::cell::{OnceCell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// The program's number of a call, and the open files that it holds.
type Laid = (c_int, [Option<Arc<OpenFile<Entry>>>; 2]);

thread_local! {
    /// A call of the thread's that is in the kernel, or was left by a jump.
    static LAID: RefCell<Option<Laid>> = const { RefCell::new(None) };
}

/// Times that a thread laid files down. A program that never did has no thread look for them.
static LAID_DOWN: AtomicUsize = AtomicUsize::new(0);

/// The thread is about to close a number. Lets go of the open files of a call on it that a handler has interrupted, or left by a jump: the
/// kernel begins such a call anew with a number that is closed.
#[inline]
pub(crate) fn let_go(fd: c_int) {
    if LAID_DOWN.load(Ordering::Relaxed) > 0 {
        call::aside(|| take_up(|laid| laid == fd));
    }
}

#[cold]
fn take_up(is_wanted: impl Fn(c_int) -> bool) {
    // Dropped afterwards: the end of a connection may come back here.
    let taken = LAID.try_with(|laid| laid.borrow_mut().take_if(|(fd, _)| is_wanted(*fd)));
    drop(taken);
}

/// A call that moves bytes of a connection. As in the kernel, it holds the open file from its first use to its end: when another thread
/// closes the number meanwhile, and a new descriptor gets it, the call has nothing to do with that one.
#[derive(Debug)]
pub(crate) struct Held {
    fd: c_int,
    file: OnceCell<Arc<OpenFile<Entry>>>,
    /// The open file before the connection was the kernel's; its number stands for that of `file`.
    earlier: Option<Arc<OpenFile<Entry>>>,
}

impl Held {
    pub(crate) fn new(fd: c_int) -> Self {
        Self { fd, file: OnceCell::new(), earlier: None }
    }

    /// Returns the open file of a connection with a twin. The call is the kernel's otherwise. For calls that may wait for room to take the
    /// connection over.
    pub(crate) fn twinned(&self) -> Outcome<&Arc<OpenFile<Entry>>> {
        self.found(|| lookup::twinned(self.fd))
    }

    /// [`Self::twinned`] for a send or receive with these flags.
    #[inline]
    pub(crate) fn twinned_for(&self, flags: c_int) -> Outcome<&Arc<OpenFile<Entry>>> {
        self.found(|| lookup::twinned_for(self.fd, flags))
    }

    #[inline]
    fn found(&self, look: impl FnOnce() -> Outcome<Arc<OpenFile<Entry>>>) -> Outcome<&Arc<OpenFile<Entry>>> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let file = look()?;
                self.file.get_or_init(|| file)
            }
        };
        // A successor in the kernel has none until it comes back.
        file.twin().is_some().then_some(file).ok_or(Failure::Kernel)
    }

    /// Does a call of the kernel's with the number that [`Self::number`] returned. What is held is the thread's meanwhile: a handler may leave by a
    /// jump, and the thread's next close finds it ([`let_go`]).
    pub(crate) fn in_kernel<T>(&mut self, plain: impl FnOnce() -> T) -> T {
        if self.file.get().is_none() && self.earlier.is_none() {
            return plain();
        }
        LAID_DOWN.fetch_add(1, Ordering::Relaxed);
        let files = [self.file.take(), self.earlier.take()];
        call::aside(|| drop(LAID.try_with(|laid| laid.replace(Some((self.fd, files))))));
        let result = plain();
        call::aside(|| take_up(|_| true));
        result
    }

    /// Returns the number for what the kernel does: the program's, or one of the library's for a call that outlives it.
    pub(crate) fn number(&self) -> c_int {
        self.kept_number().unwrap_or(self.fd)
    }

    fn kept_number(&self) -> Option<c_int> {
        [self.file.get(), self.earlier.as_ref()].into_iter().flatten().find_map(|file| file.number())
    }

    /// Returns the number and the entry of a call that goes on under a number of the library's. None: the program's number tells them.
    pub(crate) fn kept(&self) -> Option<(c_int, Arc<Entry>)> {
        let number = self.kept_number()?;
        let file = self.file.get()?;
        let entry = file.successor().as_deref().unwrap_or(file).entry().clone();
        Some((number, entry))
    }

    /// Does `work` of the call, and lets handlers run that end a sleep. Afterwards it holds nothing, unless the call goes on in the kernel under
    /// a number of the library's: a handler may close the program's number, or leave by a jump.
    pub(crate) fn attempt<T>(&mut self, work: impl Fn(&Self) -> Outcome<T>) -> Outcome<T> {
        call::letting_handlers_run(|| {
            let result = work(self);
            let goes_on = matches!(result, Err(Failure::Plain | Failure::Kernel));
            // The kernel's call would begin after the handler, and sleep as if there had been none.
            if goes_on && are_put_off() && !address::is_nonblocking(self.number()) {
                (self.file, self.earlier) = (OnceCell::new(), None);
                return Err(Failure::Handler { never_restarts: false });
            }
            if !goes_on || self.kept_number().is_none() {
                (self.file, self.earlier) = (OnceCell::new(), None);
            }
            result
        })
    }

    /// The connection has passed between the kernel and the fabric. Follows it, for a call that goes on under a number of the library's.
    pub(crate) fn follow(&mut self) {
        let Some(file) = self.file.take() else { return };
        match file.successor() {
            Some(successor) => {
                let _ = self.file.set(successor);
                self.earlier = Some(file);
            }
            None => drop(self.file.set(file)),
        }
    }
}
