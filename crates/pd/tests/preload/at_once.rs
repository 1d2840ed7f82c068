//! Acts of one side show at once on the other, as in the kernel.

use super::{Site, With};

/// Sends, ends and closes, of which the program knows: it has made them itself, or was told by a pipe or by the end of a process.
#[test]
fn what_a_program_knows_of_its_peer_shows_at_once() {
    let site = Site::new(233);
    let (program, path) = (site.compiled("at_once", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    let expected = site.answer(With::Nothing, &command);
    let file = site.folder.path().join("expected");
    std::fs::write(&file, &expected).unwrap();
    let whole = [&command[..], &[file.to_str().unwrap()]].concat();
    let short = [&["env", "PD_PRELOAD=short"], &whole[..]].concat();
    for (has, command, made_min) in
        [(With::Library, &whole, 240), (With::Mediated, &whole, 240), (With::Library, &short, 120)]
    {
        let before = site.connections();
        let answer = site.answer(has, command);
        assert!(answer == expected, "{has:?} {command:?}\n{}", super::differing(&answer, &expected));
        let made = site.connections() - before;
        assert!(made >= made_min, "{made} on the fabric, {has:?} {command:?}");
    }
}
