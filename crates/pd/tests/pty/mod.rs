//! Pseudo-terminals for tests.

use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use std::fs::File;
use std::os::fd::OwnedFd;

/// Returns the master of a new terminal, and a function that opens the terminal.
pub fn open() -> (File, impl Fn() -> File) {
    let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master.into(), move || File::options().read(true).write(true).open(&name).unwrap())
}
