//! Positions of the two sides of a ring, and bounds of the index that the other side writes.
//!
//! A cursor touches no shared memory: its user loads and stores the indices. So it serves words of any layout, and runs under loom.

/// The other side's index is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Returns where byte number `position` lies in a ring of `ring_bytes`, a power of two.
#[inline]
pub fn offset_in(position: u64, ring_bytes: u64) -> u64 {
    position & (ring_bytes - 1)
}

/// Returns by how much an index has moved on from `known`, which is at most `most`.
#[inline]
fn moved(index: u64, known: u64, most: u64) -> Result<u64, Broken> {
    let by = index.wrapping_sub(known);
    if by > most {
        return Err(Broken);
    }
    Ok(by)
}

/// Checks the index up to which the other side has written: not before the `known` one, and no further than a ring of `ring_bytes` that is
/// free up to `freed`. Returns by how much it has moved on.
///
/// # Errors
/// [`Broken`].
#[inline]
pub fn check_producer(index: u64, known: u64, freed: u64, ring_bytes: u64) -> Result<u64, Broken> {
    moved(index, known, ring_bytes.saturating_sub(known.wrapping_sub(freed)))
}

/// Checks the index up to which the other side has given back: not before the `known` one, and not beyond what was `published`. Returns by
/// how much it has moved on.
///
/// # Errors
/// [`Broken`].
#[inline]
pub fn check_consumer(index: u64, known: u64, published: u64) -> Result<u64, Broken> {
    moved(index, known, published.wrapping_sub(known))
}

/// The writing side: positions written, published and given back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Producer {
    ring_bytes: u64,
    written: u64,
    published: u64,
    freed: u64,
}

impl Producer {
    /// Makes the cursor of a fresh ring, in which at most `ring_bytes` lie at a time. The default is one without a ring.
    #[inline]
    pub fn new(ring_bytes: u64) -> Self {
        Self { ring_bytes, written: 0, published: 0, freed: 0 }
    }

    /// Makes the cursor of a ring that another writer has left at these positions.
    ///
    /// # Errors
    /// [`Broken`] where no writer can have left it so.
    pub fn resume(ring_bytes: u64, written: u64, published: u64, freed: u64) -> Result<Self, Broken> {
        moved(written, freed, ring_bytes)?;
        moved(published, freed, written.wrapping_sub(freed))?;
        Ok(Self { ring_bytes, written, published, freed })
    }

    /// Returns the most bytes that lie in the ring at a time.
    #[inline]
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Returns the position of the next byte written.
    #[inline]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the position up to which bytes are published.
    #[inline]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Returns the position up to which the other side has given bytes back, as last seen.
    #[inline]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns the bytes that are written and not published.
    #[inline]
    pub fn unpublished(&self) -> u64 {
        self.written.wrapping_sub(self.published)
    }

    /// Returns the bytes that are written and not given back, as last seen.
    #[inline]
    pub fn untaken(&self) -> u64 {
        self.written.wrapping_sub(self.freed)
    }

    /// Returns the bytes that can be written, as last seen.
    #[inline]
    pub fn room(&self) -> u64 {
        self.room_behind(self.freed)
    }

    /// Returns the bytes that can be written if the ring is free up to `freed`.
    #[inline]
    pub fn room_behind(&self, freed: u64) -> u64 {
        self.ring_bytes - self.written.wrapping_sub(freed)
    }

    /// Takes the index up to which the other side has given bytes back. Returns by how much it has moved on.
    ///
    /// # Errors
    /// [`Broken`], and nothing has changed.
    #[inline]
    pub fn see(&mut self, index: u64) -> Result<u64, Broken> {
        let by = check_consumer(index, self.freed, self.published)?;
        self.freed = index;
        Ok(by)
    }

    /// Takes that index from a side that this one trusts.
    #[inline]
    pub fn see_trusted(&mut self, index: u64) {
        self.freed = index;
    }

    /// Counts `bytes` as written. The caller bounds them by [`Self::room`].
    #[inline]
    pub fn write(&mut self, bytes: u64) {
        self.written = self.written.wrapping_add(bytes);
    }

    /// Counts all written bytes as published. Returns the index to store.
    #[inline]
    pub fn publish(&mut self) -> u64 {
        self.published = self.written;
        self.published
    }
}

/// The reading side: positions known to be written, read and given back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consumer {
    ring_bytes: u64,
    known: u64,
    read: u64,
    freed: u64,
}

impl Consumer {
    /// Makes the cursor of a fresh ring, in which at most `ring_bytes` lie at a time.
    #[inline]
    pub fn new(ring_bytes: u64) -> Self {
        Self::resume(ring_bytes, 0)
    }

    /// Makes the cursor of a ring in which everything before `position` was read and given back.
    #[inline]
    pub fn resume(ring_bytes: u64, position: u64) -> Self {
        Self { ring_bytes, known: position, read: position, freed: position }
    }

    /// Makes the cursor of a ring that another reader has left at these positions.
    ///
    /// # Errors
    /// [`Broken`] where no reader can have left it so.
    pub fn resume_at(ring_bytes: u64, known: u64, read: u64, freed: u64) -> Result<Self, Broken> {
        moved(known, freed, ring_bytes)?;
        moved(read, freed, known.wrapping_sub(freed))?;
        Ok(Self { ring_bytes, known, read, freed })
    }

    /// Returns the most bytes that lie in the ring at a time.
    #[inline]
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Returns the position up to which bytes are known to be written.
    #[inline]
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Returns the position of the next byte to be read.
    #[inline]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Returns the position up to which bytes were given back.
    #[inline]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns the known bytes that were not read.
    #[inline]
    pub fn unread(&self) -> u64 {
        self.known.wrapping_sub(self.read)
    }

    /// Takes the index up to which the other side has written. Returns by how much it has moved on. Bytes that were read and not given
    /// back still take their place: a writer that wrote there would never let a reader come to an end.
    ///
    /// # Errors
    /// [`Broken`], and nothing has changed.
    #[inline]
    pub fn see(&mut self, index: u64) -> Result<u64, Broken> {
        let by = check_producer(index, self.known, self.freed, self.ring_bytes)?;
        self.known = index;
        Ok(by)
    }

    /// Takes that index where the other side may have written up to `limit`, whatever was given back.
    ///
    /// # Errors
    /// [`Broken`], and nothing has changed.
    #[inline]
    pub fn see_within(&mut self, index: u64, limit: u64) -> Result<u64, Broken> {
        let by = moved(index, self.known, limit.wrapping_sub(self.known))?;
        self.known = index;
        Ok(by)
    }

    /// Takes that index from a side that this one trusts.
    #[inline]
    pub fn see_trusted(&mut self, index: u64) {
        self.known = index;
    }

    /// Counts `bytes` as read. The caller bounds them by [`Self::unread`].
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.read = self.read.wrapping_add(bytes);
    }

    /// Counts bytes up to `position` as given back. Returns the index to store, if there are any. The caller has read them.
    #[inline]
    pub fn give_back(&mut self, position: u64) -> Option<u64> {
        if self.freed == position {
            return None;
        }
        self.freed = position;
        Some(position)
    }
}
