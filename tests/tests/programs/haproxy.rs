use super::nginx;
use super::site::{Running, Site, CLIENT};

const PROXY: u8 = 4;

fn proxy(site: &Site, library: bool) -> Running {
    let folder = site.folder("haproxy");
    let text = format!(
        "global
             nbthread 2
         defaults
             mode http
             timeout connect 5s
             timeout client 60s
             timeout server 60s
             option splice-auto
         frontend http
             bind :8080
             default_backend files
         backend files
             http-reuse always
             server one {server}:8080
         listen streams
             mode tcp
             bind :8081
             server one {server}:8080
",
        server = site.server()
    );
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    site.serve(PROXY, library, 8081, &["haproxy", "-db", "-f", file.to_str().unwrap()])
}

#[test]
#[ignore = "needs haproxy and nginx: make test-programs"]
fn haproxy_stands_before_nginx() {
    let site = Site::new(10);
    site.compare(200 << 20, |site, library| {
        let folder = nginx::configure(site);
        let server = nginx::serve(site, library, &folder);
        let proxy = proxy(site, library);
        let mut answer = nginx::fetch(site, library, &format!("{}:8080", site.address(PROXY)));
        answer += &nginx::fetch(site, library, &format!("{}:8081", site.address(PROXY)));
        proxy.end();
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs haproxy, nginx and wrk: make test-programs"]
fn a_killed_haproxy_leaves_nothing() {
    let site = Site::new(11);
    let folder = nginx::configure(&site);
    let server = nginx::serve(&site, true, &folder);
    let middle = proxy(&site, true);
    let url = format!("http://{}:8080/large", site.address(PROXY));
    let before = site.delivered();
    let mut client = site.start(CLIENT, true, &["wrk", "-t", "1", "-c", "10", "-d", "4", &url]);
    site.wait_for_bytes(before, 10 << 20);
    middle.kill("haproxy");
    drop(middle);
    client.wait();
    drop(client);
    site.wait_for_ends();
    let middle = proxy(&site, true);
    nginx::fetch(&site, true, &format!("{}:8080", site.address(PROXY)));
    drop((middle, server));
    site.expect_nothing_left();
}
