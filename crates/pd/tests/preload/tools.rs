//! Debuggers, checkers and instrumented programs: they run on the fabric as they do without the library.

use super::{answer_of, library, programs, Site, With, PORT};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns whether a program is there to be run; says so if not.
pub(super) fn has(tool: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap().status.success();
    if !found {
        eprintln!("SKIPPED: no {tool}; make test installs it");
    }
    found
}

/// Builds the program `digests` by a compiler with its own options. `None`, and a line of output, if it cannot be built.
fn build(site: &Site, name: &str, compiler: &[&str]) -> Option<String> {
    let program = site.folder.path().join(name);
    let mut command = Command::new(compiler[0]);
    command
        .args(&compiler[1..])
        .args(["-g", "-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(programs().join("digests.c"));
    match command.output() {
        Ok(output) if output.status.success() => Some(program.to_str().unwrap().to_owned()),
        Ok(output) => {
            eprintln!("SKIPPED: {compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            eprintln!("SKIPPED: {compiler:?}: {error}");
            None
        }
    }
}

fn digests(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("connection ")).collect()
}

/// Runs client and, if `server_too`, server behind `words`; the answers are those of the kernel, and the bytes go over the fabric.
fn on_the_fabric(site: &Site, words: &[&str], program: &str, server_too: bool) {
    let ip = site.address(2);
    let plain = build(site, "plain", &["gcc"]).expect("gcc");
    let expected = {
        let _server = site.serve(With::Nothing, &[&plain, "server", PORT]);
        site.answer(With::Nothing, &[&plain, "client", &ip, PORT])
    };
    let serve = [program, "server", PORT];
    let before = site.connections();
    let _server = match server_too {
        true => site.serve(With::Library, &[words, &serve].concat()),
        false => site.serve(With::Library, &[&plain, "server", PORT]),
    };
    let answer = site.answer(With::Library, &[words, &[program, "client", &ip, PORT]].concat());
    assert_eq!(digests(&answer), digests(&expected), "{words:?}: {answer}");
    assert_eq!(digests(&expected).len(), 3);
    assert_eq!(
        site.connections() - before,
        3,
        "{words:?}\n{}",
        std::fs::read_to_string(site.log()).unwrap_or_default()
    );
}

#[test]
fn valgrind_runs_programs_on_the_fabric() {
    if has("valgrind") {
        let site = Site::new(95);
        let program = build(&site, "digests", &["gcc"]).unwrap();
        on_the_fabric(&site, &["valgrind", "--quiet"], &program, true);
    }
}

#[test]
fn strace_and_gdb_run_programs_on_the_fabric() {
    let site = Site::new(96);
    let program = build(&site, "digests", &["gcc"]).unwrap();
    if has("strace") {
        on_the_fabric(
            &site,
            &["strace", "--follow-forks", "--interruptible=anywhere", "--output=/dev/null"],
            &program,
            true,
        );
    }
    if has("gdb") {
        // Words of its own about threads may come in the midst of a line of the program's.
        let quiet = ["-ex", "set print thread-events off"];
        let gdb = [&["gdb", "--batch", "--nx"], &quiet[..], &["-ex", "run", "--args"]].concat();
        on_the_fabric(&site, &gdb, &program, false);
    }
}

#[test]
fn instrumented_programs_run_on_the_fabric() {
    let site = Site::new(97);
    for (name, compiler) in [
        ("gcc-asan-static", &["gcc", "-fsanitize=address", "-static-libasan"][..]),
        ("clang-asan", &["clang", "-fsanitize=address"]),
        ("gcc-tsan", &["gcc", "-fsanitize=thread"]),
        ("clang-tsan", &["clang", "-fsanitize=thread"]),
        ("gcc-ubsan", &["gcc", "-fsanitize=undefined", "-fno-sanitize-recover"]),
    ] {
        if let Some(program) = build(&site, name, compiler) {
            // The library's locks are not instrumented: the man page says so.
            let words = ["env", "TSAN_OPTIONS=ignore_noninstrumented_modules=1"];
            on_the_fabric(&site, &words, &program, true);
        }
    }
}

/// A checker in a shared object has to be the first, as the man page explains.
#[test]
fn a_checker_in_a_shared_object_comes_first() {
    let site = Site::new(98);
    for (name, compiler, runtime) in [
        ("gcc-asan", &["gcc", "-fsanitize=address"][..], "libasan.so"),
        ("clang-asan", &["clang", "-fsanitize=address", "-shared-libasan"], "libclang_rt.asan-x86_64.so"),
    ] {
        let Some(program) = build(&site, name, compiler) else { continue };
        let found = answer_of(Command::new(compiler[0]).arg(format!("-print-file-name={runtime}")));
        let order = format!("LD_PRELOAD={}:{}", found.trim(), library().display());
        on_the_fabric(&site, &["env", &order], &program, true);
    }
}

/// Programs in images that the library proper cannot run in.
mod images {
    use super::*;

    const STAYS: &str = "the program stays on the kernel: ";

    /// Checks that output is correct, and that the library logs why the program is on the kernel.
    fn on_the_kernel(site: &Site, words: &[&str], program: &str, reason: &str) {
        let ip = site.address(2);
        let plain = build(site, "plain", &["gcc"]).expect("gcc");
        let _server = site.serve(With::Library, &[&plain, "server", PORT]);
        let expected = site.answer(With::Nothing, &[&plain, "client", &ip, PORT]);
        let before = site.connections();
        let _ = std::fs::remove_file(site.log());
        let answer = site.answer(With::Library, &[words, &[program, "client", &ip, PORT]].concat());
        assert_eq!(answer, expected, "{words:?}");
        assert_eq!(site.connections(), before, "{words:?}");
        let log = std::fs::read_to_string(site.log()).unwrap_or_default();
        assert!(
            log.lines().any(|line| line.contains(STAYS) && line.contains(reason)),
            "'{reason}' is not in {log:?}"
        );
    }

    /// musl, as in Alpine.
    #[test]
    fn a_program_on_musl_starts_and_stays_on_the_kernel() {
        let site = Site::new(99);
        if let Some(program) = build(&site, "musl", &["musl-gcc"]) {
            on_the_kernel(&site, &[], &program, "the C library is not glibc");
        }
    }

    /// Only what unwinds needs it.
    #[test]
    fn a_program_without_libgcc_s_is_on_the_fabric() {
        let mut site = Site::new(100);
        // To hide a file.
        site.privileged = true;
        let program = build(&site, "digests", &["gcc"]).unwrap();
        let found = answer_of(Command::new("gcc").arg("-print-file-name=libgcc_s.so.1"));
        let hide = format!("mount --bind /dev/null {} && exec \"$@\"", found.trim());
        let words = ["unshare", "--mount", "sh", "-c", &hide, "sh"];
        on_the_fabric(&site, &words, &program, true);
    }

    /// Makes a copy of the loader beside a core library of the test.
    fn beside(site: &Site, make_core: impl Fn(&Path)) -> PathBuf {
        let folder = site.folder.path().join("installed");
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(library(), folder.join("libpd_preload.so")).unwrap();
        make_core(&folder.join("libpd_preload_core.so"));
        folder.join("libpd_preload.so")
    }

    /// The core library needs a version that this C library lacks.
    #[test]
    fn a_program_on_an_old_glibc_starts_and_stays_on_the_kernel() {
        let site = Site::new(105);
        let program = build(&site, "digests", &["gcc"]).unwrap();
        let loader = beside(&site, |core| {
            let at = |name: &str| site.folder.path().join(name).to_str().unwrap().to_owned();
            std::fs::write(at("new.c"), "void of_tomorrow(void) {}").unwrap();
            std::fs::write(at("new.map"), "GLIBC_9.99 { of_tomorrow; };").unwrap();
            std::fs::write(
                at("core.c"),
                "void of_tomorrow(void); struct { unsigned long build; } pd_preload_core; void use(void) { of_tomorrow(); }",
            )
            .unwrap();
            let gcc = |args: &[&str]| assert!(Command::new("gcc").args(args).status().unwrap().success());
            let map = format!("-Wl,--version-script={}", at("new.map"));
            gcc(&[
                "-shared",
                "-nostdlib",
                "-fPIC",
                "-Wl,-soname,libc.so.6",
                &map,
                "-o",
                &at("libc.so.6"),
                &at("new.c"),
            ]);
            gcc(&[
                "-shared",
                "-nostdlib",
                "-fPIC",
                "-o",
                core.to_str().unwrap(),
                &at("core.c"),
                &at("libc.so.6"),
            ]);
        });
        let order = format!("LD_PRELOAD={}", loader.display());
        on_the_kernel(&site, &["env", &order], &program, "GLIBC_9.99");
    }

    #[test]
    fn a_loader_alone_leaves_programs_to_the_kernel() {
        let site = Site::new(102);
        let program = build(&site, "digests", &["gcc"]).unwrap();
        let loader = beside(&site, |_| {});
        let order = format!("LD_PRELOAD={}", loader.display());
        on_the_kernel(&site, &["env", &order], &program, "libpd_preload_core.so");
    }

    /// Functions that the loader stands for by itself: a process, an image or an object comes of them, or they have arguments without end.
    const LEAVES: [&str; 19] = [
        "__dprintf_chk",
        "dlopen",
        "dprintf",
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
        "pthread_create",
        "system",
        "thrd_create",
        "vfork",
    ];

    /// The loader forwards all functions of the core library, which exports nothing else, and has no dependency itself.
    #[test]
    fn the_loader_has_every_hook_and_no_dependency() {
        let names = |options: &[&str], file: &Path| {
            let text = answer_of(
                Command::new("nm").args(["--defined-only", "--format=posix"]).args(options).arg(file),
            );
            let name = |line: &str| line.split([' ', '@']).next().unwrap().to_owned();
            let mut names: Vec<String> = text.lines().map(name).collect();
            names.sort();
            names
        };
        let core = library().with_file_name("libpd_preload_core.so");
        assert_eq!(names(&["--dynamic"], &core), ["pd_preload_core"]);
        let mut exported = names(&["--dynamic"], &library());
        exported.retain(|name| name != "GLIBC_2.34");
        let (leaves, hooks): (Vec<_>, Vec<_>) =
            exported.into_iter().partition(|name| LEAVES.contains(&name.as_str()));
        assert_eq!(leaves, LEAVES);
        let functions = names(&["--demangle"], &core);
        let hooked: BTreeSet<_> = functions
            .iter()
            .filter_map(|name| name.strip_prefix("pd_preload_core::hooks::")?.split_once("::"))
            .filter(|(_, name)| hooks.iter().any(|hook| hook == name))
            .map(|(_, name)| name.to_owned())
            .collect();
        assert_eq!(hooked.into_iter().collect::<Vec<_>>(), hooks);
        let needs =
            answer_of(Command::new("readelf").args(["--dynamic", "--version-info", "--wide"]).arg(library()));
        assert!(!needs.contains("NEEDED") && !needs.contains("Version needs"), "{needs}");
        let symbols = answer_of(Command::new("nm").args(["--dynamic", "--undefined-only"]).arg(library()));
        assert!(symbols.lines().all(|line| line.trim().starts_with("w ")), "{symbols}");
        // Dynamic thread-local storage would allocate in a thread's first call.
        let symbols = answer_of(Command::new("nm").args(["--dynamic", "--undefined-only"]).arg(&core));
        assert!(symbols.contains(" malloc") || symbols.contains(" pthread_"), "{symbols}");
        assert!(!symbols.contains("__tls_get_addr"), "{symbols}");
        // Nor does it take static storage reserved for the program's own objects.
        let flags = answer_of(Command::new("readelf").args(["--dynamic", "--wide"]).arg(core));
        assert!(!flags.contains("STATIC_TLS"), "{flags}");
    }

    /// A processor below the level that other code is built for.
    #[test]
    fn a_processor_below_the_level_is_named() {
        if !has("qemu-x86_64") {
            return;
        }
        let site = Site::new(103);
        let program = build(&site, "digests", &["gcc"]).unwrap();
        let pd = env!("CARGO_BIN_EXE_pd");
        let output =
            Command::new("qemu-x86_64").args(["-cpu", "core2duo", pd, "--version"]).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains("x86-64-v2"), "{complaint}");
        let version = answer_of(Command::new("qemu-x86_64").args(["-cpu", "Nehalem", pd, "--version"]));
        assert!(version.starts_with("pd "), "{version}");
        let preload = format!("LD_PRELOAD={}", library().display());
        let emulated =
            |cpu| ["env", "-u", "LD_PRELOAD", "qemu-x86_64", "-cpu", cpu, "-E", &preload].map(str::to_owned);
        let words = emulated("core2duo");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        on_the_kernel(&site, &words, &program, "x86-64-v2");
    }
}

/// The environment of a set-id program may come from other users than its owner.
#[test]
fn a_set_id_program_takes_no_settings_from_its_environment() {
    let site = Site::new(110);
    let program = build(&site, "digests", &["gcc"]).unwrap();
    let own =
        |command: &str, args: &[&str]| assert!(Command::new(command).args(args).status().unwrap().success());
    own("chmod", &["755", site.folder.path().to_str().unwrap()]);
    own("chown", &["65534", &program]);
    // The dynamic linker loads the library into a set-id program only by this file.
    let etc = site.folder.path().join("etc");
    let script = format!(
        "cp -a /etc {etc} && mount --bind {etc} /etc && echo {} >/etc/ld.so.preload && exec {program} client 127.0.0.1 9",
        library().display(),
        etc = etc.display()
    );
    for (mode, settings_count) in [("755", true), ("4755", false)] {
        own("chmod", &[mode, &program]);
        let _ = std::fs::remove_dir_all(&etc);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).env("PD_SOCKET", "/nonexistent");
        let output = command.env("PD_PRELOAD_LOG", "-").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("connect: "), "{text}");
        let lines = text.lines().filter(|line| line.contains("cannot attach"));
        // The shell's own lines are of the library, too, but it connects to nothing.
        assert_eq!(lines.count() > 0, settings_count, "{mode}: {text}");
    }
}
