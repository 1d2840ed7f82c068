//! System calls of the library's, where a program's call needs none.

use super::{Site, With};

/// Rounds of a run, and of the run that it is compared with.
const ROUNDS: u64 = 10_000;
const BEFORE: u64 = 1_000;

/// Returns the system calls of a run.
fn counted(site: &Site, program: &str, kind: &str, rounds: u64) -> u64 {
    let summary = site.folder.path().join("summary");
    let output = format!("--output={}", summary.display());
    let count = (BEFORE + rounds).to_string();
    let command = ["strace", "--follow-forks", "--summary-only", &output, program, kind, &count];
    assert_eq!(site.answer(With::Library, &command).trim(), "done", "{kind}");
    let text = std::fs::read_to_string(&summary).unwrap();
    let total = text.lines().rev().find(|line| line.ends_with("total")).expect("a sum");
    total.split_whitespace().nth(3).unwrap().parse().unwrap()
}

/// Calls that need not wait make no system calls, in any number: neither for their pointers, nor for the library's periodic
/// checks. One look in eight at an epoll instance includes the kernel's members.
#[test]
fn calls_that_need_no_sleep_make_no_system_calls() {
    if !super::tools::has("strace") {
        return;
    }
    let site = Site::new(151);
    let program = site.compiled("steady", &[]);
    // Of 1,000 calls. On a busy machine a peer is late now and then, and is waited for.
    let kinds = [
        ("send", 50),
        ("count", 50),
        ("peek", 50),
        ("message", 50),
        ("pieces", 50),
        ("poll", 50),
        ("select", 50),
        ("epoll", 300),
        // Now and then it is looked whether somebody waits unseen, by the clock.
        ("nothing", 100),
    ];
    for (kind, most) in kinds {
        let [few, many] = [0, ROUNDS].map(|rounds| counted(&site, &program, kind, rounds));
        let more = many.saturating_sub(few);
        println!("{kind}: {few} and {more} of {ROUNDS} rounds");
        assert!(more <= most * ROUNDS / 1000, "{kind}: {more} system calls of {ROUNDS} rounds");
    }
}

/// The children of a server that forks for each connection, and closes its listener there.
#[test]
fn who_only_closes_a_listener_does_not_attach() {
    const SERVER: &str = "
import os, socket
listener = socket.create_server(('127.0.0.1', 0))
for n in range(6):
    client = os.fork()
    if client == 0:
        os.environ['PD_PRELOAD'] = 'off'
        os.execvp('python3', ['python3', '-c', f'''
import socket
print(socket.create_connection({listener.getsockname()}).recv(10), flush=True)'''])
    connection = listener.accept()[0]
    child = os.fork()
    if child == 0:
        listener.close()
        connection.sendall(b'served')
        os._exit(0)
    connection.close()
    os.waitpid(child, 0)
    os.waitpid(client, 0)
";
    let site = Site::new(239);
    let command = ["python3", "-c", SERVER];
    assert_eq!(site.answer(With::Library, &command), site.answer(With::Nothing, &command));
    let attached = site.counter("clients_attached");
    assert!(attached <= 2, "{attached} clients");
}
