//! A private copy of one frame, whose place in the ring another program may change.
//!
//! Rust takes bytes behind a `&[u8]` to stay as they are. Bytes in the ring of another program may change at any moment, so they are copied
//! once, into memory that is made with the path.
use pd_shm::copy::copy;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::ptr::NonNull;
use std::slice;

/// The copy. Made when bytes are first asked for, kept until [`Self::clear`].
pub(super) struct Copied {
    is_made: Cell<bool>,
    bytes: Box<[UnsafeCell<u8>]>,
}

impl fmt::Debug for Copied {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Copied").field("is_made", &self.is_made).finish_non_exhaustive()
    }
}

impl Copied {
    /// Makes room for frames of at most `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self { is_made: Cell::new(false), bytes: (0..bytes).map(|_| UnsafeCell::new(0)).collect() }
    }

    /// Returns the copy of the frame of `len` bytes at `from`, which is made by the first call.
    ///
    /// # Safety
    /// `len` bytes can be read at `from`. Until [`Self::clear`] all calls have the same `len`.
    #[inline]
    pub unsafe fn get(&self, from: NonNull<u8>, len: usize) -> &[u8] {
        let bytes = &self.bytes[..len];
        let place = UnsafeCell::raw_get(bytes.as_ptr());
        if !self.is_made.replace(true) {
            // SAFETY: readable, the caller says; the box has `len` bytes, and nobody borrows them: a borrow ends before `clear`, and none
            // was made since.
            unsafe { copy(place, from.as_ptr(), len) };
        }
        // SAFETY: `len` bytes of the box, which are written only where no borrow lives.
        unsafe { slice::from_raw_parts(place, len) }
    }

    /// Forgets the copy: the next frame is another.
    #[inline]
    pub fn clear(&mut self) {
        self.is_made.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_as_it_was_until_it_is_cleared() {
        let (mut copied, mut frame) = (Copied::new(100), [1u8; 64]);
        let from = NonNull::from(&mut frame).cast::<u8>();
        // SAFETY: 64 bytes, both times.
        let (first, second) = unsafe {
            let first = copied.get(from, 64);
            from.as_ptr().write(9);
            (first, copied.get(from, 64))
        };
        assert_eq!((first, second), (&[1; 64][..], &[1; 64][..]));
        copied.clear();
        // SAFETY: fewer bytes of the same.
        assert_eq!(unsafe { copied.get(from, 20) }[..2], [9, 1]);
    }
}
