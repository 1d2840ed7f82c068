//! AF_UNIX stream sockets, whose files two containers share.

use super::{programs, Site, With};

#[test]
fn unix_sockets_answer_the_same_whatever_carries_the_bytes() {
    let site = Site::new(76);
    compare(&site);
    let program = programs().join("unix.py");
    let program = program.to_str().unwrap();
    let [kernel, fabric] =
        [With::Nothing, With::Library].map(|has| site.answer(has, &["python3", program, "own", "-"]));
    assert_eq!(kernel, fabric);
}

pub(super) fn compare(site: &Site) {
    let program = programs().join("unix.py");
    let program = program.to_str().unwrap();
    let path = site.folder.path().join("unix");
    let path = path.to_str().unwrap();
    site.compare(&["python3", program, "server", path], &["python3", program, "client", path]);
}

/// A connection leaves the fabric by the first of them; nothing of that is an end.
#[test]
fn descriptors_arrive_and_nobody_hears_of_an_end_before_it() {
    let site = Site::new(104);
    let program = programs().join("handles.py");
    let program = program.to_str().unwrap();
    let path = site.folder.path().join("handles");
    let path = path.to_str().unwrap();
    site.compare(&["python3", program, "server", path], &["python3", program, "client", path]);
}

/// The kernel wakes a thread that sleeps before each small message sooner. Large messages stay, and so do those that a policy has
/// the driver see.
#[test]
fn small_talk_goes_on_in_the_kernel() {
    let site = Site::new(111);
    let program = programs().join("talk.py");
    let program = program.to_str().unwrap();
    let said = || {
        let log = std::fs::read_to_string(site.log()).unwrap_or_default();
        log.matches("leaves the fabric: small messages").count()
    };
    for (has, size, leaves) in [
        (With::Library, "64", 1),
        (With::Library, "65536", 0),
        (With::Mediated, "64", 0),
        (With::Nothing, "64", 0),
    ] {
        let path = site.folder.path().join(format!("{has:?}-{size}"));
        let path = path.to_str().unwrap();
        let before = said();
        let running = site.serve(has, &["python3", program, "server", path]);
        let answer = site.answer(has, &["python3", program, "client", path, size]);
        drop(running);
        assert_eq!(answer.trim(), "1500 rounds", "{has:?}, {size} bytes");
        assert_eq!(said() - before, leaves, "{has:?}, {size} bytes");
    }
}
