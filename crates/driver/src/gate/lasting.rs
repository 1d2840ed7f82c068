//! Maps of the kernel's programs that outlast a driver: they hold what living sockets keep, and counts of what is open. A driver passes
//! them to the one that takes its place, whose programs use them instead of maps of their own. All other maps have the entries of one
//! driver's policy.
//!
//! Programs get a map by its name in a file system of maps (`LASTING` in `gate.bpf.h`). It is made for the loading of programs, is mounted
//! nowhere, and goes away afterwards.
use aya::maps::{Map, MapData, MapType};
use aya::Ebpf;
use pd_shm::procfs;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{fcntl_dupfd_cloexec, Errno};
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::path::PathBuf;
use std::sync::Arc;

/// A map as it has to be: name, type, bytes of a key and of a value, entries, flags.
type Shape = (&'static str, MapType, u32, u32, u32, u32);

/// `BPF_F_NO_PREALLOC`, which maps of sockets have, and `BPF_F_MMAPABLE`.
const OF_SOCKETS: u32 = 1;
const MAPPED: u32 = 1 << 10;

/// The maps, in the order in which they are passed.
const SHAPES: [Shape; 7] = [
    ("records", MapType::SkStorage, 4, 56, 0, OF_SOCKETS),
    ("origins", MapType::SkStorage, 4, 20, 0, OF_SOCKETS),
    ("journeys", MapType::LruHash, 40, 20, 1 << 15, 0),
    ("tenants", MapType::Array, 4, 120, 4096, MAPPED),
    ("hits", MapType::Array, 4, 8, 131_072, MAPPED),
    ("slots", MapType::Array, 4, 64, 16_384, MAPPED),
    ("sticky", MapType::Array, 4, 64, 16_384, MAPPED),
];

/// Number of the maps.
const COUNT: usize = SHAPES.len();

/// See the module.
#[derive(Clone, Debug)]
pub struct Lasting(Vec<Arc<OwnedFd>>);

/// Opens the map of a descriptor once more.
fn open(fd: impl AsFd) -> Result<MapData, String> {
    let again = fcntl_dupfd_cloexec(fd, 0).map_err(|errno| errno.to_string())?;
    MapData::from_fd(again).map_err(|error| error.to_string())
}

/// Fails unless a descriptor is a map of this shape.
fn check(fd: &OwnedFd, (name, kind, key, value, entries, flags): Shape) -> Result<(), String> {
    let wrong = |why: &str| format!("{name} of the kernel's half: {why}");
    // Objects of other kinds answer the same question.
    let link = procfs::read_link(&format!("self/fd/{}", fd.as_raw_fd()));
    if link.map_err(|errno| wrong(&errno.to_string()))?.as_bytes() != b"anon_inode:bpf-map" {
        return Err(wrong("no map"));
    }
    let info = open(fd).map_err(|why| wrong(&why))?.info().map_err(|error| wrong(&error.to_string()))?;
    let is = (info.key_size(), info.value_size(), info.max_entries(), info.map_flags());
    match info.map_type() {
        Ok(of) if of == kind && is == (key, value, entries, flags) && info.name_as_str() == Some(name) => {
            Ok(())
        }
        _ => Err(wrong(&format!("a map of another shape: {is:?}"))),
    }
}

impl Lasting {
    /// Checks descriptors that another driver has passed: all of the maps in order, or none if it had none.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn of_another(fds: Vec<OwnedFd>) -> Result<Option<Self>, String> {
        if fds.is_empty() {
            return Ok(None);
        }
        if fds.len() != COUNT {
            return Err(format!("{} maps of the kernel's half, of {COUNT}", fds.len()));
        }
        fds.iter().zip(SHAPES).try_for_each(|(fd, shape)| check(fd, shape))?;
        Ok(Some(Self(fds.into_iter().map(Arc::new).collect())))
    }

    /// Returns the maps of loaded programs.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn of_programs(loaded: &Ebpf) -> Result<Self, String> {
        let map = |(name, ..): Shape| {
            let map = loaded.map(name).ok_or_else(|| format!("{name} is missing"))?;
            let (Map::Array(data) | Map::LruHashMap(data) | Map::Unsupported(data)) = map else {
                return Err(format!("{name} is of another kind"));
            };
            data.fd().as_fd().try_clone_to_owned().map(Arc::new).map_err(|error| format!("{name}: {error}"))
        };
        Ok(Self(SHAPES.into_iter().map(map).collect::<Result<_, _>>()?))
    }

    /// Puts the maps where programs that are being loaded find them.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn enter(&self, folder: &Folder) -> Result<(), String> {
        for (fd, (name, ..)) in self.0.iter().zip(SHAPES) {
            open(fd)?.pin(folder.path().join(name)).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    }

    /// Returns the descriptors, in order.
    pub fn fds(&self) -> &[Arc<OwnedFd>] {
        &self.0
    }
}

/// A file system for the names of maps.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Makes one that nobody else can reach.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn new() -> Result<Self, Errno> {
        let system = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&system)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map(Self)
    }

    /// Returns its path in this process.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::load_programs;
    use super::*;

    fn again(maps: &Lasting) -> Vec<OwnedFd> {
        maps.fds().iter().map(|fd| fd.try_clone().unwrap()).collect()
    }

    fn ids(maps: &Lasting) -> Vec<u32> {
        maps.fds().iter().map(|fd| open(fd).unwrap().info().unwrap().id()).collect()
    }

    #[test]
    fn programs_use_the_maps_of_those_before() {
        assert!(rustix::process::geteuid().is_root(), "loading programs needs root");
        let (first, maps) = load_programs(None).unwrap();
        let given = Lasting::of_another(again(&maps)).unwrap().unwrap();
        let (second, same) = load_programs(Some(given)).unwrap();
        assert_eq!(ids(&maps), ids(&same));
        // Also as the programs have them.
        assert_eq!(ids(&Lasting::of_programs(&second).unwrap()), ids(&maps));
        let (_, others) = load_programs(None).unwrap();
        assert!(ids(&others).iter().all(|id| !ids(&maps).contains(id)));
        let own = |loaded: &Ebpf| match loaded.map("config") {
            Some(Map::Array(data)) => data.info().unwrap().id(),
            _ => panic!("config"),
        };
        assert_ne!(own(&first), own(&second), "entries of a policy are each driver's own");
    }

    #[test]
    fn other_descriptors_are_refused() {
        assert!(rustix::process::geteuid().is_root(), "loading programs needs root");
        let (loaded, maps) = load_programs(None).unwrap();
        assert!(Lasting::of_another(Vec::new()).unwrap().is_none());
        let refused = |change: &dyn Fn(&mut Vec<OwnedFd>)| {
            let mut fds = again(&maps);
            change(&mut fds);
            Lasting::of_another(fds).unwrap_err()
        };
        refused(&|fds| drop(fds.pop()));
        refused(&|fds| fds.push(fds[0].try_clone().unwrap()));
        for place in 0..COUNT {
            for other in (0..COUNT).filter(|other| *other != place) {
                refused(&|fds| fds[place] = fds[other].try_clone().unwrap());
            }
            let file = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            assert!(refused(&|fds| fds[place] = file()).contains("no map"));
            let Some(Map::HashMap(services)) = loaded.map("services") else { panic!("services") };
            refused(&|fds| fds[place] = services.fd().as_fd().try_clone_to_owned().unwrap());
        }
    }
}
