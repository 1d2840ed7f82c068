//! Ends of connections that the kernel's calls bring about.

use super::{Site, With};

/// The socket of a short connection has no error of its own afterwards, and is not compared.
#[test]
fn connections_that_are_undone_are_reset_and_their_sockets_used_again() {
    let site = Site::new(224);
    let (program, path) = (site.compiled("undo", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    let expected = site.answer(With::Nothing, &command);
    for has in [With::Library, With::Mediated] {
        let before = site.connections();
        let answer = site.answer(has, &command);
        assert!(answer == expected, "{has:?} {command:?}\n{}", super::differing(&answer, &expected));
        let made = site.connections() - before;
        assert!(made >= 20, "{made} on the fabric");
    }
}
