//! The kernel's programs: loaded once, before the driver is confined; attached while a policy needs them.
//!
//! The kernel keeps an attached program, whoever made it. A file beside the admin socket has the numbers of the programs that this driver
//! loaded. The next driver there reads it, and can replace the programs of a driver that was killed.
use super::services::ServiceMaps;
use super::sidecars::SidecarMaps;
use super::words::Words;
use crate::array::Array;
use crate::bpf;
use crate::service::Slots;
use crate::service::STICKY_WORDS;
use aya::maps::Map;
use aya::programs::{loaded_programs, CgroupSkb, CgroupSockAddr, CgroupSockopt, SockOps};
use aya::{include_bytes_aligned, EbpfLoader};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{open, stat, Mode, OFlags};
use rustix::io::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Inode of the host's namespace of control groups (`PROC_CGROUP_INIT_INO`).
pub(crate) const HOST_CGROUP: u64 = 0xefff_fffb;

/// The programs, compiled by `build.sh`.
static OBJECT: &[u8] = include_bytes_aligned!("gate.bpf.o");

/// Attach types of linux/bpf.h, by name of the program.
const KINDS: [(&str, u32); 7] = [
    ("pd_connect4", 10),
    ("pd_connect6", 11),
    ("pd_peer4", 29),
    ("pd_peer6", 30),
    ("pd_events", 3),
    ("pd_egress", 1),
    ("pd_origin", GETSOCKOPT),
];

/// Attach type of the program that answers `SO_ORIGINAL_DST`. While it is attached, each `getsockopt` of the machine passes it.
const GETSOCKOPT: u32 = 21;

/// Descriptors of the maps that the keeper fills.
#[derive(Debug)]
pub struct Maps {
    pub sources: Arc<OwnedFd>,
    pub places: Arc<OwnedFd>,
    pub verdicts: Arc<OwnedFd>,
    pub of_services: ServiceMaps,
    pub of_sidecars: SidecarMaps,
    pub choices: Arc<OwnedFd>,
}

/// See the module.
#[derive(Debug)]
pub struct Programs {
    root: OwnedFd,
    programs: Vec<(OwnedFd, u32)>,
    /// Programs of drivers that have ended.
    stale: Vec<(OwnedFd, u32)>,
    attached: bool,
    /// Set while the program of `getsockopt` is attached.
    answers: bool,
    file: PathBuf,
}

/// Returns the root of the unified hierarchy of control groups, if it is mounted.
pub fn hierarchy() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// Returns the reason why the kernel cannot hold a policy here. None: it can, as far as can be told without loading a program.
pub fn unavailable() -> Option<String> {
    let Some(root) = hierarchy() else {
        return Some("no cgroup2 file system is mounted".to_owned());
    };
    if stat("/proc/self/ns/cgroup").is_ok_and(|own| own.st_ino != HOST_CGROUP) {
        return Some(format!("{} is not the host's root of control groups: --cgroupns=host", root.display()));
    }
    None
}

fn attempt<T, E: std::fmt::Display>(
    what: &str,
    result: std::result::Result<T, E>,
) -> std::result::Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Loads the programs, not attached, and returns them with the descriptors of their maps.
///
/// # Errors
/// A sentence on what the kernel lacks.
pub fn load(admin_socket: &Path) -> std::result::Result<(Programs, Maps, Words, Arc<Slots>), String> {
    if let Some(why) = unavailable() {
        return Err(why);
    }
    let place = hierarchy().unwrap_or_default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = attempt(&format!("{}", place.display()), open(&place, flags, Mode::empty()))?;
    // The loader warns of a map that it has no type for. Its types are not used here.
    let load = || EbpfLoader::new().allow_unsupported_maps().load(OBJECT);
    let loaded = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), load);
    let mut loaded = attempt("loading programs", loaded)?;
    let (mut programs, mut ids) = (Vec::new(), Vec::new());
    for (name, kind) in KINDS {
        let program = loaded.program_mut(name).ok_or_else(|| format!("{name} is missing"))?;
        let fd = match kind {
            10 | 11 | 29 | 30 => {
                let program: &mut CgroupSockAddr = attempt(name, program.try_into())?;
                attempt(name, program.load())?;
                attempt(name, program.fd())?.as_fd().try_clone_to_owned()
            }
            3 => {
                let program: &mut SockOps = attempt(name, program.try_into())?;
                attempt(name, program.load())?;
                attempt(name, program.fd())?.as_fd().try_clone_to_owned()
            }
            GETSOCKOPT => {
                let program: &mut CgroupSockopt = attempt(name, program.try_into())?;
                attempt(name, program.load())?;
                attempt(name, program.fd())?.as_fd().try_clone_to_owned()
            }
            _ => {
                let program: &mut CgroupSkb = attempt(name, program.try_into())?;
                attempt(name, program.load())?;
                attempt(name, program.fd())?.as_fd().try_clone_to_owned()
            }
        };
        programs.push((attempt(name, fd)?, kind));
        ids.push(attempt(name, program.info())?.id());
    }
    let map = |name: &str| -> std::result::Result<OwnedFd, String> {
        let map = loaded.map(name).ok_or_else(|| format!("{name} is missing"))?;
        let data = match map {
            Map::Array(data) | Map::HashMap(data) | Map::LpmTrie(data) | Map::LruHashMap(data) => data,
            _ => return Err(format!("{name} is of another kind")),
        };
        attempt(name, data.fd().as_fd().try_clone_to_owned())
    };
    let words = attempt("mapping counters", Words::new(map("config")?, map("tenants")?, map("hits")?))?;
    let shared = |name: &str| map(name).map(Arc::new);
    let array = |name: &str, words| -> std::result::Result<Array, String> {
        attempt("mapping counters", Array::of_map(map(name)?, words))
    };
    let slots = Slots::of_arrays(array("slots", Slots::WORDS)?, array("sticky", STICKY_WORDS)?);
    let slots = Arc::new(slots);
    let maps = Maps {
        sources: shared("sources")?,
        places: shared("places")?,
        verdicts: shared("verdicts")?,
        of_services: ServiceMaps {
            services: shared("services")?,
            backends: shared("backends")?,
            tables: shared("tables")?,
            slots: Arc::clone(&slots),
        },
        of_sidecars: SidecarMaps {
            vias: shared("vias")?,
            proxies: shared("proxies")?,
            slots: Arc::clone(&slots),
        },
        choices: shared("choices")?,
    };
    let file = admin_socket.with_extension("gate");
    let stale = predecessors(&file, &mut ids);
    // Without the file, a killed driver's programs would stay when the next one starts: better no gate.
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    attempt(&format!("{}", file.display()), std::fs::write(&file, lines))?;
    Ok((Programs { root, programs, stale, attached: false, answers: false, file }, maps, words, slots))
}

