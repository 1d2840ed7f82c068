//! Ends of connections that threads and the kernel's calls bring about.

use super::{Site, With};

/// Compares a program that has both ends in the given ways, with or without short connections. Returns nothing: panics on a difference, or if
/// fewer than `made_min` connections were on the fabric each time.
fn compare_alone(site: &Site, command: &[&str], ways: &[(With, bool)], made_min: u64) {
    let expected = site.answer(With::Nothing, command);
    let short = [&["env", "PD_PRELOAD=short"], command].concat();
    for &(has, is_short) in ways {
        let before = site.connections();
        let answer = site.answer(has, if is_short { &short } else { command });
        let what = if is_short { "short connections" } else { "" };
        assert!(answer == expected, "{has:?} {command:?} {what}\n{}", super::differing(&answer, &expected));
        let made = site.connections() - before;
        assert!(made >= made_min, "{made} on the fabric, {has:?} {what}");
    }
}

/// Omits short connections: their sockets have no error of their own afterwards.
#[test]
fn connections_that_are_undone_are_reset_and_their_sockets_used_again() {
    let site = Site::new(224);
    let (program, path) = (site.compiled("undo", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    compare_alone(&site, &command, &[(With::Library, false), (With::Mediated, false)], 20);
}

#[test]
fn a_call_goes_on_when_another_thread_closes_its_descriptor() {
    let site = Site::new(225);
    let (program, path) = (site.compiled("outlives", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    compare_alone(
        &site,
        &command,
        &[(With::Library, false), (With::Mediated, false), (With::Library, true)],
        40,
    );
}

/// Closes and shuts down at random moments of a send, also where the connection goes on in the kernel for want of memory.
#[test]
fn a_close_beside_a_send_loses_nothing_at_any_moment() {
    let site = Site::new(226);
    let (program, path) = (site.compiled("close_beside", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap(), "24"];
    let whole = [(With::Library, false), (With::Mediated, false), (With::Library, true)];
    compare_alone(&site, &command, &whole, 80);
    compare_alone(&site, &command, &[(With::Scarce, false)], 40);
}

/// A handler may close the descriptor of the call that it interrupts, give the number to another file, or leave by a jump.
#[test]
fn a_handler_may_end_a_call_in_any_way() {
    let site = Site::new(227);
    let (program, path) = (site.compiled("jumps", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    let whole = [(With::Library, false), (With::Mediated, false), (With::Library, true)];
    compare_alone(&site, &command, &whole, 24);
}

/// A mark of the peer's that came after the close would have the kernel reset the connection.
#[test]
fn an_end_that_leaves_and_is_closed_at_once_loses_nothing() {
    let site = Site::new(228);
    let (program, path) = (site.compiled("leaves_last", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    let whole = [(With::Library, false), (With::Mediated, false), (With::Library, true)];
    compare_alone(&site, &command, &whole, 8);
}
