//! Obstacles to serving a program by the preload library, as far as its file tells.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Longest first line of a script.
const LINE_BYTES_MAX: usize = 256;
/// Program headers that are looked at.
const HEADERS_MAX: usize = 64;
const HEADER_BYTES: usize = 56;
const INTERPRETER: u32 = 3;

/// Returns the reason why the connections of this program stay on the kernel although the library is to be loaded,
/// if its file shows it. Programs without a slash are searched in `PATH`; of a script its interpreter counts.
pub fn stays_on_kernel(program: &OsStr) -> Option<String> {
    let file = find(program)?;
    let file = script_interpreter(&file).unwrap_or(file);
    let why = reason(&file)?;
    Some(format!("{} {why}: its connections stay on the kernel", file.display()))
}

fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return Some(path.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(path)).find(|file| file.is_file())
}

/// Opens a program's file. A pipe of that name keeps nobody waiting for its other end.
fn open(file: &Path) -> Option<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file).ok()
}

fn script_interpreter(file: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    open(file)?.take(LINE_BYTES_MAX as u64).read_to_end(&mut line).ok()?;
    let line = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    let mut words = line.lines().next()?.split_whitespace();
    let first = words.next()?;
    match (Path::new(first).file_name()?.to_str()?, words.next()) {
        ("env", Some(name)) => find(OsStr::new(name)),
        _ => Some(PathBuf::from(first)),
    }
}

/// Returns the fault of this file, as a predicate of its program ("is ..."), if any.
pub fn reason(path: &Path) -> Option<&'static str> {
    const SET_ID: u32 = 0o6000;
    let file = open(path)?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if header[..4] != *b"\x7fELF" {
        return None;
    }
    if header[4] != 2 {
        return Some("is no 64-bit program");
    }
    if file.metadata().ok()?.mode() & SET_ID != 0 {
        return Some("is a set-id program, to which the dynamic linker gives no library of its user's");
    }
    let half = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let start = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let (bytes, count) = (half(54), half(56).min(HEADERS_MAX));
    for number in 0..count {
        let mut part = [0; HEADER_BYTES];
        file.read_exact_at(&mut part, start.checked_add((number * bytes) as u64)?).ok()?;
        let long = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("eight bytes"));
        if u32::from_le_bytes(part[..4].try_into().ok()?) == INTERPRETER {
            let mut name = vec![0; usize::try_from(long(32)).ok()?.min(LINE_BYTES_MAX)];
            file.read_exact_at(&mut name, long(8)).ok()?;
            let musl = String::from_utf8_lossy(&name).contains("ld-musl");
            return musl.then_some("is linked with musl, not glibc");
        }
    }
    Some("is a static program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_and_a_script_are_no_news() {
        assert_eq!(stays_on_kernel(OsStr::new("sh")), None);
        assert_eq!(stays_on_kernel(std::env::current_exe().unwrap().as_os_str()), None);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/usr/bin/env sh\necho\n").unwrap();
        assert_eq!(stays_on_kernel(script.as_os_str()), None);
    }

    #[test]
    fn a_pipe_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(stays_on_kernel(pipe.as_os_str()), None);
    }

    /// Headers as they may be: cut short, without parts, with numbers that lead nowhere.
    #[test]
    fn odd_files_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("odd");
        let mut header = vec![0u8; 64];
        header[..5].copy_from_slice(b"\x7fELF\x02");
        let says = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            reason(&file)
        };
        assert_eq!(says(&header), Some("is a static program"));
        assert_eq!(says(&header[..20]), None);
        header[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        header[54..58].copy_from_slice(&[56, 0, 255, 255]);
        assert_eq!(says(&header), None);
        header[4] = 1;
        assert_eq!(says(&header), Some("is no 64-bit program"));
    }
}
