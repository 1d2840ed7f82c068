//! Builds `libpd_preload.so`, the loader in C, beside the library proper: `loader/loader.c` says what it is.
//! What it exports is what the library proper stands in for, by the names in `src/hooks`.
use std::hash::{DefaultHasher, Hash, Hasher};
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

/// Functions before which the library proper is loaded, and that are called as they are. By glibc's version from which on every
/// program has them: an earlier one may ask by their presence whether it has threads.
const BEGINS: [&str; 2] = ["pthread_create", "thrd_create"];
const BEGINS_VERSION: &str = "GLIBC_2.34";

fn main() {
    println!("cargo:rerun-if-changed=loader");
    println!("cargo:rerun-if-changed=src/hooks");
    println!("cargo:rerun-if-changed=src/start.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let hooks = hooks();
    let names = hooks.iter().map(|hook| hook.name.as_str()).chain(LEAVES).chain(BEGINS);
    let lines: String = names.enumerate().map(|(number, name)| format!("HOOK({number}, {name})\n")).collect();
    let build = build_of(&lines);
    fs::write(out.join("hooks.inc"), lines).expect("hooks.inc");
    fs::write(out.join("hooks.rs"), table(&hooks, build)).expect("hooks.rs");
    let versions = out.join("loader.map");
    fs::write(&versions, format!("{BEGINS_VERSION} {{ {}; }};\n", BEGINS.join("; "))).expect("loader.map");

    let built = out.join("libpd_preload.so");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-nostdlib"])
        .args(["-fno-stack-protector", "-fno-optimize-sibling-calls", "-fvisibility=hidden"])
        // Calls of its own that the compiler makes out of loops would need a C library.
        .args(["-ffreestanding", "-fno-builtin", "-fno-tree-loop-distribute-patterns"])
        .args(["-Wl,-soname,libpd_preload.so", "-Wl,--hash-style=both", "-Wl,-z,noexecstack", "-Wl,-z,defs"])
        .arg(format!("-Wl,--version-script={}", versions.display()))
        .arg(format!("-DFIRST_LEAVING={}", hooks.len()))
        .arg(format!("-DFIRST_BEGINNING={}", hooks.len() + LEAVES.len()))
        .arg(format!("-DPD_BUILD={build}ULL"))
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

/// A function in a block `hooks! { ... }`, and the module that has it.
struct Hook {
    name: String,
    module: String,
}

fn hooks() -> Vec<Hook> {
    let mut hooks = Vec::new();
    for entry in fs::read_dir("src/hooks").expect("src/hooks").flatten() {
        let path = entry.path();
        let module = path.file_stem().and_then(|name| name.to_str()).expect("a module's file");
        let mut inside = false;
        for line in fs::read_to_string(&path).expect("a source file").lines() {
            match line {
                "hooks! {" => inside = true,
                "}" => inside = false,
                _ if inside => {
                    let rest = line.strip_prefix("    fn ").and_then(|rest| rest.split_once('('));
                    let hook =
                        |(name, _): (&str, _)| Hook { name: name.to_owned(), module: module.to_owned() };
                    hooks.extend(rest.map(hook));
                }
                _ => {}
            }
        }
    }
    hooks.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(hooks.iter().any(|hook| hook.name == "connect"), "no hooks in src/hooks");
    hooks
}

/// Returns what tells this loader and library proper from those of other files.
fn build_of(names: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    for file in ["loader/loader.c", "loader/later.h", "loader/jumps.h", "src/start.rs"] {
        fs::read(file).expect(file).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the table of hooks, in the order of the loader's slots.
fn table(hooks: &[Hook], build: u64) -> String {
    let each = |Hook { name, module }: &Hook| format!("    {module}::{name} as *const c_void,\n");
    let lines: String = hooks.iter().map(each).collect();
    format!(
        "pub(crate) const BUILD: u64 = {build};\n\
         pub(crate) const TABLE: [*const c_void; {}] = [\n{lines}];\n",
        hooks.len()
    )
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
