use super::site::{program, Running, Site, CLIENT, SERVER};

fn serve(site: &Site, library: bool) -> Running {
    site.serve(SERVER, library, 11211, &["memcached", "-u", "root", "-l", "0.0.0.0", "-t", "4", "-m", "256"])
}

fn client(site: &Site, library: bool) -> String {
    site.run(CLIENT, library, &["python3", &program("memcached.py"), &site.server()])
}

#[test]
#[ignore = "needs memcached: make test-programs"]
fn memcached_answers_right_to_many_at_once() {
    let site = Site::new(8);
    site.compare(10 << 20, |site, library| {
        let server = serve(site, library);
        let answer = client(site, library);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs memcached: make test-programs"]
fn a_killed_memcached_leaves_nothing() {
    let site = Site::new(9);
    for victim in ["server", "client"] {
        let before = site.delivered();
        let server = serve(&site, true);
        let command = ["python3", &program("memcached.py"), &site.server(), "forever"];
        let mut load = site.start(CLIENT, true, &command);
        site.wait_for_bytes(before, 1 << 20);
        if victim == "server" {
            server.kill("memcached");
            assert!(!load.wait(), "the client has not noticed");
        } else {
            load.kill("python3");
            site.wait_for_ends();
            drop(load);
            client(&site, true);
        }
        drop(server);
        site.expect_nothing_left();
    }
}