/// Opens the programs of earlier drivers of the same socket that still exist. Their numbers are added to `ids`.
fn predecessors(file: &Path, ids: &mut Vec<u32>) -> Vec<(OwnedFd, u32)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let known: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    if known.is_empty() {
        return Vec::new();
    }
    let there = loaded_programs().flatten().filter(|program| known.contains(&program.id()));
    there
        .filter_map(|program| {
            let (_, kind) = KINDS.into_iter().find(|(name, _)| program.name_as_str() == Some(name))?;
            ids.push(program.id());
            Some((program.fd().ok()?.as_fd().try_clone_to_owned().ok()?, kind))
        })
        .collect()
}

impl Programs {
    /// Attaches the programs; that of `getsockopt` only if `answers`. Programs of a predecessor are removed afterwards.
    ///
    /// # Errors
    /// Errors of bpf(2); no program is newly attached then.
    pub fn attach(&mut self, words: &Words, slots: &Slots, answers: bool) -> Result<()> {
        if !self.attached {
            words.begin_epoch();
            slots.begin_epoch();
            let asked: Vec<_> = self.programs.iter().filter(|(_, kind)| *kind != GETSOCKOPT).collect();
            for (index, (program, kind)) in asked.iter().enumerate() {
                if let Err(errno) = bpf::attach(&self.root, program, *kind) {
                    for (program, kind) in &asked[..index] {
                        let _ = bpf::detach(&self.root, program, *kind);
                    }
                    return Err(errno);
                }
            }
            self.attached = true;
        }
        if answers && !self.answers {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| *kind == GETSOCKOPT) {
                bpf::attach(&self.root, program, *kind)?;
            }
            self.answers = true;
        }
        Ok(())
    }

    /// Detaches the program of `getsockopt`, which the policy in force does not need.
    pub fn fall_silent(&mut self) {
        if std::mem::take(&mut self.answers) {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| *kind == GETSOCKOPT) {
                let _ = bpf::detach(&self.root, program, *kind);
            }
        }
    }

    /// Removes the programs of a predecessor.
    pub fn succeed(&mut self) {
        for (program, kind) in self.stale.drain(..) {
            // A program that was not attached needs no detaching.
            let _ = bpf::detach(&self.root, &program, kind);
        }
    }

    /// Detaches the programs: the opposite of [`Self::attach`]. A connect then costs what it does without a driver.
    pub fn detach(&mut self) {
        self.fall_silent();
        if std::mem::take(&mut self.attached) {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| *kind != GETSOCKOPT) {
                let _ = bpf::detach(&self.root, program, *kind);
            }
        }
    }

    /// Removes programs and file when the driver ends in order.
    pub fn end(&mut self) {
        self.succeed();
        self.detach();
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_object_is_the_source_compiled() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gate");
        let mut check = std::process::Command::new("sha256sum");
        let status =
            check.args(["--check", "--quiet", "gate.bpf.sha256"]).current_dir(folder).status().unwrap();
        assert!(status.success(), "run crates/driver/src/gate/build.sh");
    }
}
