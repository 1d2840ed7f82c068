//! Drivers take over, one after the other, while whole programs run. No program has an error, and none loses a byte.
use super::site::{Running, Site, CLIENT};
use super::{iperf3, postgresql, redis};
use pd_tests::Random;
use std::time::Duration;

/// Tells whether a program is there. Prints the reason why a test is skipped if it is not.
fn has(program: &str) -> bool {
    let folders = std::env::var("PATH").unwrap_or_default();
    let is_there = folders.split(':').any(|folder| std::path::Path::new(folder).join(program).exists());
    if !is_there {
        println!("SKIPPED: take-overs under {program}: it is not installed; make test-programs installs it");
    }
    is_there
}

/// Bytes that all drivers so far have moved, by the tenants' accounts, which go over.
fn moved(site: &Site) -> u64 {
    site.driver.policy().tenants.iter().map(|tenant| tenant.account.bytes_sent).sum()
}

/// Waits until a client has ended well, with take-overs meanwhile. Returns the client's output.
fn run_over(site: &mut Site, mut client: Running) -> String {
    let (mut random, mut times, before) = (Random(7), 0, moved(site));
    let mut pauses = Vec::new();
    while !client.has_ended() {
        std::thread::sleep(Duration::from_millis(100 + random.below(200)));
        if let Err(error) = site.driver.take_over() {
            panic!("take-over {times}: {error}\n{}", client.log());
        }
        times += 1;
        pauses.extend(site.driver.report().taken_over.map(|taken| taken.pause_us));
    }
    let is_well = client.wait();
    let log = client.log();
    assert!(is_well, "after {times} take-overs: {log}");
    pauses.sort_unstable();
    println!("{times} take-overs, pauses of {:?} to {:?} us", pauses.first(), pauses.last());
    assert!(times > 3, "the client was too fast for {times} take-overs: {log}");
    assert!(moved(site) - before > 100_000, "{} bytes on the fabric", moved(site) - before);
    log
}

#[test]
#[ignore = "needs redis: make test-programs"]
fn redis_goes_on_through_take_overs() {
    if !has("redis-server") || !has("redis-benchmark") {
        return;
    }
    let mut site = Site::new(31);
    let (folder, address) = (site.folder("redis"), site.server());
    let server = redis::serve(&site, true, &folder, &[]);
    for options in ["-t set,get -n 1500000 -c 20 -d 512", "-t set,get,incr -n 3000000 -c 50 -P 8"] {
        let command: Vec<_> =
            ["redis-benchmark", "-q", "-h", &address].into_iter().chain(options.split(' ')).collect();
        let client = site.start(CLIENT, true, &command);
        let log = run_over(&mut site, client);
        assert!(log.contains("requests per second"), "{log}");
        assert!(!log.to_lowercase().contains("error"), "{log}");
    }
    server.end();
    site.expect_nothing_left();
}

#[test]
#[ignore = "needs iperf3: make test-programs"]
fn iperf3_goes_on_through_take_overs() {
    if !has("iperf3") {
        return;
    }
    let mut site = Site::new(32);
    let address = site.server();
    let server = iperf3::serve(&site, true);
    for options in [&["--parallel", "3"][..], &["--reverse"]] {
        let command = [&["iperf3", "--json", "--client", &address, "--time", "6"], options].concat();
        let client = site.start(CLIENT, true, &command);
        let log = run_over(&mut site, client);
        let result: serde_json::Value = serde_json::from_str(&log).unwrap();
        assert!(result["error"].is_null(), "{log}");
        let sum = |name: &str| result["end"][name]["bytes"].as_u64().unwrap();
        assert!(sum("sum_received") > 0 && sum("sum_received") <= sum("sum_sent"), "{log}");
    }
    server.end();
    site.expect_nothing_left();
}

#[test]
#[ignore = "needs PostgreSQL: make test-programs"]
fn postgresql_goes_on_through_take_overs() {
    if !std::path::Path::new("/usr/lib/postgresql").exists() {
        println!("SKIPPED: take-overs under PostgreSQL: it is not installed; make test-programs installs it");
        return;
    }
    let mut site = Site::new(33);
    let server = postgresql::serve(&site, true, &postgresql::create(&site));
    postgresql::client(&site, true, &["pgbench", "-q", "-i", "-s", "2"]);
    // Clients that stay, and clients that connect for each transaction.
    for options in [&["-c", "6", "-j", "2", "-T", "6"][..], &["-S", "-C", "-c", "2", "-T", "6"]] {
        let client = postgresql::start(&site, &[&["pgbench", "-n"], options].concat());
        let log = run_over(&mut site, client);
        assert!(log.contains("number of failed transactions: 0"), "{log}");
    }
    assert_eq!(postgresql::sums(&site, true).trim(), "t");
    server.end();
    site.expect_nothing_left();
}
