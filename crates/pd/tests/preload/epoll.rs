//! Epoll instances: whatever happens to one, and to its numbers.

use super::{Site, PORT};
use std::path::Path;

#[test]
fn epoll_instances_answer_the_same_whatever_happens_to_their_numbers() {
    let site = Site::new(109);
    let program = site.compiled("instances", &[]);
    let program = program.as_str();
    site.compare(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}

/// The base of Rust's asynchronous runtimes.
#[test]
fn a_program_on_mio_answers_the_same_whatever_carries_the_bytes() {
    let site = Site::new(93);
    let program = Path::new(env!("CARGO_BIN_EXE_pd")).parent().unwrap().join("examples/mio_echo");
    assert!(program.exists(), "not built: cargo build --package pd --examples");
    let program = program.to_str().unwrap();
    site.compare(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}
