//! The kernel's programs: loaded once, before the driver is confined; attached while a policy needs them.
//!
//! The kernel keeps an attached program, whoever made it. A file beside the admin socket has the numbers of those that this driver loaded, so that
//! the next driver there can take the place of one that was killed.
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

/// Compiled by `build.sh`.
static OBJECT: &[u8] = include_bytes_aligned!("gate.bpf.o");

/// Attach types of linux/bpf.h, by the name of the program.
const KINDS: [(&str, u32); 7] = [
    ("pd_connect4", 10),
    ("pd_connect6", 11),
    ("pd_peer4", 29),
    ("pd_peer6", 30),
    ("pd_events", 3),
    ("pd_egress", 1),
    ("pd_origin", GETSOCKOPT),
];

/// The attach type of the program that answers for what was asked for. Each `getsockopt` of the machine passes it while it is attached.
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
    /// Of a driver that is no more.
    stale: Vec<(OwnedFd, u32)>,
    attached: bool,
    /// The one of `getsockopt` is.
    answers: bool,
    file: PathBuf,
}

/// The root of the unified hierarchy of control groups, if it is mounted.
pub fn hierarchy() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// Why the kernel cannot hold a policy here; nothing: it can, as far as can be told without loading a program.
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

/// The programs, loaded and not attached, with the descriptors of their maps.
///
/// # Errors
/// What the kernel lacks, a sentence.
pub fn load(admin_socket: &Path) -> std::result::Result<(Programs, Maps, Words, Arc<Slots>), String> {
    if let Some(why) = unavailable() {
        return Err(why);
    }
    let place = hierarchy().unwrap_or_default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = attempt(&format!("{}", place.display()), open(&place, flags, Mode::empty()))?;
    // The loader warns of a map that it has no type for. Nobody here uses its types.
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
    // Without it a killed driver's programs stay when the next one comes: better no gate.
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    attempt(&format!("{}", file.display()), std::fs::write(&file, lines))?;
    Ok((Programs { root, programs, stale, attached: false, answers: false, file }, maps, words, slots))
}

/// Programs of earlier drivers of the same socket that are still there. Their numbers are added to `ids`.
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
    /// Has the kernel ask the programs; that of `getsockopt` only if it `answers`. Those of a predecessor go afterwards.
    ///
    /// # Errors
    /// Errors of bpf(2); then none is attached that was not.
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

    /// The policy in force does not need the program of `getsockopt`.
    pub fn fall_silent(&mut self) {
        if std::mem::take(&mut self.answers) {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| *kind == GETSOCKOPT) {
                let _ = bpf::detach(&self.root, program, *kind);
            }
        }
    }

    /// Takes the programs of a predecessor away.
    pub fn succeed(&mut self) {
        for (program, kind) in self.stale.drain(..) {
            // Where it was not attached, there is nothing to do.
            let _ = bpf::detach(&self.root, &program, kind);
        }
    }

    /// The opposite of [`Self::attach`]: a connect costs what it cost without a driver.
    pub fn detach(&mut self) {
        self.fall_silent();
        if std::mem::take(&mut self.attached) {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| *kind != GETSOCKOPT) {
                let _ = bpf::detach(&self.root, program, *kind);
            }
        }
    }

    /// The driver ends in order, and leaves nothing behind.
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
