use super::site::{Running, Site, CLIENT, SERVER};
use pd_tests::program_path;

fn program() -> String {
    program_path("examples/tokio_web").to_str().unwrap().to_owned()
}

fn serve(site: &Site, library: bool) -> Running {
    site.serve(SERVER, library, 7501, &[&program(), "server"])
}

#[test]
#[ignore = "needs the feature programs: make test-programs"]
fn a_tokio_server_answers_a_tokio_client() {
    let site = Site::new(20);
    site.compare(20 << 20, |site, library| {
        let server = serve(site, library);
        let answer = site.run(CLIENT, library, &[&program(), "client", &site.server()]);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs the feature programs: make test-programs"]
fn a_killed_tokio_leaves_nothing() {
    let site = Site::new(21);
    for victim in ["server", "client"] {
        let before = site.delivered();
        let server = serve(&site, true);
        let mut client = site.start(CLIENT, true, &[&program(), "forever", &site.server()]);
        site.wait_for_bytes(before, 1 << 20);
        if victim == "server" {
            server.kill("tokio_web");
            assert!(!client.wait(), "the client has not noticed");
        } else {
            client.kill("tokio_web");
            site.wait_for_ends();
        }
        drop((server, client));
        site.expect_nothing_left();
    }
}
