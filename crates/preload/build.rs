//! Builds `libpd_preload.so`, the loader in C, beside the library proper: `loader/loader.c` says what it is.
//! What it exports is what the library proper stands in for, by the names in `src/hooks`.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Functions by which another process gets descriptors, or another image, or this one an object. They are called as they are, after
/// the library proper was told.
const LEAVES: [&str; 15] = [
    "dlopen",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execve",
    "execveat",
    "execvp",
    "execvpe",
    "fexecve",
    "popen",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "vfork",
];

fn main() {
    println!("cargo:rerun-if-changed=loader");
    println!("cargo:rerun-if-changed=src/hooks");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let hooks = hooks();
    let names = hooks.iter().map(String::as_str).chain(LEAVES);
    let lines: String = names.enumerate().map(|(number, name)| format!("HOOK({number}, {name})\n")).collect();
    fs::write(out.join("hooks.inc"), lines).expect("hooks.inc");

    let built = out.join("libpd_preload.so");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-nostdlib"])
        .args(["-fno-stack-protector", "-fno-optimize-sibling-calls", "-fvisibility=hidden"])
        // Calls of its own that the compiler makes out of loops would need a C library.
        .args(["-ffreestanding", "-fno-builtin", "-fno-tree-loop-distribute-patterns"])
        .args(["-Wl,-soname,libpd_preload.so", "-Wl,--hash-style=both", "-Wl,-z,noexecstack", "-Wl,-z,defs"])
        .arg(format!("-DFIRST_LEAVING={}", hooks.len()))
        .arg("-I")
        .arg(&out)
        .arg("-o")
        .arg(&built)
        .arg("loader/loader.c");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        // The loader runs on any processor, and reports one that is too old for the rest.
        compiler.args(["-march=x86-64", "-mgeneral-regs-only", "-fcf-protection=none"]);
    }
    let status = compiler.status().expect("a C compiler; install gcc");
    assert!(status.success(), "the loader does not compile");
    place(&built, &out);
}

/// Names of the functions in the blocks `hooks! { ... }`.
fn hooks() -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir("src/hooks").expect("src/hooks").flatten() {
        let text = fs::read_to_string(entry.path()).expect("a source file");
        let mut inside = false;
        for line in text.lines() {
            match line {
                "hooks! {" => inside = true,
                "}" => inside = false,
                _ if inside => names.extend(
                    line.strip_prefix("    fn ")
                        .and_then(|rest| rest.split_once('(').map(|(name, _)| name.to_owned())),
                ),
                _ => {}
            }
        }
    }
    names.sort();
    assert!(names.iter().any(|name| name == "connect"), "no hooks in src/hooks");
    names
}

/// Puts it where cargo puts the library proper, the folder that has `build`. In one step: programs may be using it.
fn place(built: &Path, out: &Path) {
    let folder = out.ancestors().find(|path| path.ends_with("build")).and_then(Path::parent);
    let folder = folder.expect("cargo's folder of this profile");
    let fresh = out.join("libpd_preload.so.new");
    fs::copy(built, &fresh)
        .and_then(|_| fs::rename(&fresh, folder.join("libpd_preload.so")))
        .expect("libpd_preload.so");
}
