//! Parts that `pd run`, `pd demo` and `pd bench` share: containers, drivers and peers as child processes, the
//! work of both sides on a stream's bytes, and the measurement of CPU time and spread.
//!
//! The library starts a program that uses containers or peers again with hidden subcommands. The program
//! routes them to [`container::stage`], [`container::init`] and [`tied`]. Everything made on the machine
//! belongs to a value that removes it when dropped. The next [`container::sweep::sweep`] removes the remains
//! of a killed process. Nothing here measures by itself.
#![deny(unsafe_code)]

pub mod config;
pub mod container;
pub mod digest;
pub mod driver;
pub mod engines;
pub mod hugepages;
pub mod known;
pub mod machine;
pub mod measure;
pub mod peer;
pub mod processor;
pub mod progress;
pub mod signals;
pub mod site;
pub mod sys;
pub mod sysctl;
pub mod tied;
pub mod tuning;

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Returns this program's file, to start copies of it.
pub fn own_exe() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        // Replaced since it was started; the kernel still has it.
        _ => PathBuf::from("/proc/self/exe"),
    }
}

/// Returns the preload library that was built or installed together with this program.
///
/// # Errors
/// If there is none.
pub fn preload_library() -> Result<PathBuf> {
    const NAME: &str = "libpd_preload.so";
    let own = own_exe();
    let folder = own.parent().context("this program has no folder")?;
    let places = [folder.join(NAME), folder.join("../lib").join(NAME)];
    places.into_iter().find(|place| place.is_file()).with_context(|| {
        format!("{NAME} is neither beside {} nor in ../lib; run: make install", own.display())
    })
}
