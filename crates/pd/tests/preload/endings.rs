//! Ends of connections that threads and the kernel's calls bring about.

use super::{Site, With};

/// Compares a program that has both ends, also with short connections.
fn compare_alone(third: u8, name: &str, connections_min: u64, also_short: bool) {
    let site = Site::new(third);
    let (program, path) = (site.compiled(name, &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    let expected = site.answer(With::Nothing, &command);
    let short = [&["env", "PD_PRELOAD=short"], &command[..]].concat();
    let ways = [(With::Library, &command[..]), (With::Mediated, &command), (With::Library, &short)];
    for (has, command) in ways.into_iter().take(if also_short { 3 } else { 2 }) {
        let before = site.connections();
        let answer = site.answer(has, command);
        assert!(answer == expected, "{has:?} {command:?}\n{}", super::differing(&answer, &expected));
        let made = site.connections() - before;
        assert!(made >= connections_min, "{made} on the fabric");
    }
}

/// The socket of a short connection has no error of its own afterwards.
#[test]
fn connections_that_are_undone_are_reset_and_their_sockets_used_again() {
    compare_alone(224, "undo", 20, false);
}

#[test]
fn a_call_goes_on_when_another_thread_closes_its_descriptor() {
    compare_alone(225, "outlives", 40, true);
}
