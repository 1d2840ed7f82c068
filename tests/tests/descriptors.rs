//! A driver without free descriptors. Alone in its process, whose limit on open files it changes.
use pd_tests::{alone, TestDriver};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn limit(current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

/// Returns the open files, by number.
fn open_files() -> BTreeMap<u64, String> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    // Not that of the listing, which is closed before they are looked at.
    let numbers: Vec<u64> =
        numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let link = |number| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
    numbers.into_iter().filter_map(|number| Some((number, link(number)?.display().to_string()))).collect()
}

/// Returns the limit that leaves `free` free descriptors.
fn limit_with(free: u64) -> u64 {
    let open = open_files();
    (0..).filter(|number| !open.contains_key(number)).nth(free as usize).unwrap()
}

/// Looks in a row without a change, 10 ms apart: more than the second for which the driver's idle helpers keep what they have open.
const SETTLED_LOOKS: u32 = 150;

/// Waits until no thread of the process opens or closes anything for a while.
fn settle() {
    let (mut before, mut same) = (BTreeMap::new(), 0u32);
    let since = Instant::now();
    while same < SETTLED_LOOKS {
        assert!(since.elapsed() < Duration::from_secs(20), "descriptors come and go: {before:?}");
        std::thread::sleep(Duration::from_millis(10));
        let now = open_files();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
}

#[test]
fn clients_wait_until_there_are_descriptors_again() {
    let _alone = alone();
    let most = getrlimit(Resource::Nofile).maximum;
    limit(256);
    let driver = TestDriver::with("cpu", |settings| settings.hugepages = pd_driver::HugepageUse::Off);
    assert_eq!(getrlimit(Resource::Nofile).current, most, "the driver takes what it may have");
    let (mut server, mut client) = (driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 8");
    client.ok(&format!("connect c {addr}"));
    server.ok("accept s l");
    let mut stream = |round: u64| {
        client.tell(&format!("send c 1 {} 1000000 50000", round * 1_000_000));
        server.ok(&format!("recv s 1 {} 1000000", round * 1_000_000));
        client.answer().unwrap();
    };
    stream(0);
    let paused = || driver.metrics().accepts_paused;
    // To accept and identify a client takes four.
    for free in 0..4 {
        let mut late = driver.puppet();
        // Descriptors of the driver's start and of the look at it are closed then.
        settle();
        let before = paused();
        let since = Instant::now();
        let then = open_files();
        limit(limit_with(free));
        late.tell("listen l 127.0.0.1:0 8");
        while paused() < before + 2 {
            assert!(
                since.elapsed() < Duration::from_secs(10),
                "{free} descriptors were enough; then {then:?}, now {:?}",
                open_files()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let (times, elapsed) = (paused() - before, since.elapsed());
        assert!(times <= elapsed.as_millis() as u64 / 100 + 1, "{times} times in {elapsed:?}");
        // Attached clients are served.
        stream(free + 1);
        limit(most.unwrap_or(4096));
        late.answer().expect("served at last");
        late.finish();
    }
    drop((server, client));
    driver.wait_for("all gone", |r| r.clients.is_empty() && r.memory_used_bytes == 0);
    assert!(driver.is_running());
}

/// Makes a driver with descriptors for `most` direct rings, and as many connections, which need two each.
fn serve_with_rings(most: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let driver = TestDriver::with("cpu", |settings| settings.hugepages = pd_driver::HugepageUse::Off);
    driver.apply("path = \"direct\"");
    let (mut server, mut client) = (driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 64");
    for n in 0..most {
        client.ok(&format!("connect c{n} {addr}"));
        server.ok(&format!("accept s{n} l"));
    }
    // Rings may not take the last eighth of the limit.
    let wanted = limit_with(most);
    limit((wanted..).find(|limit| limit - limit / 8 >= wanted).unwrap());
    for round in 0..3 {
        for n in 0..most {
            client.tell(&format!("send c{n} {n} {} 200000 1000", round * 200_000));
            server.ok(&format!("recv s{n} {n} {} 200000", round * 200_000));
            client.answer().unwrap();
        }
    }
    assert!(driver.metrics().rings_denied > 0, "there were enough");
    let rings = open_files().values().filter(|link| link.contains("pd-direct")).count();
    assert!(rings > 0 && rings % 2 == 0, "{rings} rings");
    limit(maximum.unwrap_or(4096));
    drop((server, client));
    driver.wait_for("all gone", |r| r.clients.is_empty() && r.memory_used_bytes == 0);
}

#[test]
fn direct_connections_without_descriptors_for_two_rings_are_served_offloaded() {
    let _alone = alone();
    (8..12).for_each(serve_with_rings);
}

#[test]
fn a_connection_that_outlives_its_client_leaves_the_next_client_alone() {
    let _alone = alone();
    let driver = TestDriver::new();
    let mut server = driver.puppet();
    let address = server.ok("listen l 127.0.0.1:0 8");
    let mut first = driver.puppet();
    first.ok(&format!("connect a {address}"));
    server.ok("accept s l");
    first.ok("close a");
    first.finish();
    driver.wait_for("the first has gone", |report| report.clients.len() == 1);

    // Process number and slot are those of the first.
    let mut second = driver.puppet();
    second.ok(&format!("connect b {address}"));
    server.ok("accept t l");
    server.ok("close s");
    driver.wait_for("the first connection is over", |report| report.connections.len() == 1);
    second.ok("send b 7 0 1000 100");
    server.ok("recv t 7 0 1000");
    server.ok("send t 8 0 1000 100");
    second.ok("recv b 8 0 1000");
}
