//! Programs of a tenant that has used up its memory.

use super::{differing, Site, With, PORT};

/// A connection that finds no memory goes on in the kernel. Its peer receives everything and an orderly end, however soon after its
/// last send the server closes it or ends.
#[test]
fn answers_are_whole_where_memory_is_scarce() {
    let site = Site::new(178);
    let program = site.compiled("scarce", &[]);
    let file = site.folder.path().join("body");
    let (program, ip) = (program.as_str(), site.address(2));
    let server = [program, "server", PORT, file.to_str().unwrap()];
    let client = [program, "client", &ip, PORT];
    let answer = |has| {
        let running = site.serve(has, &server);
        let answer = site.answer(has, &client);
        drop(running);
        answer
    };
    let expected = answer(With::Nothing);
    assert!(
        expected.lines().count() > 15 && expected.lines().all(|line| line.ends_with(" whole")),
        "{expected}"
    );
    for has in [With::Scarce, With::ScarceMediated] {
        let before = site.connections();
        let found = answer(has);
        assert!(found == expected, "{has:?}:\n{}", differing(&found, &expected));
        // A busy machine has more connections stay in the kernel.
        assert!(site.connections() > before);
    }
    let said = std::fs::read_to_string(site.log()).unwrap();
    assert!(said.contains("leaves the fabric: no memory is left"), "{said}");
    // Containers count as long as they are there.
    let running = site.serve(With::Scarce, &server);
    site.answer(With::Scarce, &client);
    let kernel = site.json(&["ls", "--all", "--json"])["kernel"].take();
    drop(running);
    assert!(kernel["connections_by_reason"]["no_memory"].as_u64() > Some(0), "{kernel:#}");
}
