//! Entries of one map, as they are in the kernel.
use crate::bpf::{self, Plain};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Network in keys: any network without an entry of its own.
pub const ANY: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Table<K, V> {
    /// The kernel's map; none in tests of the entries.
    map: Option<Arc<OwnedFd>>,
    pub there: HashMap<K, V>,
}

impl<K: Plain + Eq + Hash, V: Plain + PartialEq> Table<K, V> {
    /// Makes a table without any entry.
    pub fn new(map: Option<&Arc<OwnedFd>>) -> Self {
        Self { map: map.cloned(), there: HashMap::new() }
    }

    /// Adds or replaces an entry, if it differs.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub fn put(&mut self, key: K, value: V) -> Result<(), Errno> {
        if self.there.get(&key) == Some(&value) {
            return Ok(());
        }
        self.map.as_ref().map_or(Ok(()), |map| bpf::update(map, &key, &value))?;
        self.there.insert(key, value);
        Ok(())
    }

    /// Removes an entry, if it is there.
    pub fn take(&mut self, key: K) {
        if let (Some(_), Some(map)) = (self.there.remove(&key), &self.map) {
            // Only this driver removes entries.
            let _ = bpf::delete(map, &key);
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        for (key, _) in self.there.drain() {
            if let Some(map) = &self.map {
                let _ = bpf::delete(map, &key);
            }
        }
    }
}
