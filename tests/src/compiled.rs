//! C programs of the tests.
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the C program `source` into `folder`, with all warnings as errors. The options come last, for one that names a library has to.
/// Returns the program, which has the name of its source.
///
/// # Panics
/// Without gcc, or what the program includes.
pub fn compiled(source: &Path, folder: &Path, options: &[&str]) -> PathBuf {
    let program = folder.join(source.file_stem().expect("a source has a name"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .args(options);
    let output = gcc.output().unwrap_or_else(|error| panic!("{gcc:?}: {error}"));
    assert!(output.status.success(), "{gcc:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Compiles a program of `programs/` into `folder`, as [`compiled`] does.
pub fn compiled_program(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
    compiled(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c"),
        folder,
        options,
    )
}
