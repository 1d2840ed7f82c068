//! Reasons why a process is not attached to a driver, from its memory map, its environment, its rights and the driver.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pd_client::SOCKET_PATH_DEFAULT;
use pd_driver::admin::RefusedReport;
use pd_driver::Refusal;
use procfs::process::{MMapPath, Process, Status};
use procfs::Current;

use crate::program;

/// `CAP_DAC_OVERRIDE`: file modes do not count.
const DAC_OVERRIDE: u64 = 1 << 1;
/// Tolerance in comparing a process's start with a refusal.
const CLOCKS_DIFFER_SECONDS: f64 = 0.1;

/// A process that is not attached.
#[derive(Debug, Default)]
struct Facts {
    /// The reason that its program's file gives against it.
    program: Option<&'static str>,
    /// The loader is in its memory, and the library proper.
    loader: bool,
    library: bool,
    /// `LD_PRELOAD` names it.
    asked_for: bool,
    /// `PD_PRELOAD` turns it off.
    off: bool,
    /// The error that the driver has refused it with.
    refused: Option<String>,
    /// Reason why the process cannot connect to the driver's socket.
    unreachable: Option<String>,
}

impl Facts {
    fn why(self) -> String {
        if self.off && self.loader {
            return "the library is turned off (PD_PRELOAD)".to_owned();
        }
        match (self.library, self.loader, self.program) {
            (true, ..) => self.refused.or(self.unreachable).unwrap_or_else(|| {
                "the library is loaded; the process has not used the fabric yet".to_owned()
            }),
            (_, true, Some(program)) => format!("the library stepped aside at load: the program {program}"),
            (_, true, None) => {
                "the library stepped aside at load: the C library is too old, or libgcc_s or the \
                                library proper is missing"
                    .to_owned()
            }
            (_, _, Some(program)) => format!("the library is not loaded: the program {program}"),
            _ if self.asked_for => {
                "the library is not loaded: LD_PRELOAD names it, but it was not there, or not \
                                    readable, when the program started, or the process had two users, a real and \
                                    an effective one"
                    .to_owned()
            }
            _ => "the library is not loaded: LD_PRELOAD does not name it".to_owned(),
        }
    }
}

/// Returns the reason why the process is not attached to the driver, which has refused these lately.
pub fn why(process: &Process, refused: &[RefusedReport]) -> String {
    let environment = process.environ().unwrap_or_default();
    let setting = |name: &str| environment.get(OsStr::new(name));
    let (loader, library) = mapped(process);
    let preload = setting("LD_PRELOAD").map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
    let facts = Facts {
        program: program::reason(&PathBuf::from(format!("/proc/{}/exe", process.pid()))),
        loader,
        library,
        asked_for: preload.is_some_and(|text| text.contains("libpd_preload")),
        off: setting("PD_PRELOAD").is_some_and(|mode| mode == "off" || mode == "0"),
        refused: refused.iter().find(|refused| is_it(process, refused)).map(|refused| {
            let errno = Error::from_raw_os_error(refused.errno);
            let remedy = refused.reason.as_deref().and_then(Refusal::from_label);
            let remedy = remedy.map_or_else(String::new, |refusal| format!("; {}", refusal.remedy()));
            format!("the driver refused it: {}: {errno}{remedy}", refused.why)
        }),
        unreachable: process
            .status()
            .ok()
            .and_then(|status| unreachable(process.pid(), &environment, &status)),
    };
    facts.why()
}

/// Returns whether the loader and the library proper are in the process's memory.
fn mapped(process: &Process) -> (bool, bool) {
    let (mut loader, mut library) = (false, false);
    for map in process.maps().into_iter().flatten() {
        let MMapPath::Path(path) = map.pathname else { continue };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        loader |= name.starts_with("libpd_preload.so");
        library |= name.starts_with("libpd_preload_core.so");
    }
    (loader, library)
}

