//! Proxies that nobody has changed, in containers of their own, which rules of the policy lead connections through.
use super::site::{program, Library, Running, Site, CLIENT, SERVER};
use pd_driver::admin::SidecarReport;
use pd_tests::{path, program_path};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PROXY: u8 = 4;
/// Ports of the server: two plain ones, one with the PROXY protocol, and HTTP.
const PLAIN: u16 = 7001;
const WITH_HEADER: u16 = 7003;
const HTTP: u16 = 8080;
/// Ports at which proxies take connections of each kind.
const ENTRANCES: [(&str, u16); 3] = [("[7001, 7002]", 15001), ("7003", 15002), ("8080", 15003)];
/// Bytes that one conversation moves in both directions together.
const TALK_BYTES: u64 = 6_000_000;
/// Bytes of the requests on one connection.
const HTTP_BYTES: u64 = 6_000_000;
/// Each is gone over IPv4 and IPv6.
const FAMILIES: u64 = 2;

/// Starts the server.
fn serve(site: &Site, library: Library) -> Running {
    let ports = [PLAIN, WITH_HEADER, HTTP].map(|port| port.to_string());
    let (file, ports) = (program("sidecar.py"), ports.each_ref().map(String::as_str));
    site.serve(SERVER, library, HTTP, &["python3", &file, "server", ports[0], ports[1], ports[2]])
}

/// Runs the client. Returns its output.
fn client(site: &Site, library: Library, way: &str, port: u16) -> String {
    let (server, port) = (site.name(SERVER), port.to_string());
    site.run(CLIENT, library, &["python3", &program("sidecar.py"), way, &server, &port])
}

/// Returns the server's view of a conversation: its peer, and the client that a header names.
fn seen(port: u16, from: &str, about: &str) -> String {
    [4, 6]
        .map(|family| format!("IPv{family} port {port} from {from} {about}").trim().to_owned() + " b''\n")
        .concat()
}

/// Returns the server's view of requests.
fn seen_over_http(from: &str, about: &str) -> String {
    let line = |family, bytes| format!("IPv{family} {bytes} port {HTTP} from {from} for {about}\n");
    [4, 6].map(|family| [1, 1000, 3_000_000, 70_000].map(|bytes| line(family, bytes)).concat()).concat()
}

/// Leads connections to the server's ports through the container of the proxy.
fn lead(site: &Site, on_failure: &str) {
    let proxy = site.name(PROXY);
    let mut text = format!(
        "path = \"{}\"\n[[tenant]]\nname = \"one\"\n[[tenant]]\nname = \"mesh\"\ncontainers = [\"{proxy}\"]\n",
        path()
    );
    for (ports, entrance) in ENTRANCES {
        text += &format!(
            "[[rule]]\nport = {ports}\naction = \"allow\"\nvia = [\"container:{proxy}:{entrance}\"]\non_failure = \"{on_failure}\"\n"
        );
    }
    site.driver.apply(&text);
}

