//! Files that the demo streams where none is named: large real ones of this machine.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Folders that are searched when no file is named.
const ROOTS: [&str; 5] = ["/usr", "/opt", "/root", "/home", "/var"];
/// Smaller files are not worth opening.
const FILE_BYTES_MIN: u64 = 1 << 20;
/// Larger files might not fit the page cache.
const FILE_BYTES_MAX: u64 = 2 << 30;
/// Files changed more recently may be changing still.
const SETTLED: Duration = Duration::from_secs(60);

/// A file that may be streamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
}

/// Finds large real files, biggest first, until they have `wanted` bytes in all or none are left.
pub fn find(wanted: u64) -> Vec<Candidate> {
    select(find_all(), wanted)
}

/// Finds the smallest real file that is worth streaming.
pub fn find_smallest() -> Option<Candidate> {
    find_all().into_iter().min_by(|a, b| a.bytes.cmp(&b.bytes).then_with(|| a.path.cmp(&b.path)))
}

fn find_all() -> Vec<Candidate> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for root in ROOTS {
        if let Ok(metadata) = fs::symlink_metadata(root) {
            if metadata.is_dir() && !is_special(Path::new(root)) {
                walk(Path::new(root), metadata.dev(), &mut seen, &mut found);
            }
        }
    }
    found
}

fn walk(dir: &Path, device: u64, seen: &mut HashSet<(u64, u64)>, found: &mut Vec<Candidate>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if !kind.is_dir() && !kind.is_file() {
            continue;
        }
        let Ok(metadata) = entry.metadata() else { continue };
        let path = entry.path();
        if kind.is_file() {
            if is_suitable(&metadata)
                && seen.insert((metadata.dev(), metadata.ino()))
                && File::open(&path).is_ok()
            {
                found.push(Candidate { path, bytes: metadata.len() });
            }
        } else if metadata.dev() == device || !is_special(&path) {
            walk(&path, metadata.dev(), seen, found);
        }
    }
}

/// Tells whether a file has a good size and no holes, and has not changed lately.
fn is_suitable(metadata: &Metadata) -> bool {
    let settled = metadata
        .modified()
        .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age >= SETTLED));
    (FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(&metadata.len())
        && metadata.blocks() * 512 >= metadata.len()
        && settled
}

/// Returns whether a file system makes its files up, keeps them in memory, or has them elsewhere.
fn is_special(path: &Path) -> bool {
    // proc, sysfs, tmpfs, ramfs, cgroup, cgroup2, devpts, debugfs, tracefs, securityfs, fuse, nfs, smb2, 9p.
    const SPECIAL: [u64; 14] = [
        0x9fa0,
        0x6265_6572,
        0x0102_1994,
        0x8584_58f6,
        0x0027_e0eb,
        0x6367_7270,
        0x1cd1,
        0x6462_6720,
        0x7472_6163,
        0x7363_6673,
        0x6573_5546,
        0x6969,
        0xfe53_4d42,
        0x0102_1997,
    ];
    rustix::fs::statfs(path).map_or(true, |fs| SPECIAL.contains(&(fs.f_type as u64 & 0xffff_ffff)))
}

fn select(mut found: Vec<Candidate>, wanted: u64) -> Vec<Candidate> {
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    let mut total = 0;
    found
        .into_iter()
        .take_while(|file| {
            let more = total < wanted;
            total += file.bytes;
            more
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(sizes: &[u64]) -> Vec<Candidate> {
        sizes.iter().map(|&bytes| Candidate { path: format!("/{bytes}").into(), bytes }).collect()
    }

    #[test]
    fn the_biggest_are_taken_until_there_is_enough() {
        let sizes = |wanted| -> Vec<u64> {
            select(candidates(&[10, 40, 30, 20]), wanted).iter().map(|c| c.bytes).collect()
        };
        assert_eq!(sizes(60), [40, 30]);
        assert_eq!(sizes(70), [40, 30]);
        assert_eq!(sizes(71), [40, 30, 20]);
        assert_eq!(sizes(1000), [40, 30, 20, 10]);
    }

    #[test]
    fn special_file_systems_are_seen() {
        assert!(is_special(Path::new("/proc")));
        assert!(is_special(Path::new("/sys")));
        assert!(!is_special(Path::new("/usr")));
    }

    #[test]
    fn fresh_small_and_sparse_files_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let old = SystemTime::now() - 2 * SETTLED;
        let suitable = |bytes: &[u8], length: u64, time| {
            fs::write(&path, bytes).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            file.sync_all().unwrap();
            file.set_modified(time).unwrap();
            is_suitable(&file.metadata().unwrap())
        };
        let full = vec![7; FILE_BYTES_MIN as usize];
        assert!(suitable(&full, FILE_BYTES_MIN, old));
        assert!(!suitable(&full, FILE_BYTES_MIN, SystemTime::now()));
        assert!(!suitable(&full, FILE_BYTES_MIN - 1, old));
        assert!(!suitable(&full, 4 * FILE_BYTES_MIN, old));
    }
}
