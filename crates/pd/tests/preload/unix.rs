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
