//! C programs of the tests. A program that links no library by name is kept beside the test binaries, under a name that says what it was made
//! of.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Compiles the C program `source` into `folder`, with all warnings as errors. The options come last, for one that names a library has to.
/// Returns the program, which has the name of its source.
///
/// # Panics
/// Without gcc, or what the program includes.
pub fn compiled(source: &Path, folder: &Path, options: &[&str]) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let program = folder.join(source.file_stem().expect("a source has a name"));
    // The text of a program does not say how a library has changed.
    if options.iter().any(|option| option.starts_with("-l")) {
        run(gcc().arg("-o").arg(&program).arg(source).args(options));
        return program;
    }
    let kept = kept(source, options);
    if !kept.exists() {
        // Another process may compile the same.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let made = kept.with_extension(format!("{}-{number}", std::process::id()));
        run(gcc().arg("-o").arg(&made).arg(source).args(options));
        std::fs::rename(&made, &kept).expect("the programs' folder");
    }
    // By another process: a child that is started meanwhile would have a descriptor of this one's that writes to the program.
    run(Command::new("cp").arg(&kept).arg(&program));
    program
}

/// Compiles a program of `tests/programs`, as [`compiled`] does.
pub fn compiled_program(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
    let file = Path::new("tests/programs").join(name).with_extension("c");
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|above| above.join(&file));
    compiled(&above.find(|source| source.exists()).expect("the program"), folder, options)
}

/// Returns where a program is kept, by what the preprocessor makes of its source, and the options and the compiler.
fn kept(source: &Path, options: &[&str]) -> PathBuf {
    static COMPILER: OnceLock<Vec<u8>> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| run(Command::new("gcc").arg("--version")));
    let text = run(gcc().args(["-E", "-P"]).arg(source).args(options));
    let mut hasher = DefaultHasher::new();
    (compiler, options, text).hash(&mut hasher);
    let own = std::env::current_exe().expect("path of the test");
    let folder = own.parent().expect("a folder").join("programs");
    std::fs::create_dir_all(&folder).expect("the programs' folder");
    folder.join(format!("{}-{:016x}", source.file_stem().expect("a name").to_string_lossy(), hasher.finish()))
}

fn gcc() -> Command {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    gcc
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
