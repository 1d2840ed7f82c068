//! Mounts of this process's namespace, as `/proc/self/mounts` lists them.
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount point.
    pub place: PathBuf,
    /// Type of the file system.
    pub kind: String,
    /// Options, divided by commas.
    pub options: String,
}

/// Returns the mounts, in the order of mounting.
///
/// # Errors
/// Errors of reading the list.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mounts")?))
}

/// Returns the mount point of the unified hierarchy of control groups, if it is mounted.
pub fn unified_hierarchy() -> Option<PathBuf> {
    mounts().ok()?.into_iter().find(|mount| mount.kind == "cgroup2").map(|mount| mount.place)
}

/// Parses a list. Users who may mount choose some names in it, of any bytes.
fn parse(list: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let text = |field| String::from_utf8_lossy(field).into_owned();
        Some(Mount { place: unescape(place), kind: text(kind), options: text(options) })
    };
    list.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Returns a path of the list with its blanks and backslashes, which the kernel writes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_in_its_order() {
        let list = b"proc /proc proc rw 0 0\nnone /\xff tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\nbroken /line\n";
        let mount = |place: &str, kind: &str, options: &str| Mount {
            place: place.into(),
            kind: kind.to_owned(),
            options: options.to_owned(),
        };
        let odd = Mount { place: OsString::from_vec(b"/\xff".to_vec()).into(), ..mount("", "tmpfs", "rw") };
        let wanted = [mount("/proc", "proc", "rw"), odd, mount("/sys/fs/cgroup/cpu", "cgroup", "rw,cpu")];
        assert_eq!(parse(list), wanted);
    }

    #[test]
    fn escaped_characters_are_restored() {
        assert_eq!(unescape(b"/a\\040b\\011c\\134d"), PathBuf::from("/a b\tc\\d"));
        assert_eq!(unescape(b"/a\\9\\04"), PathBuf::from("/a\\9\\04"));
        assert!(mounts().unwrap().iter().any(|mount| mount.kind == "proc"));
    }
}
