//! AF_UNIX stream sockets, whose files two containers share.

use super::{programs, Site, With, PORT};

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

/// A connection leaves the fabric with its first descriptor, which is not an end.
#[test]
fn descriptors_arrive_and_nobody_hears_of_an_end_before_it() {
    let site = Site::new(104);
    let program = programs().join("handles.py");
    let program = program.to_str().unwrap();
    let path = site.folder.path().join("handles");
    let path = path.to_str().unwrap();
    site.compare(&["python3", program, "server", path], &["python3", program, "client", path]);
}

/// Runs the program `talk` with messages of `size`, over a file or TCP. Returns how often an end has left the fabric for small
/// messages, and how often the driver has refused that.
fn talk(site: &Site, has: With, size: &str, place: &str) -> (usize, usize) {
    let program = programs().join("talk.py");
    let program = program.to_str().unwrap();
    let said = || {
        let log = std::fs::read_to_string(site.log()).unwrap_or_default();
        let refused = log.matches("cannot leave the fabric (small messages").count();
        (log.matches(" leaves the fabric: small messages").count(), refused)
    };
    let before = said();
    let running = site.serve(has, &["python3", program, "server", place]);
    let answer = site.answer(has, &["python3", program, "client", place, size]);
    drop(running);
    assert_eq!(answer.trim(), "1500 rounds", "{has:?}, {size} bytes, {place}");
    let after = said();
    (after.0 - before.0, after.1 - before.1)
}

/// The kernel is faster in waking a thread that sleeps before each small message. Connections with large messages stay, as do
/// those of tenants with a rate, and TCP on the direct path.
#[test]
fn small_talk_goes_on_in_the_kernel() {
    let site = Site::new(111);
    let file = site.folder.path().join("talk");
    let (file, tcp) = (file.to_str().unwrap(), format!("{}:{PORT}", site.address(2)));
    let talk = |has, size, place: &str| {
        let _ = std::fs::remove_file(file);
        talk(&site, has, size, place)
    };
    assert_eq!(talk(With::Library, "64", file), (1, 0));
    assert_eq!(talk(With::Library, "65536", file), (0, 0));
    assert_eq!(talk(With::Library, "64", &tcp), (0, 0));
    assert_eq!(talk(With::Nothing, "64", file), (0, 0));
    for place in [file, &tcp] {
        // Each end asks after 2, 4, 8, 16, 32 and 64 looks in a row. A busy machine breaks rows, and ends ask after 2 again: one talk of
        // three is to be undisturbed.
        let mut all_refused = Vec::new();
        while all_refused.len() < 3 && all_refused.last().is_none_or(|refused| *refused > 12) {
            let (left, refused) = talk(With::Rated, "64", place);
            assert!(left == 0 && refused >= 1, "{place}: left {left}, refused {refused}");
            all_refused.push(refused);
        }
        assert!(all_refused.last().is_some_and(|refused| *refused <= 12), "{place}: refused {all_refused:?}");
    }
}

/// If the driver moves the bytes without a policy that asks for it, it slows down sleepers, over TCP, too.
#[test]
fn small_talk_by_the_driver_goes_on_in_the_kernel() {
    let site = Site::with_engine(121, 1, "fault:fail=0");
    let file = site.folder.path().join("talk");
    for place in [file.to_str().unwrap(), &format!("{}:{PORT}", site.address(2))] {
        let (left, refused) = talk(&site, With::Library, "64", place);
        // Both ends may at once.
        assert!((1..=2).contains(&left) && refused == 0, "{place}: left {left}, refused {refused}");
        let _ = std::fs::remove_file(&file);
        assert_eq!(talk(&site, With::Library, "65536", place), (0, 0), "{place}");
        let _ = std::fs::remove_file(&file);
    }
    assert_eq!(site.counter("connections_direct"), 0);
}

/// As with the kernel, a sender whose peer does not read is soon told to wait. One whose peer has read much has a large ring.
#[test]
fn connections_take_little_before_anybody_has_read() {
    let site = Site::new(242);
    let program = programs().join("unread.py");
    let program = program.to_str().unwrap();
    let path = site.folder.path().join("unread");
    let path = path.to_str().unwrap();
    let unread = |has| {
        let _ = std::fs::remove_file(path);
        let running = site.serve(has, &["python3", program, "server", path]);
        let answer = site.answer(has, &["python3", program, "client", path]);
        drop(running);
        let numbers: Vec<u64> = answer.split_whitespace().map(|number| number.parse().unwrap()).collect();
        <[u64; 2]>::try_from(numbers).unwrap()
    };
    assert!(unread(With::Nothing)[0] < 1 << 20);
    for has in [With::Library, With::Mediated] {
        let [first, later] = unread(has);
        // A window of a megabyte, and a small ring.
        assert!((64 << 10..1280 << 10).contains(&first), "{has:?}: {first} bytes");
        // On the direct path there is a ring of its own.
        assert!(has == With::Library || later >= 2 << 20, "{later} bytes");
    }
}
