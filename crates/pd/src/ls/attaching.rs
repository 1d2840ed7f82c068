//! Reasons why a process is not attached to a driver, from its memory map, its environment, its rights and the driver.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pd_client::SOCKET_PATH_DEFAULT;
use pd_driver::admin::RefusedReport;
use pd_driver::Refusal;
use procfs::process::{FDInfo, FDTarget, Process, Status};
use procfs::{Current, FromBufRead};

use crate::program;

/// `CAP_DAC_OVERRIDE`: file modes do not count.
const DAC_OVERRIDE: u64 = 1 << 1;
/// Tolerance in comparing a process's start with a refusal.
const CLOCKS_DIFFER_SECONDS: f64 = 0.1;

/// Bytes that are read of a process's arguments, of its environment and of its map of memory, which it can make as long as it likes.
const COMMAND_BYTES_MAX: u64 = 4 << 10;
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
const MAPS_BYTES_MAX: u64 = 16 << 20;

/// A process that is not attached.
#[derive(Debug, Default)]
struct Facts {
    /// The reason that its program's file gives against it.
    program: Option<&'static str>,
    /// The loader is in its memory, and the library proper.
    loader: bool,
    library: bool,
    /// Sockets are among its descriptors. The library proper is loaded before the first one.
    sockets: bool,
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
            (_, true, None) if !self.sockets => {
                "the library is loaded before the process makes its first socket".to_owned()
            }
            (_, true, None) => {
                "the library stepped aside: the C library is too old, or the library proper is missing".to_owned()
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
    let environment = environment(process.pid());
    let setting = |name: &str| environment.get(OsStr::new(name));
    let (loader, library) = mapped(process.pid());
    let preload = setting("LD_PRELOAD").map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
    let facts = Facts {
        program: program::reason(&PathBuf::from(format!("/proc/{}/exe", process.pid()))),
        loader,
        library,
        sockets: has_sockets(process),
        asked_for: preload.is_some_and(|text| text.contains("libpd_preload")),
        off: setting("PD_PRELOAD").is_some_and(|mode| mode == "off" || mode == "0"),
        refused: refused.iter().find(|refused| is_it(process, refused)).map(|refused| {
            let errno = Error::from_raw_os_error(refused.errno);
            let remedy = refused.reason.as_deref().and_then(Refusal::from_label);
            let remedy = remedy.map_or_else(String::new, |refusal| format!("; {}", refusal.remedy()));
            format!("the driver refused it: {}: {errno}{remedy}", refused.why)
        }),
        unreachable: status(process.pid())
            .and_then(|status| unreachable(process.pid(), &environment, &status)),
    };
    facts.why()
}

/// Returns the beginning of a file of a process, which says as much there as it likes.
fn beginning(pid: i32, file: &str, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/{file}")) {
        // Bytes that were read before an error count.
        let _ = file.take(bytes_max).read_to_end(&mut bytes);
    }
    bytes
}

/// Returns the status of a process, which may have a name that is no text.
fn status(pid: i32) -> Option<Status> {
    let text = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    Status::from_buf_read(String::from_utf8_lossy(&text).as_bytes()).ok()
}

/// Returns the beginning of a process's command, with blanks between arguments.
pub fn command(pid: i32) -> String {
    let bytes = beginning(pid, "cmdline", COMMAND_BYTES_MAX);
    let words = String::from_utf8_lossy(&bytes).replace('\0', " ");
    words.trim_end().to_owned()
}

fn environment(pid: i32) -> HashMap<OsString, OsString> {
    let bytes = beginning(pid, "environ", ENVIRONMENT_BYTES_MAX);
    let settings = bytes.split(|byte| *byte == 0).filter_map(|setting| {
        let at = setting.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        Some((text(&setting[..at]), text(&setting[at + 1..])))
    });
    settings.collect()
}

/// Returns whether the loader and the library proper are in the process's memory.
fn mapped(pid: i32) -> (bool, bool) {
    let bytes = beginning(pid, "maps", MAPS_BYTES_MAX);
    let is_mapped = |library: &[u8]| {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        lines.any(|line| {
            line.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(library))
        })
    };
    (is_mapped(b"libpd_preload.so"), is_mapped(b"libpd_preload_core.so"))
}

/// Returns whether the process has sockets, or has descriptors that cannot be seen.
fn has_sockets(process: &Process) -> bool {
    let is_socket = |fd: &FDInfo| matches!(fd.target, FDTarget::Socket(_));
    process.fd().map_or(true, |mut fds| fds.any(|fd| fd.is_ok_and(|fd| is_socket(&fd))))
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
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

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
            (Facts { loader: true, sockets: true, ..Facts::default() }, "C library is too old"),
            (Facts { loader: true, ..Facts::default() }, "first socket"),
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

    /// The numbers of `struct prctl_mm_map` that a process may give itself without any right.
    #[test]
    fn arguments_without_end_are_cut() {
        let script = "import ctypes, mmap, sys, time\n\
            libc = ctypes.CDLL(None, use_errno=True)\n\
            libc.mmap.restype = ctypes.c_void_p\n\
            size = 1 << 36\n\
            at = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, ctypes.c_long(0))\n\
            stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()\n\
            code, data, brk = [int(stat[n - 3]) for n in (26, 27)], [int(stat[n - 3]) for n in (45, 46)], int(stat[47 - 3])\n\
            stack = int(stat[28 - 3])\n\
            words = code + data + [brk, brk, stack] + [at, at + size] * 2 + [0]\n\
            map = (ctypes.c_uint64 * 13)(*words, 0xffffffff << 32)\n\
            done = libc.prctl(35, 14, ctypes.byref(map), ctypes.c_long(104), 0)\n\
            print(done, ctypes.get_errno(), flush=True)\n\
            time.sleep(100)\n";
        let mut python = Command::new("python3");
        let mut child = python.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = child.id() as i32;
        let (command, all) = (command(pid), beginning(pid, "environ", ENVIRONMENT_BYTES_MAX));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(line, "0 0\n");
        assert_eq!((command.len(), all.len() as u64), (0, ENVIRONMENT_BYTES_MAX));
    }

    #[test]
    fn this_process_has_no_library() {
        assert!(why(&Process::myself().unwrap(), &[]).contains("the library is not loaded"));
    }
}
