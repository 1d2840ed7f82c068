use super::pair::Pair;
use super::site::{program, Site, CLIENT, SERVER};
use pd_tests::{program_path, TestDriver};
use std::process::{Command, Stdio};

#[test]
#[ignore = "needs python3: make test-programs"]
fn processes_of_pythons_multiprocessing_share_queues_over_the_fabric() {
    let site = Site::new(18);
    site.compare(10 << 20, |site, library| {
        let program = program("processes.py");
        let server = site.serve(SERVER, library, 7400, &["python3", &program, "server"]);
        let answer = site.run(CLIENT, library, &["python3", &program, "client", &site.server()]);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs python3: make test-programs"]
fn killed_processes_of_pythons_multiprocessing_leave_nothing() {
    let site = Site::new(19);
    let program = program("processes.py");
    // The container outlives its server: connecting to an unused address would wait for minutes.
    let serves = format!("python3 {program} server; exec sleep 1000");
    for victim in ["server", "client"] {
        let server = site.serve(SERVER, true, 7400, &["sh", "-c", &serves]);
        let before = site.delivered();
        let mut client = site.start(CLIENT, true, &["python3", &program, "forever", &site.server()]);
        site.wait_for_bytes(before, 4 << 20);
        if victim == "server" {
            server.kill("python3");
            assert!(!client.wait(), "the client has not noticed");
        } else {
            client.kill("python3");
            assert!(!client.wait(), "it was killed");
            site.run(CLIENT, true, &["python3", &program, "release", &site.server()]);
            site.wait_for_ends();
        }
        drop((server, client));
        site.expect_nothing_left();
    }
}

/// Debian's packages are for its own Python.
fn pair(port: u16, name: &str) -> Pair {
    Pair::new(port, "python3", &["/usr/bin/python3", &program(name)])
}

#[test]
#[ignore = "needs python3-grpcio: make test-programs"]
fn a_grpc_server_answers_a_grpc_client() {
    pair(8400, "grpc_echo.py").answers(&Site::new(44), 10 << 20);
}

#[test]
#[ignore = "needs python3-grpcio: make test-programs"]
fn a_killed_grpc_leaves_nothing() {
    pair(8400, "grpc_echo.py").killed_leaves_nothing(&Site::new(45));
}

#[test]
#[ignore = "needs python3-uvloop: make test-programs"]
fn an_uvloop_server_answers_an_uvloop_client() {
    pair(8500, "uvloop_echo.py").answers(&Site::new(46), 25 << 20);
}

#[test]
#[ignore = "needs python3-uvloop: make test-programs"]
fn a_killed_uvloop_leaves_nothing() {
    pair(8500, "uvloop_echo.py").killed_leaves_nothing(&Site::new(47));
}

/// CPython's own tests, on the loopback address.
const SUITES: [&str; 26] = [
    "test_asynchat",
    "test_asyncore",
    "test_docxmlrpc",
    "test_ftplib",
    "test_httplib",
    "test_httpservers",
    "test_imaplib",
    "test_logging",
    "test_nntplib",
    "test_poll",
    "test_poplib",
    "test_signal",
    "test_smtpd",
    "test_smtplib",
    "test_ssl",
    "test_telnetlib",
    "test_urllib2_localnet",
    "test_xmlrpc",
    "test_socket",
    "test_selectors",
    "test_asyncio.test_ssl",
    "test_asyncio.test_streams",
    "test_asyncio.test_events",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_buffered_proto",
];

/// Returns the result of each of a suite's tests, and all output.
fn outcomes(suite: &str, driver: &TestDriver, library: bool) -> (String, String) {
    let file = driver.folder().join("outcomes");
    let mut python = Command::new("timeout");
    python.args(["-k", "1", "300", "/usr/bin/python3.11", &program("suite.py")]);
    python
        .arg(&file)
        .arg(format!("test.{suite}"))
        .env("PD_SOCKET", driver.socket())
        .current_dir(driver.folder());
    if library {
        python.env("LD_PRELOAD", program_path("libpd_preload.so")).env("PD_PRELOAD", "all");
    }
    let output = python.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let outcomes = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{suite}: {error}\n{text}"));
    std::fs::remove_file(file).unwrap();
    (outcomes, text)
}

#[test]
#[ignore = "needs python3.11 and libpython3.11-testsuite: make test-programs"]
fn cpythons_own_tests_come_to_the_same() {
    for suite in SUITES {
        let driver = TestDriver::new();
        let (expected, _) = outcomes(suite, &driver, false);
        assert!(expected.contains(" ok\n"), "{suite}: {expected}");
        assert_eq!(driver.metrics().connections_made, 0);
        let (found, text) = outcomes(suite, &driver, true);
        let differ: Vec<_> =
            found.lines().zip(expected.lines()).filter(|(found, expected)| found != expected).collect();
        assert!(found == expected, "{suite}: {differ:#?}\n{text}");
        println!(
            "{suite}: {} tests, {} connections",
            found.lines().count(),
            driver.metrics().connections_made
        );
        driver.wait_for("nothing is left", |report| report.clients.is_empty());
    }
}
