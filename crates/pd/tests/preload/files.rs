//! Files that programs send.

use super::{programs, Site, PORT};
use std::os::unix::fs::MetadataExt;

const FILE_BYTES: u32 = 6_000_000;

/// Output does not depend on the transport of the bytes; on the offloaded path the driver reads the files.
fn compare(third: u8, movers: usize, mode: &str, ways: &str) {
    let site = Site::with_movers(third, movers);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, (0..FILE_BYTES).map(|n| ((n * 31) >> 5) as u8).collect::<Vec<_>>()).unwrap();
    let program = programs().join("files.py");
    let (program, file) = (program.to_str().unwrap(), path.to_str().unwrap());
    let (mode, ip) = (format!("PD_PRELOAD={mode}"), site.address(2));
    site.compare(
        &["env", &mode, "python3", program, "server", PORT, file],
        &["env", &mode, "python3", program, "client", &ip, PORT, ways],
    );
    // Files of other file systems than a disk's own are copied by the program.
    let device = path.metadata().unwrap().dev();
    let read = site.counter("file_bytes");
    assert_eq!(read > u64::from(FILE_BYTES), rustix::fs::major(device) != 0, "{read} bytes by the driver");
    assert_eq!((site.counter("files_failed"), site.counter("clients_cut_off")), (0, 0));
}

#[test]
fn files_arrive_whoever_reads_them() {
    compare(87, 1, "on", "all");
}

#[test]
fn files_arrive_by_short_connections() {
    compare(88, 1, "short", "alone");
}

#[test]
fn files_arrive_with_several_movers() {
    compare(115, 3, "on", "all");
}
