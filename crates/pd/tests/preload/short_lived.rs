//! Connections that are over before they were worth a twin.

use super::{programs, Site, With, PORT, TRIES};

#[test]
fn one_brief_connection_after_the_other_is_the_kernels_and_long_ones_are_not() {
    let mut site = Site::new(91);
    site.preload = "--preload";
    let program = programs().join("short_lived.py");
    let program = program.to_str().unwrap();
    let _server = site.serve(With::Library, &["python3", program, "server", PORT]);
    let ip = site.address(2);
    let make = |site: &Site, count: u64, bytes: u64| {
        let before = site.connections();
        let (count_text, bytes_text) = (count.to_string(), bytes.to_string());
        let client = ["python3", program, "client", &ip, PORT, &count_text, &bytes_text];
        let answer = site.answer(With::Library, &client);
        assert_eq!(answer.trim(), (count * bytes).to_string());
        site.connections() - before
    };
    let brief = make(&site, 2000, 64);
    assert!((16..2000).contains(&brief), "{brief} on the fabric");
    // The process that has said so is gone; its word stays in the sum.
    let reasons = site.json(&["ls", "--json"])["driver"]["kernel_connections_by_reason"].take();
    assert!(
        reasons["short_lived"].as_u64().is_some_and(|count| count <= 2000 - brief && count > 0),
        "{reasons}"
    );
    // Connections of another process do not count for this one.
    assert_eq!(make(&site, 40, 1 << 20), 40);
    site.preload = "--preload=all";
    assert_eq!(make(&site, 100, 64), 100);
}

#[test]
fn a_place_that_is_brief_again_is_the_kernels_for_longer() {
    let mut site = Site::new(92);
    site.preload = "--preload";
    let program = programs().join("short_lived.py");
    let program = program.to_str().unwrap();
    let _server = site.serve(With::Library, &["python3", program, "server", PORT]);
    let client = ["python3", program, "client", &site.address(2), PORT, "20", "64", "7.5"];
    // Sixteen find out at once, then two after two seconds, and two after four more. Two more would be there after six
    // seconds if each hold were as long as the first. On a slow machine they are fewer, or sixteen take longer than counts.
    let mut made = Vec::new();
    let is_held_longer = (0..TRIES).any(|_| {
        let before = site.connections();
        site.answer(With::Library, &client);
        made.push(site.connections() - before);
        (18..22).contains(&made[made.len() - 1])
    });
    assert!(is_held_longer, "{made:?} on the fabric");
}
