use super::site::{program, Running, Site, CLIENT, SERVER};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names and sizes of the files that are served.
pub const FILES: [(&str, usize); 4] = [("empty", 0), ("small", 600), ("page", 40_000), ("large", 5_000_000)];

/// Makes the files and a configuration that serves them.
pub fn configure(site: &Site) -> PathBuf {
    let folder = site.folder("nginx");
    for (seed, (name, bytes)) in FILES.iter().enumerate() {
        let mut content = vec![0; *bytes];
        pd_tests::fill(seed as u64, 0, &mut content);
        std::fs::write(folder.join(name), content).unwrap();
    }
    let at = folder.display();
    let text = format!(
        "user www-data; worker_processes 2; pid {at}/pid; error_log {at}/error.log;
         events {{ worker_connections 512; }}
         http {{
             access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
             client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};
             uwsgi_temp_path {at}; scgi_temp_path {at};
             server {{ listen 8080; root {at}; }}
             server {{ listen 8081; root {at}; sendfile off; gzip on; gzip_types *; }}
         }}"
    );
    std::fs::write(folder.join("nginx.conf"), text).unwrap();
    folder
}

/// Starts it as configured.
pub fn serve(site: &Site, library: bool, folder: &Path) -> Running {
    let file = folder.join("nginx.conf");
    let command = ["nginx", "-e", "stderr", "-g", "daemon off;", "-c", file.to_str().unwrap()];
    site.serve(SERVER, library, 8080, &command)
}

/// Fetches every file in several ways from `address`. Returns checksums.
pub fn fetch(site: &Site, library: bool, address: &str) -> String {
    fetch_with(site, library, &[address])
}

fn fetch_with(site: &Site, library: bool, arguments: &[&str]) -> String {
    let names: Vec<_> = FILES.iter().map(|(name, _)| *name).collect();
    site.run(CLIENT, library, &[&["python3", &program("fetch.py")][..], arguments, &names].concat())
}

/// Runs `wrk` for some seconds, without errors.
fn load(site: &Site, library: bool, path: &str, seconds: &str) {
    let url = format!("http://{}:8080/{path}", site.server());
    let text =
        site.run(CLIENT, library, &["wrk", "-t", "2", "-c", "20", "--timeout", "60", "-d", seconds, &url]);
    assert!(text.contains("Requests/sec"), "{text}");
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
}

#[test]
#[ignore = "needs nginx and wrk: make test-programs"]
fn nginx_serves_right_files_under_load_and_across_a_reload() {
    let site = Site::new(6);
    site.compare(100 << 20, |site, library| {
        let folder = configure(site);
        let server = serve(site, library, &folder);
        let mut answer = fetch(site, library, &format!("{}:8080", site.server()));
        answer += &fetch(site, library, &format!("{}:8081", site.server()));
        for path in ["small", "large"] {
            load(site, library, path, "2");
        }
        let workers = server.processes("nginx");
        let address = format!("{}:8080", site.server());
        let while_reloading = || fetch_with(site, library, &["--reloading", &address]);
        let calm = while_reloading();
        std::thread::scope(|scope| {
            let running = scope.spawn(while_reloading);
            for _ in 0..3 {
                server.signal(Signal::HUP);
                std::thread::sleep(Duration::from_millis(300));
            }
            assert_eq!(running.join().unwrap(), calm);
        });
        assert!(
            server.processes("nginx").iter().filter(|pid| workers.contains(pid)).count() <= 1,
            "not reloaded"
        );
        answer += &fetch(site, library, &format!("{}:8080", site.server()));
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs nginx and wrk: make test-programs"]
fn killed_workers_and_clients_of_nginx_leave_nothing() {
    let site = Site::new(7);
    let folder = configure(&site);
    let url = format!("http://{}:8080/large", site.server());
    let server = serve(&site, true, &folder);
    for round in 0..3 {
        let before = site.delivered();
        let mut client = site.start(CLIENT, true, &["wrk", "-t", "1", "-c", "10", "-d", "4", &url]);
        site.wait_for_bytes(before, 10 << 20);
        if round == 1 {
            client.kill("wrk");
        } else {
            // The master is the first of the processes, and starts new workers.
            for &worker in &server.processes("nginx")[1..] {
                let _ = rustix::process::kill_process(
                    rustix::process::Pid::from_raw(worker).unwrap(),
                    Signal::KILL,
                );
            }
        }
        client.wait();
        drop(client);
        site.wait_for_ends();
        fetch(&site, true, &format!("{}:8080", site.server()));
    }
    drop(server);
    site.expect_nothing_left();
}