/// Waits until the kernel's half knows that the proxy listens everywhere, or nowhere.
fn wait_for_listeners(site: &Site, listens: bool) -> Vec<SidecarReport> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let reports = site.driver.policy().sidecars;
        if reports.iter().all(|report| report.proxies[0].on_kernel == listens) {
            return reports;
        }
        assert!(Instant::now() < end, "the proxy listens: {listens}? {reports:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connections that have been led by each rule.
fn led(site: &Site) -> [u64; 3] {
    let reports = site.driver.policy().sidecars;
    [0, 1, 2].map(|rule| reports[rule].counts.connections_made)
}

/// Starts a proxy, and waits until it takes connections.
fn start(site: &Site, library: Library, command: &[&str]) -> Running {
    let proxy = site.serve(PROXY, library, ENTRANCES[2].1, command);
    wait_for_listeners(site, true);
    proxy
}

/// Configures HAProxy to connect to the original destination. It reads that over IPv4 alone, so each entrance over IPv6 leads to one
/// server.
fn haproxy(site: &Site) -> String {
    let (folder, server) = (site.folder("haproxy"), site.name(SERVER));
    let mut text = "global
    nbthread 1
defaults
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option splice-auto
"
    .to_owned();
    for (port, entrance, mode, option) in [
        (PLAIN, ENTRANCES[0].1, "mode tcp", ""),
        (WITH_HEADER, ENTRANCES[1].1, "mode tcp", "send-proxy"),
        (HTTP, ENTRANCES[2].1, "mode http\n    http-reuse always\n    option forwardfor", ""),
    ] {
        text += &format!(
            "listen asked-{port}
    {mode}
    bind 0.0.0.0:{entrance}
    server any 0.0.0.0 {option}
listen one-{port}
    {mode}
    bind :::{entrance} v6only
    server one ipv6@{server}:{port} {option}
"
        );
    }
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Configures nginx, which knows no original destination, to connect to one server.
fn nginx(site: &Site) -> String {
    let (folder, server) = (site.folder("proxy"), site.server());
    let at = folder.display();
    let text = format!(
        "load_module {NGINX_STREAM}; user www-data; worker_processes 1; pid {at}/pid; error_log {at}/error.log;
         events {{ worker_connections 512; }}
         stream {{
             proxy_half_close on;
             server {{ listen [::]:15001 ipv6only=off; proxy_pass {server}:{PLAIN}; }}
             server {{ listen [::]:15002 ipv6only=off; proxy_pass {server}:{WITH_HEADER}; proxy_protocol on; }}
         }}
         http {{
             access_log off; client_max_body_size 0;
             client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};
             uwsgi_temp_path {at}; scgi_temp_path {at};
             upstream web {{ server {server}:{HTTP}; keepalive 8; }}
             server {{
                 listen [::]:15003 ipv6only=off;
                 location / {{
                     proxy_pass http://web; proxy_http_version 1.1;
                     proxy_set_header Connection \"\"; proxy_set_header X-Forwarded-For $remote_addr;
                 }}
             }}
         }}"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Debian's module of nginx for TCP.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Runs clients through the proxy, without the library and in both modes of it. `is_asked`: the proxy connects to the original destination.
fn passes(site: &Site, command: &[&str], is_asked: bool) {
    let (own, proxy) = (site.name(CLIENT), site.name(PROXY));
    lead(site, "close");
    for library in [Library::Absent, Library::Default, Library::All] {
        let server = serve(site, library);
        let middle = start(site, library, command);
        let (before, metrics) = (led(site), site.driver.metrics());
        // Conversations in TCP on the kernel alone: on the fabric the proxy's end of one is reset now and then.
        let talks = library == Library::Absent;
        if talks {
            assert_eq!(client(site, library, "talk", PLAIN), seen(PLAIN, &proxy, ""), "{library:?}");
            let about = format!("for {own}");
            assert_eq!(client(site, library, "talk", WITH_HEADER), seen(WITH_HEADER, &proxy, &about));
        }
        if talks && is_asked {
            let seen = seen(PLAIN + 1, &proxy, "");
            let first = seen.lines().next().unwrap();
            assert_eq!(client(site, library, "talk4", PLAIN + 1).trim(), first, "{library:?}");
        }
        assert_eq!(client(site, library, "http", HTTP), seen_over_http(&proxy, &own), "{library:?}");
        // Each client's connection was led once: the proxy's connections are its own.
        let now = led(site);
        let (talks, asked) = (u64::from(talks), u64::from(talks && is_asked));
        let since = [0, 1, 2].map(|rule| now[rule] - before[rule]);
        assert_eq!(since, [FAMILIES * talks + asked, FAMILIES * talks, FAMILIES], "{library:?}");
        // Connections of any other program beside it are not led, either.
        let exec = Command::new(program_path("pd"))
            .args(["exec", &proxy, "--", "python3", &program("sidecar.py"), "talk"])
            .args([site.name(SERVER), PLAIN.to_string()])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&exec.stdout), seen(PLAIN, &proxy, ""), "{exec:?}");
        assert_eq!(led(site), now, "{library:?}");
        let since = site.driver.metrics().since(&metrics);
        let bytes = since.bytes_delivered + since.bytes_reported;
        if library == Library::Absent {
            assert_eq!(since.connections_made, 0);
        } else {
            // Both legs of the requests, and the conversation beside the proxy.
            let all = HTTP_BYTES * FAMILIES * 2 + TALK_BYTES * FAMILIES;
            assert!(bytes >= all, "{library:?}: {bytes} of {all} bytes on the fabric");
        }
        middle.end();
        server.end();
        site.expect_nothing_left();
    }
}

#[test]
#[ignore = "needs haproxy: make test-programs"]
fn haproxy_is_passed_by_connections_that_a_rule_leads() {
    let site = Site::new(50);
    let file = haproxy(&site);
    passes(&site, &["haproxy", "-db", "-f", &file], true);
}

#[test]
#[ignore = "needs nginx and its stream module: make test-programs"]
fn nginx_is_passed_by_connections_that_a_rule_leads() {
    if !Path::new(NGINX_STREAM).exists() {
        println!("SKIPPED: {NGINX_STREAM} is not installed: make test-programs");
        return;
    }
    let site = Site::new(51);
    let file = nginx(&site);
    passes(&site, &["nginx", "-e", "stderr", "-g", "daemon off;", "-c", &file], false);
}

#[test]
#[ignore = "needs haproxy: make test-programs"]
fn a_killed_proxy_refuses_or_is_left_out_and_comes_back() {
    let site = Site::new(52);
    let (own, proxy, file) = (site.name(CLIENT), site.name(PROXY), haproxy(&site));
    let server = serve(&site, Library::All);
    let hold = ["python3", &program("sidecar.py"), "hold", &site.name(SERVER), &PLAIN.to_string()];
    let alone = format!("exec haproxy -db -f {file}");
    // The container goes on without the proxy.
    let beside = format!("haproxy -db -f {file}; exec sleep 1000");
    for (on_failure, shell) in [("close", &beside), ("bypass", &alone)] {
        lead(&site, on_failure);
        let middle = start(&site, Library::All, &["sh", "-c", shell]);
        let before = site.delivered();
        let mut held = site.start(CLIENT, Library::All, &hold);
        site.wait_for_bytes(before, 10 << 20);
        middle.kill("haproxy");
        held.wait_for_line("broken");
        held.wait();
        let down = wait_for_listeners(&site, false);
        for library in [Library::Absent, Library::All] {
            if on_failure == "close" {
                let refused = client(&site, library, "refused", PLAIN);
                assert_eq!(refused, "ECONNREFUSED\nECONNREFUSED\n", "{library:?}");
            } else {
                assert_eq!(client(&site, library, "talk", PLAIN), seen(PLAIN, &own, ""), "{library:?}");
            }
        }
        let up = site.driver.policy().sidecars;
        let (failed, bypassed) = (
            up[0].counts.connections_failed - down[0].counts.connections_failed,
            up[0].connections_bypassed - down[0].connections_bypassed,
        );
        assert_eq!((failed >= 4, bypassed >= 4), (on_failure == "close", on_failure == "bypass"), "{up:?}");
        drop(middle);
        // A container of its name is the proxy again.
        let middle = start(&site, Library::All, &["sh", "-c", shell]);
        assert_eq!(client(&site, Library::All, "http", HTTP), seen_over_http(&proxy, &own), "{on_failure}");
        drop(middle);
    }
    drop(server);
    site.expect_nothing_left();
}
