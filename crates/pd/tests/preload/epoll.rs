//! Epoll instances: whatever happens to one, and to its numbers.

use super::{programs, Site, With, PORT, TRIES};
use std::path::Path;

#[test]
fn epoll_instances_answer_the_same_whatever_happens_to_their_numbers() {
    let site = Site::new(109);
    let program = site.compiled("instances", &[]);
    let program = program.as_str();
    site.compare(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}

#[test]
fn a_batch_has_each_registration_once_also_of_connections_that_leave() {
    let site = Site::new(199);
    let program = site.compiled("once", &[]);
    let program = program.as_str();
    site.compare_moving(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}

/// A program that replaces its image, and one whose children are other images.
#[test]
fn another_image_goes_on_with_its_epoll_instances() {
    let mut site = Site::new(113);
    let program = site.compiled("resumes", &[]);
    let (program, address) = (program.as_str(), site.address(2));
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        site.compare(&[program, "server", PORT], &[program, "client", &address, PORT]);
    }
}

/// As in `git push`: a child sends on the connection on which its parent receives.
#[test]
fn two_processes_use_one_connection_at_once() {
    let mut site = Site::new(163);
    let program = site.compiled("shares", &[]);
    let (program, address) = (program.as_str(), site.address(2));
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        site.compare_moving(&[program, "server", PORT], &[program, "client", &address, PORT]);
    }
}

/// A wake-up for several threads is not consumed by the first, and events that a thread leaves in an instance reach the others.
#[test]
fn no_thread_that_sleeps_takes_a_wake_up_of_another() {
    let mut site = Site::new(164);
    let program = site.compiled("sleepers", &[]);
    let (program, address) = (program.as_str(), site.address(2));
    let ways = [
        ("--preload", With::Nothing),
        ("--preload", With::Library),
        ("--preload", With::Mediated),
        ("--preload=short", With::Mediated),
    ];
    let answers = ways.map(|(preload, has)| {
        site.preload = preload;
        let running = site.serve(has, &[program, "server", PORT]);
        let answer = site.answer(has, &[program, "client", &address, PORT]);
        drop(running);
        answer
    });
    assert!(site.connections() > 0);
    answers.iter().skip(1).for_each(|answer| assert_eq!(answer, &answers[0]));
}

/// mio: the base of Rust's asynchronous runtimes.
#[test]
fn a_program_on_mio_answers_the_same_whatever_carries_the_bytes() {
    let site = Site::new(93);
    let program = Path::new(env!("CARGO_BIN_EXE_pd")).parent().unwrap().join("examples/mio_echo");
    assert!(program.exists(), "not built: cargo build --package pd --examples");
    let program = program.to_str().unwrap();
    site.compare(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}

/// A sleeper in `epoll_wait` or `poll` is woken by its peer. If a rate has the driver see all bytes, the driver wakes it.
#[test]
fn a_peer_wakes_a_sleeper_without_the_driver() {
    const ROUNDS: u64 = 1500;
    let site = Site::new(112);
    let program = programs().join("talk.py");
    let program = program.to_str().unwrap();
    let sleeps = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", site.driver.id())).unwrap();
        // A helper that was idle may have ended meanwhile, with few sleeps.
        let status = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("status")).ok()
        };
        let switches = |status: String| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        tasks.filter_map(|task| switches(status(task)?)).sum()
    };
    let during = |has| {
        let server = format!("0.0.0.0:{PORT}");
        let running = site.serve(has, &["python3", program, "server", &server]);
        let before = sleeps();
        let address = format!("{}:{PORT}", site.address(2));
        let answer = site.answer(has, &["python3", program, "client", &address, "64"]);
        drop(running);
        assert_eq!(answer.trim(), format!("{ROUNDS} rounds"), "{has:?}");
        sleeps().saturating_sub(before)
    };
    // On a busy machine a connection is direct late.
    let few = (0..TRIES).map(|_| during(With::Library)).find(|&direct| direct < ROUNDS / 2);
    let direct = few.expect("a run that hardly wakes the driver");
    let mediated = during(With::Rated);
    println!("sleeps of the driver: {direct}, mediated {mediated}");
    assert!(mediated > direct, "the driver was woken {mediated} times where it moves each message");
}