/// Returns whether the process is the refused one: its number may have been another's then.
fn is_it(process: &Process, refused: &RefusedReport) -> bool {
    let age = || {
        let started = process.stat().ok()?.starttime as f64 / procfs::ticks_per_second() as f64;
        Some(procfs::Uptime::current().ok()?.uptime - started)
    };
    i64::from(refused.pid) == i64::from(process.pid())
        && age().is_some_and(|age| refused.seconds_ago <= age + CLOCKS_DIFFER_SECONDS)
}

/// Returns the reason why the process cannot connect to its driver's socket.
fn unreachable(pid: i32, environment: &HashMap<OsString, OsString>, status: &Status) -> Option<String> {
    let named = environment.get(OsStr::new("PD_SOCKET")).map(Path::new);
    let path = named.unwrap_or(Path::new(SOCKET_PATH_DEFAULT));
    let seen = PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?);
    let user = status.fuid;
    match access(&seen, status) {
        Ok(()) => None,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Some(format!(
            "cannot attach: {}: {error}: not for user {user}; see socket_mode and socket_group",
            path.display()
        )),
        Err(error) => Some(format!("cannot attach: {}: {error}", path.display())),
    }
}

/// Returns whether a process may connect to a socket, as the kernel decides it by file modes.
fn access(socket: &Path, status: &Status) -> std::io::Result<()> {
    if status.capeff & DAC_OVERRIDE == 0 {
        let folders = socket.ancestors().skip(1).take_while(|folder| folder.as_os_str() != "/proc");
        for folder in folders.collect::<Vec<_>>().into_iter().rev() {
            check(folder, status, 1)?;
        }
        return check(socket, status, 2);
    }
    socket.metadata().map(drop)
}

fn check(path: &Path, status: &Status, wanted: u32) -> std::io::Result<()> {
    let file = path.metadata()?;
    let shift = if file.uid() == status.fuid {
        6
    } else if file.gid() == status.fgid || status.groups.contains(&file.gid()) {
        3
    } else {
        0
    };
    match file.mode() >> shift & wanted {
        0 => Err(Error::from_raw_os_error(rustix::io::Errno::ACCESS.raw_os_error())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_nearest_cause_is_named() {
        let refused = || Some("the driver refused it: too many".to_owned());
        for (facts, part) in [
            (Facts::default(), "LD_PRELOAD does not name it"),
            (Facts { asked_for: true, ..Facts::default() }, "was not there"),
            (
                Facts { program: Some("is a static program"), asked_for: true, ..Facts::default() },
                "is a static program",
            ),
            (Facts { loader: true, ..Facts::default() }, "C library is too old"),
            (Facts { loader: true, program: Some("is linked with musl"), ..Facts::default() }, "musl"),
            (Facts { loader: true, off: true, ..Facts::default() }, "turned off"),
            (Facts { loader: true, library: true, refused: refused(), ..Facts::default() }, "too many"),
            (Facts { loader: true, library: true, ..Facts::default() }, "has not used the fabric yet"),
        ] {
            let told = format!("{facts:?}");
            assert!(facts.why().contains(part), "{told}");
        }
    }

    #[test]
    fn modes_of_socket_and_folders_decide() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        std::fs::write(&socket, "").unwrap();
        let set =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let mut status = Process::myself().unwrap().status().unwrap();
        (status.fuid, status.fgid, status.groups, status.capeff) = (4711, 4711, Vec::new(), 0);
        let denied = |status: &Status| access(&socket, status).err().map(|error| error.kind());
        set(folder.path(), 0o755);
        set(&socket, 0o660);
        assert_eq!(denied(&status), Some(ErrorKind::PermissionDenied));
        status.groups = vec![socket.metadata().unwrap().gid()];
        assert_eq!(denied(&status), None);
        set(folder.path(), 0o700);
        assert_eq!(denied(&status), Some(ErrorKind::PermissionDenied));
        status.capeff = DAC_OVERRIDE;
        assert_eq!(denied(&status), None);
        std::fs::remove_file(&socket).unwrap();
        assert_eq!(denied(&status), Some(ErrorKind::NotFound));
    }

    #[test]
    fn this_process_has_no_library() {
        assert!(why(&Process::myself().unwrap(), &[]).contains("the library is not loaded"));
    }
}
