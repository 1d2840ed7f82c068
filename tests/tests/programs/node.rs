use super::site::{program, Running, Site, CLIENT, SERVER};

fn serve(site: &Site, library: bool) -> Running {
    site.serve(SERVER, library, 8000, &["node", &program("http.js"), "server"])
}

#[test]
#[ignore = "needs node: make test-programs"]
fn a_node_server_answers_a_node_client() {
    let site = Site::new(14);
    site.compare(30 << 20, |site, library| {
        let server = serve(site, library);
        let answer = site.run(CLIENT, library, &["node", &program("http.js"), "client", &site.server()]);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs node: make test-programs"]
fn a_killed_node_leaves_nothing() {
    let site = Site::new(15);
    for victim in ["server", "client"] {
        let before = site.delivered();
        let server = serve(&site, true);
        let mut client = site.start(CLIENT, true, &["node", &program("http.js"), "forever", &site.server()]);
        site.wait_for_bytes(before, 1 << 20);
        if victim == "server" {
            server.kill("node");
            assert!(!client.wait(), "the client has not noticed");
        } else {
            client.kill("node");
            site.wait_for_ends();
        }
        drop((server, client));
        site.expect_nothing_left();
    }
}
