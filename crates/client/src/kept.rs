//! Variables that a thread keeps between calls, and gives back when it ends. Rust's thread-local destructors do not serve: the C
//! library needs memory to note one, and ends a process that has none. Those of the main thread also run before the streams are flushed
//! at the end of the program, and such streams may be connections. A key of `pthread_key_create` needs no memory, and its destructor does
//! not run at the end of a program.
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::OnceLock;

/// Kinds of things that one thread keeps.
const KINDS: usize = 8;

/// Functions that run at the end of a thread, one for each kind.
type Releases = [Option<fn()>; KINDS];

/// A variable of a thread's.
pub struct Kept<T> {
    value: ManuallyDrop<RefCell<T>>,
    /// Calls [`Kept::release`] on the calling thread's variable.
    release: fn(),
    noted: Cell<bool>,
}

thread_local! {
    static RELEASES: Cell<Releases> = const { Cell::new([None; KINDS]) };
}

static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

extern "C" fn release_all(_: *mut libc::c_void) {
    let releases = RELEASES.replace([None; KINDS]);
    releases.into_iter().flatten().for_each(|release| release());
}

fn key() -> Option<libc::pthread_key_t> {
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: room for a key, and a function that lives as long as the program.
        (unsafe { libc::pthread_key_create(&mut key, Some(release_all)) } == 0).then_some(key)
    })
}

/// Has the key while keys are few: for the first ones no memory is needed either.
pub(crate) fn prepare() {
    let _ = key();
}

fn note(release: fn()) {
    let mut releases = RELEASES.get();
    // There are no more kinds than places.
    if let Some(free) = releases.iter_mut().find(|place| place.is_none()) {
        *free = Some(release);
    }
    RELEASES.set(releases);
    if let Some(key) = key() {
        // SAFETY: a key of this module's. Any value has the function called.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

impl<T> Kept<T> {
    /// `release` calls [`Kept::release`] on the calling thread's variable.
    pub const fn new(value: T, release: fn()) -> Self {
        Self { value: ManuallyDrop::new(RefCell::new(value)), release, noted: Cell::new(false) }
    }
}

impl<T: Default> Kept<T> {
    /// The thread ends.
    pub fn release(&self) {
        self.noted.set(false);
        let value = self.value.try_borrow_mut().map(|mut value| std::mem::take(&mut *value));
        drop(value);
    }
}

impl<T> Deref for Kept<T> {
    type Target = RefCell<T>;

    fn deref(&self) -> &RefCell<T> {
        if !self.noted.replace(true) {
            note(self.release);
        }
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static DROPPED: AtomicU32 = AtomicU32::new(0);

    struct Counted;

    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    thread_local! {
        static COUNTED: Kept<Option<Counted>> = const { Kept::new(None, || COUNTED.with(Kept::release)) };
    }

    #[test]
    fn a_thread_gives_back_what_it_has_kept() {
        for count in 1..3 {
            std::thread::spawn(|| COUNTED.with(|kept| *kept.borrow_mut() = Some(Counted))).join().unwrap();
            assert_eq!(DROPPED.load(Ordering::Relaxed), count);
        }
    }
}
