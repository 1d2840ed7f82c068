use super::site::{Running, Site, CLIENT, SERVER};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of Debian's programs of the newest version.
fn programs() -> PathBuf {
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL: make test-programs installs it");
    versions.flatten().map(|version| version.path().join("bin")).max().unwrap()
}

const AS_POSTGRES: [&str; 4] = ["runuser", "-u", "postgres", "--"];

/// Makes a new cluster.
pub fn create(site: &Site) -> PathBuf {
    let folder = site.folder("postgresql").join("data");
    let made = Command::new(AS_POSTGRES[0])
        .args(&AS_POSTGRES[1..])
        .arg(programs().join("initdb"))
        .args(["--no-sync", "--auth", "trust", "--pgdata"])
        .arg(&folder)
        .current_dir("/")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let access = folder.join("pg_hba.conf");
    let text = std::fs::read_to_string(&access).unwrap() + "host all all 10.98.0.0/16 trust\n";
    std::fs::write(access, text).unwrap();
    folder
}

pub fn serve(site: &Site, library: bool, folder: &Path) -> Running {
    let program = programs().join("postgres");
    let command = [
        &AS_POSTGRES[..],
        &[program.to_str().unwrap(), "-D", folder.to_str().unwrap(), "-c", "listen_addresses=*"],
        &["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=32MB"],
    ]
    .concat();
    site.serve(SERVER, library, 5432, &command)
}

/// Calls `with` with the whole command of a client.
fn complete<T>(site: &Site, command: &[&str], with: impl FnOnce(&[&str]) -> T) -> T {
    let program = programs().join(command[0]);
    let address = site.server();
    let start = [program.to_str().unwrap(), "-h", &address, "-U", "postgres"];
    with(&[&start[..], &command[1..], &["postgres"]].concat())
}

pub fn client(site: &Site, library: bool, command: &[&str]) -> String {
    complete(site, command, |command| site.run(CLIENT, library, command))
}

/// Starts a client with the library.
pub fn start(site: &Site, command: &[&str]) -> Running {
    complete(site, command, |command| site.start(CLIENT, true, command))
}

/// Checks sums that have to be equal in all four tables after any interruption.
pub fn sums(site: &Site, library: bool) -> String {
    let query = "select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)
        and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)
        and (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history)";
    client(site, library, &["psql", "-At", "-c", query])
}

#[test]
#[ignore = "needs PostgreSQL: make test-programs"]
fn postgresql_keeps_its_sums_under_pgbench() {
    let site = Site::new(12);
    site.compare(12 << 20, |site, library| {
        let server = serve(site, library, &create(site));
        client(site, library, &["pgbench", "-q", "-i", "-s", "2"]);
        for options in [&["-c", "6", "-j", "2"][..], &["-c", "4", "-M", "prepared"], &["-S", "-C", "-c", "2"]]
        {
            let text = client(site, library, &[&["pgbench", "-n", "-t", "100"], options].concat());
            assert!(text.contains("number of failed transactions: 0"), "{text}");
        }
        let mut answer = sums(site, library);
        answer += &client(site, library, &["psql", "-At", "-c", "select count(*) from pgbench_history"]);
        let large = "select md5(string_agg(aid::text, ',' order by aid)) from pgbench_accounts;
            select repeat(md5('x'), 300000)";
        answer += &client(site, library, &["psql", "-At", "-c", large]);
        let copy = "copy (select aid, bid from pgbench_accounts order by aid) to stdout";
        answer += &client(site, library, &["psql", "-c", copy]);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs PostgreSQL: make test-programs"]
fn a_killed_backend_or_client_of_postgresql_leaves_nothing() {
    let site = Site::new(13);
    let server = serve(&site, true, &create(&site));
    client(&site, true, &["pgbench", "-q", "-i", "-s", "1"]);
    let (program, address) = (programs().join("pgbench"), site.server());
    let load = [
        program.to_str().unwrap(),
        "-h",
        &address,
        "-U",
        "postgres",
        "-n",
        "-c",
        "4",
        "-T",
        "60",
        "postgres",
    ];
    for victim in ["server", "client"] {
        let before = site.delivered();
        let mut client = site.start(CLIENT, true, &load);
        site.wait_for_bytes(before, 100_000);
        if victim == "server" {
            // The last is a client's. The others end, too, and the server starts over.
            let backend = *server.processes("postgres").last().unwrap();
            let backend = rustix::process::Pid::from_raw(backend).unwrap();
            rustix::process::kill_process(backend, rustix::process::Signal::KILL).unwrap();
            client.wait();
        } else {
            client.kill("pgbench");
        }
        drop(client);
        site.wait_for_ends();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let ready = programs().join("pg_isready");
        while !site.try_run(CLIENT, true, &[ready.to_str().unwrap(), "-h", &address]).status.success() {
            assert!(std::time::Instant::now() < end, "{}", server.log());
        }
        assert_eq!(sums(&site, true).trim(), "t");
    }
    drop(server);
    site.expect_nothing_left();
}
