//! The kernel's programs: loaded once, before the driver is confined; attached while a policy needs them.
//!
//! The kernel keeps an attached program, whoever made it. A file beside the admin socket has the numbers of the programs that this driver
//! loaded. The next driver there reads it, and can replace the programs of a driver that was killed.
use super::lasting::{Folder, Lasting};
use super::services::ServiceMaps;
use super::sidecars::SidecarMaps;
use super::words::Words;
use crate::array::Array;
use crate::bpf;
use crate::mounts::unified_hierarchy;
use crate::service::Slots;
use crate::service::STICKY_WORDS;
use aya::maps::Map;
use aya::programs::{loaded_programs, CgroupSkb, CgroupSockAddr, CgroupSockopt, SockOps};
use aya::{include_bytes_aligned, Ebpf, EbpfLoader};
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
    /// Programs of drivers before this one, in whose place these are attached.
    stale: Vec<(OwnedFd, u32)>,
    attached: bool,
    /// Set if the programs are to be attached in the place of those of drivers before; true: also that of `getsockopt`.
    awaited: Option<bool>,
    /// Set while the program of `getsockopt` is attached.
    answers: bool,
    file: PathBuf,
}

/// Returns the reason why the kernel cannot hold a policy here. None: it can, as far as can be told without loading a program.
pub fn unavailable() -> Option<String> {
    let Some(root) = unified_hierarchy() else {
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

/// Loads the object. `given`: maps of another driver, which the programs use.
///
/// # Errors
/// A sentence on what the kernel lacks.
pub(super) fn load_programs(given: Option<Lasting>) -> std::result::Result<(Ebpf, Lasting), String> {
    let folder = attempt("a file system of maps", Folder::new())?;
    if let Some(maps) = &given {
        maps.enter(&folder)?;
    }
    // The loader warns of a map that it has no type for. Its types are not used here.
    let load = || EbpfLoader::new().allow_unsupported_maps().map_pin_path(folder.path()).load(OBJECT);
    let loaded = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), load);
    let loaded = attempt("loading programs", loaded)?;
    let lasting = given.map_or_else(|| Lasting::of_programs(&loaded), Ok)?;
    Ok((loaded, lasting))
}

/// All that is loaded.
pub struct Loaded {
    pub programs: Programs,
    pub maps: Maps,
    pub lasting: Lasting,
    pub words: Words,
    pub slots: Arc<Slots>,
}

/// Loads the programs, not attached, with their maps. `given`: maps of the driver whose place is taken. Their words are not looked at
/// before [`Words::join`] and [`Slots::join`].
///
/// # Errors
/// A sentence on what the kernel lacks.
pub fn load(admin_socket: &Path, given: Option<Lasting>) -> std::result::Result<Loaded, String> {
    if let Some(why) = unavailable() {
        return Err(why);
    }
    let place = unified_hierarchy().unwrap_or_default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = attempt(&format!("{}", place.display()), open(&place, flags, Mode::empty()))?;
    let is_given = given.is_some();
    let (mut loaded, lasting) = load_programs(given)?;
    let (mut programs, mut ids) = (Vec::new(), Vec::new());
    for (name, kind) in KINDS {
        let (fd, id) = load_program(&mut loaded, name, kind)?;
        programs.push((fd, kind));
        ids.push(id);
    }
    let map = |name: &str| -> std::result::Result<OwnedFd, String> {
        let map = loaded.map(name).ok_or_else(|| format!("{name} is missing"))?;
        let data = match map {
            Map::Array(data) | Map::HashMap(data) | Map::LpmTrie(data) | Map::LruHashMap(data) => data,
            _ => return Err(format!("{name} is of another kind")),
        };
        attempt(name, data.fd().as_fd().try_clone_to_owned())
    };
    let shared = |name: &str| map(name).map(Arc::new);
    let array = |name: &str, words| -> std::result::Result<Array, String> {
        let of_map = if is_given { Array::before_map } else { Array::of_map };
        attempt("mapping counters", of_map(map(name)?, words))
    };
    let config = attempt("mapping counters", Array::of_map(map("config")?, Words::OF_CONFIG))?;
    let words = Words::new(config, array("tenants", Words::OF_TENANTS)?, array("hits", Words::OF_HITS)?);
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
    let programs = Programs { root, programs, stale, attached: false, awaited: None, answers: false, file };
    Ok(Loaded { programs, maps, lasting, words, slots })
}

/// Loads a program. Returns it with its number.
fn load_program(loaded: &mut Ebpf, name: &str, kind: u32) -> std::result::Result<(OwnedFd, u32), String> {
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
    Ok((attempt(name, fd)?, attempt(name, program.info())?.id()))
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
    /// Attaches the programs; that of `getsockopt` only if `answers`. Where there are programs of a predecessor, [`Self::succeed`] does so.
    ///
    /// # Errors
    /// Errors of bpf(2); no program is newly attached then.
    pub fn attach(&mut self, answers: bool) -> Result<()> {
        if !self.stale.is_empty() {
            self.awaited = Some(answers);
            return Ok(());
        }
        if !self.attached {
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

    /// Tells whether the programs are attached.
    pub fn are_attached(&self) -> bool {
        self.attached
    }

    /// Detaches the program of `getsockopt`, which the policy in force does not need.
    pub fn fall_silent(&mut self) {
        if std::mem::take(&mut self.answers) {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| *kind == GETSOCKOPT) {
                let _ = bpf::detach(&self.root, program, *kind);
            }
        }
    }

    /// Ends the programs of predecessors. If a policy is in force, these take their places, each by one step of the kernel: at no moment
    /// is a connection led by both, or by neither.
    pub fn succeed(&mut self, is_bound: bool) {
        let stale = std::mem::take(&mut self.stale);
        if let Some(answers) = self.awaited.take().filter(|_| is_bound) {
            for (program, kind) in self.programs.iter().filter(|(_, kind)| answers || *kind != GETSOCKOPT) {
                let mut previous = stale.iter().filter(|(_, of)| of == kind);
                let is_replaced =
                    previous.any(|(previous, _)| bpf::replace(&self.root, program, previous, *kind).is_ok());
                // None of them was attached.
                let attached = if is_replaced { Ok(()) } else { bpf::attach(&self.root, program, *kind) };
                if let Err(errno) = attached {
                    tracing::error!(%errno, kind, "a program of the kernel's half is not attached");
                }
            }
            (self.attached, self.answers) = (true, answers);
        }
        for (program, kind) in stale {
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
        self.succeed(false);
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
