//! Direct rings that go to another driver before the agents stop.
//!
//! A sealed ring stays as it is as long as it is there. So the other driver checks and maps its file beforehand, and the state
//! names the ring by its number. A ring whose connection has ended meanwhile is dropped, and a new one comes with the state.
use super::pack::Wrong;
use crate::memory::{DirectRing, UnpaidRing};
use pd_shm::memfd::Pages;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most rings of a list.
const RINGS_MAX: usize = 1 << 20;

/// List of rings, whose files come with it in the same order.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List(Vec<Entry>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    number: u64,
    page_bytes: u64,
    bytes: u64,
}

/// Rings that go over early, as the giver collects them.
#[derive(Debug, Default)]
pub struct Given {
    list: List,
    files: Vec<Arc<OwnedFd>>,
}

/// Numbers of rings that the other driver has.
pub type Numbers = HashSet<u64>;

/// Rings that have come early, by the giver's numbers.
pub type Rings = HashMap<u64, UnpaidRing>;

impl Given {
    /// Adds a ring, if it is sealed.
    pub fn add(&mut self, ring: &DirectRing) {
        if ring.is_sealed() && self.files.len() < RINGS_MAX {
            let (number, page_bytes, bytes) = (ring.number(), ring.page_bytes(), ring.bytes());
            self.list.0.push(Entry { number, page_bytes, bytes });
            self.files.push(Arc::clone(ring.file()));
        }
    }

    /// Returns the list as bytes, the files, and the numbers.
    ///
    /// # Errors
    /// A lack of memory.
    pub fn into_parts(self) -> std::io::Result<(Vec<u8>, Vec<Arc<OwnedFd>>, Numbers)> {
        let bytes = postcard::to_stdvec(&self.list).map_err(std::io::Error::other)?;
        Ok((bytes, self.files, self.list.0.iter().map(|entry| entry.number).collect()))
    }
}

/// Checks and maps rings that have come early. The bytes and files are hostile.
///
/// # Errors
/// The fault.
pub fn take(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Rings, Wrong> {
    let (List(list), rest) = postcard::take_from_bytes(bytes)
        .map_err(|error| Wrong::of(format!("the list of direct rings cannot be read: {error}")))?;
    let fits = rest.is_empty() && list.len() == fds.len() && list.len() <= RINGS_MAX;
    Wrong::unless(fits, || "the list of direct rings does not fit their files".to_owned())?;
    let mut rings = Rings::with_capacity(list.len());
    for (Entry { number, page_bytes, bytes }, fd) in list.into_iter().zip(fds) {
        let pages = Pages::from_bytes(page_bytes).ok_or_else(|| Wrong::of("pages of a direct ring"))?;
        let ring = UnpaidRing::new(fd, (pages, bytes, true))
            .map_err(|errno| Wrong::of(format!("direct ring {number} of {bytes} bytes: {errno}")))?;
        let is_first = rings.insert(number, ring).is_none();
        Wrong::unless(is_first, || format!("direct ring {number} is there twice"))?;
    }
    Ok(rings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HugepageUse, Pool};
    use pd_shm::{Mapping, Protection};

    #[test]
    fn sealed_rings_alone_go_early_and_others_are_refused() {
        let pool = Pool::new(8 << 20, HugepageUse::Off);
        let mut rings: Vec<_> = (0..3).map(|_| pool.direct_ring(pool.root(), 8192).unwrap()).collect();
        let owner = Mapping::new(rings[1].for_owner().unwrap(), 8192 + 4096, Protection::ReadWrite);
        assert!(owner.is_ok());
        pd_shm::memfd::seal_against_all(rings[1].file()).unwrap();
        rings[1].check_sealed().unwrap();
        let mut given = Given::default();
        rings.iter().for_each(|ring| given.add(ring));
        let (bytes, files, numbers) = given.into_parts().unwrap();
        assert_eq!(numbers, Numbers::from([rings[1].number()]));
        let again = |ring: &DirectRing| ring.file().try_clone().unwrap();
        let taken = take(&bytes, files.iter().map(|file| file.try_clone().unwrap()).collect()).unwrap();
        assert!(taken.contains_key(&rings[1].number()) && taken.len() == 1);
        // An unsealed file, no file, two files.
        assert!(take(&bytes, vec![again(&rings[0])]).is_err());
        assert!(take(&bytes, Vec::new()).is_err());
        assert!(take(&bytes, vec![again(&rings[1]), again(&rings[1])]).is_err());
        for end in 0..bytes.len() {
            assert!(take(&bytes[..end], vec![again(&rings[1])]).is_err());
        }
        let mut twice = Given::default();
        twice.add(&rings[1]);
        twice.add(&rings[1]);
        let (bytes, ..) = twice.into_parts().unwrap();
        assert!(take(&bytes, vec![again(&rings[1]), again(&rings[1])]).is_err());
    }
}
