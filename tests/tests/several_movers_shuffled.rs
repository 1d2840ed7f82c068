//! Movers that exchange their work at random and without a pause, unnoticed.
use pd_tests::{Puppet, Random, TestDriver};
use std::time::Duration;

const ROUNDS: u64 = 60;

fn driver(engine: &str, auto: bool) -> TestDriver {
    TestDriver::with(engine, |settings| {
        settings.movers = 3;
        settings.movers_auto = auto;
        settings.movers_shuffled = Some(Duration::from_micros(500));
        settings.hugepages = pd_driver::HugepageUse::Off;
        settings.ring_bytes_default = 256 << 10;
        settings.ring_idle = Duration::from_millis(50);
    })
}

fn moved(driver: &TestDriver) -> u64 {
    driver.report().metrics["channels_moved"]
}

/// Streams between all pairs, checked byte by byte, while everything goes everywhere and victims are killed.
fn streams_and_kills(engine: &str, auto: bool) {
    let driver = driver(engine, auto);
    let mut puppets: Vec<_> = (0..3).map(|_| driver.puppet()).collect();
    let addrs: Vec<_> = puppets.iter_mut().map(|puppet| puppet.ok("listen l 127.0.0.1:0 64")).collect();
    let pairs: Vec<_> = (0..3usize).flat_map(|from| (0..3usize).map(move |to| (from, to))).collect();
    let pairs: Vec<_> = pairs.into_iter().filter(|(from, to)| from != to).collect();
    for &(from, to) in &pairs {
        puppets[from].ok(&format!("connect c{to} {}", addrs[to]));
        puppets[to].ok(&format!("accept s{from} l"));
    }
    let (mut random, mut sent) = (Random(7), vec![0; pairs.len()]);
    for round in 0..ROUNDS {
        let mut victim = driver.puppet();
        victim.ok(&format!("connect c {}", addrs[0]));
        puppets[0].ok("accept v l");
        victim.tell(&format!("send c {round} 0 100000000 20000"));
        puppets[0].ok(&format!("recv v {round} 0 {}", 1 + random.below(500_000)));
        let at = round as usize % pairs.len();
        let (from, to) = pairs[at];
        let (seed, bytes) = (at as u64, 1 + random.below(1_000_000));
        puppets[from].tell(&format!("send c{to} {seed} {} {bytes} 33333", sent[at]));
        puppets[to].tell(&format!("recv s{from} {seed} {} {bytes}", sent[at]));
        victim.kill();
        puppets[from].answer().unwrap();
        puppets[to].answer().unwrap();
        sent[at] += bytes;
        puppets[0].ok("close v");
    }
    assert!(moved(&driver) > ROUNDS / 2, "{} channels moved", moved(&driver));
    puppets.into_iter().for_each(Puppet::finish);
    driver.wait_for("all gone", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0
    });
    assert!(driver.is_running());
}

#[test]
fn streams_go_on_while_clients_change_movers_and_die() {
    streams_and_kills("cpu", false);
}

#[test]
fn threads_of_movers_come_and_go_under_streams() {
    streams_and_kills("cpu", true);
}

#[test]
fn engines_that_fail_and_dawdle_are_waited_for() {
    streams_and_kills("fault:seed=1,fail=50,delay=3,reorder", false);
}

/// A process of many threads, each with its own channel: its channels are at all movers.
#[test]
fn one_process_has_several_movers() {
    let driver = driver("cpu", false);
    let mut server = driver.puppet();
    let addr = server.ok("listen l 127.0.0.1:0 512");
    let (each, bytes) = (20u64, 60_000u64);
    server.tell(&format!("echo l 4 {each}"));
    let mut puppet = driver.puppet();
    puppet.ok(&format!("connect-many c {addr} {each}"));
    for part in 0..20 {
        for index in 0..each {
            puppet.ok(&format!("send c{index} {index} {} {bytes} 9999", part * bytes));
        }
        for index in 0..each {
            puppet.ok(&format!("recv c{index} {index} {} {bytes}", part * bytes));
        }
    }
    for index in 0..each {
        puppet.ok(&format!("shutdown c{index}"));
        assert_eq!(puppet.ok(&format!("end c{index}")), "0");
    }
    puppet.finish();
    assert_eq!(server.answer().unwrap(), (each * 20 * bytes).to_string());
    server.finish();
    assert!(moved(&driver) > 20, "{} channels moved", moved(&driver));
    driver.wait_for("all gone", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0
    });
    assert!(driver.is_running());
}

#[test]
fn a_driver_that_stops_amid_moves_ends() {
    for _ in 0..20 {
        let mut driver = driver("cpu", true);
        let mut puppets: Vec<_> = (0..3).map(|_| driver.puppet()).collect();
        let addr = puppets[0].ok("listen l 127.0.0.1:0 8");
        puppets[1].ok(&format!("connect c {addr}"));
        puppets[0].ok("accept s l");
        puppets[1].tell("send c 1 0 100000000 20000");
        puppets[0].ok("recv s 1 0 300000");
        driver.stop();
        puppets.into_iter().for_each(|mut puppet| puppet.kill());
    }
}
