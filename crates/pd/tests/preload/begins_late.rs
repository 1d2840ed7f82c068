//! Programs that do something else before they make their first socket: the library proper is loaded then, and not before.

use super::{Site, With, PORT};

/// Acts of a program before its first socket, and its connections that then go over the fabric.
const WAYS: [(&str, u64); 21] = [
    ("errno", 1),
    ("handler", 1),
    ("in_handler", 1),
    ("vfork", 1),
    ("forked", 2),
    ("small_thread", 1),
    ("c11_thread", 1),
    ("many_threads", 8),
    ("chdir", 1),
    ("clearenv", 1),
    ("overwritten", 1),
    // The driver's socket is outside of the new root.
    ("chroot", 0),
    ("user", 1),
    ("filter", 0),
    ("memory", 1),
    // There is no descriptor for an attachment.
    ("descriptors", 0),
    ("atfork", 1),
    ("epoll", 1),
    ("message", 1),
    ("image_high", 1),
    ("image_low", 1),
];

#[test]
fn what_a_program_does_before_its_first_socket_changes_nothing() {
    let mut site = Site::new(240);
    // For capabilities that the program gives up.
    site.privileged = true;
    let program = site.compiled("begins_late", &[]);
    let ip = site.address(2);
    for with in [With::Library, With::Mediated] {
        let _server = site.serve(with, &[&program, "server", PORT]);
        for (way, on_fabric) in WAYS {
            let before = site.connections();
            let words = format!("cd {:?} && exec \"$@\"", site.folder.path());
            let client = ["sh", "-c", &words, "sh", &program, way, &ip, PORT];
            assert_eq!(site.answer(with, &client), format!("{way} right\n"), "{with:?}");
            assert_eq!(site.connections() - before, on_fabric, "{with:?}: {way}");
        }
    }
}

/// A program without sockets does not pay for them.
#[test]
fn a_program_without_sockets_is_without_the_library_proper() {
    let site = Site::new(241);
    let program = site.compiled("begins_late", &[]);
    let command = [program.as_str(), "none", "127.0.0.1", PORT];
    assert_eq!(site.answer(With::Library, &command), "loaded 0\nnone right\n");
}
