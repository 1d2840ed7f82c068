//! Programs that have used up their limits.

use super::{Site, With, PORT};

/// Steps of `limits.c`.
const STEPS: u32 = 14;

/// The library never ends a program for lack of memory or of descriptors: the kernel serves it instead.
#[test]
fn programs_without_memory_or_descriptors_go_on() {
    let site = Site::new(141);
    let program = site.compiled("limits", &[]);
    // All of them run in one container: "memory 0" and its outcome, and so on.
    let script = format!(
        "for kind in memory locked soft hard; do step=0; while [ $step -lt {STEPS} ]; do echo $kind $step; \
         timeout 30 {program} $kind $step 2>&1; echo ended $?; step=$((step+1)); done; done"
    );
    let command = ["sh", "-c", &script];
    let expected = site.answer(With::Nothing, &command);
    assert_eq!(expected.matches("ended 0").count(), 4 * STEPS as usize, "{expected}");
    for has in [With::Library, With::Mediated] {
        let found = site.answer(has, &command);
        let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
        let near = |text: &str| {
            text.lines().skip(differs.unwrap_or(0).saturating_sub(30)).take(45).collect::<Vec<_>>().join("\n")
        };
        assert!(found == expected, "{has:?}:\n{}\nexpected:\n{}", near(&found), near(&expected));
    }
}

/// The known limit of the address space serves many connections, and is discarded when the process changes it.
#[test]
fn limits_are_not_asked_for_with_each_connection() {
    const SERVE: &str = "import socket, sys\n\
        listener = socket.create_server((\"0.0.0.0\", int(sys.argv[1])))\n\
        print(\"ready\", flush=True)\n\
        while True: listener.accept()[0].recv(1)";
    const CONNECT: &str = "import resource, socket, sys\n\
        def connect():\n    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as it: it.send(b\"x\")\n\
        for _ in range(200): connect()\n\
        size = int(open(\"/proc/self/statm\").read().split()[0]) * 4096\n\
        resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20),) * 2)\n\
        connect()";
    let site = Site::new(143);
    let trace = site.folder.path().join("trace");
    let _server = site.serve(With::Library, &["python3", "-c", SERVE, PORT]);
    let strace = ["strace", "-f", "-e", "trace=prlimit64", "-o", trace.to_str().unwrap()];
    site.answer(With::Library, &[&strace[..], &["python3", "-c", CONNECT, &site.address(2), PORT]].concat());
    let asked = std::fs::read_to_string(&trace).unwrap();
    let asked = asked.lines().filter(|line| line.contains("RLIMIT_AS, NULL")).count();
    assert!((2..=12).contains(&asked), "{asked} times");
    // With the limit there is no room for a connection's rings.
    assert_eq!(site.connections(), 200);
}
