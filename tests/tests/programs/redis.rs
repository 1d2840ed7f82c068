use super::site::{program, Running, Site, CLIENT, SERVER};
use std::path::Path;

pub fn serve(site: &Site, library: bool, folder: &Path, extra: &[&str]) -> Running {
    let folder = folder.to_str().unwrap();
    let command =
        ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", folder];
    site.serve(SERVER, library, 6379, &[&command, extra].concat())
}

fn client(site: &Site, library: bool, what: &str) -> String {
    site.run(CLIENT, library, &["python3", &program("redis.py"), &site.server(), what])
}

fn benchmark(site: &Site, library: bool, options: &str) {
    let address = site.server();
    let mut command = vec!["redis-benchmark", "-h", &address, "-q"];
    command.extend(options.split(' '));
    let text = site.run(CLIENT, library, &command);
    assert!(text.contains("requests per second"), "{text}");
    assert!(!text.to_lowercase().contains("error"), "{text}");
}

#[test]
#[ignore = "needs redis: make test-programs"]
fn redis_answers_right_and_keeps_its_data_through_forks_and_restarts() {
    let site = Site::new(3);
    site.compare(40 << 20, |site, library| {
        let folder = site.folder("redis");
        let server = serve(site, library, &folder, &[]);
        let mut answer = client(site, library, "fill");
        for options in [
            "-t set,get -n 20000 -c 20 -d 64",
            "-t set,get -n 40000 -c 20 -d 64 -P 16",
            "-t set,get -n 2000 -d 65536",
        ] {
            benchmark(site, library, options);
        }
        // Both forks, with changes meanwhile.
        answer += &client(site, library, "save");
        answer += &client(site, library, "digest");
        server.end();
        let server = serve(site, library, &folder, &[]);
        answer += &client(site, library, "digest");
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs redis: make test-programs"]
fn a_replica_of_redis_follows() {
    let site = Site::new(4);
    site.compare(10 << 20, |site, library| {
        let (one, two) = (site.folder("one"), site.folder("two"));
        let server =
            serve(site, library, &one, &["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]);
        let mut answer = client(site, library, "fill");
        let (address, folder) = (site.server(), two.to_str().unwrap().to_owned());
        let replica = site.serve(
            CLIENT + 1,
            library,
            6379,
            &[
                "redis-server",
                "--bind",
                "0.0.0.0",
                "--protected-mode",
                "no",
                "--save",
                "",
                "--dir",
                &folder,
                "--replicaof",
                &address,
                "6379",
            ],
        );
        answer += &client(site, library, "digest");
        let of_replica = ["python3", &program("redis.py"), &site.address(CLIENT + 1), "follow"];
        answer += &site.run(CLIENT, library, &of_replica);
        replica.end();
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs redis: make test-programs"]
fn a_killed_redis_leaves_nothing() {
    let site = Site::new(5);
    let address = site.server();
    // redis-benchmark spins when a connection was reset before it writes, over kernel TCP too. It can be the
    // victim, but cannot show that the other end notices.
    let benchmark =
        ["redis-benchmark", "-h", &address, "-t", "set", "-n", "100000000", "-d", "1000", "-P", "8"];
    let forever = ["python3", &program("redis.py"), &address, "forever"];
    for (victim, load) in [("server", &forever[..]), ("client", &benchmark[..])] {
        let folder = site.folder("redis");
        let server = serve(&site, true, &folder, &[]);
        let before = site.delivered();
        let mut load = site.start(CLIENT, true, load);
        site.wait_for_bytes(before, 10 << 20);
        if victim == "server" {
            server.kill("redis-server");
            assert!(!load.wait(), "the client has not noticed");
        } else {
            load.kill("redis-benchmark");
            site.wait_for_ends();
            drop(load);
            client(&site, true, "fill");
        }
        drop(server);
        site.expect_nothing_left();
    }
}
