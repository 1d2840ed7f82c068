//! Three movers: clients and flows spread over threads of the driver, and nobody can tell.
use pd_tests::{Puppet, Random, TestDriver};
use std::thread;
use std::time::Duration;

const KILLS: u64 = 100;

fn driver() -> TestDriver {
    TestDriver::with("cpu", |settings| {
        settings.movers = 3;
        settings.hugepages = pd_driver::HugepageUse::Off;
        settings.ring_bytes_default = 256 << 10;
        settings.ring_idle = Duration::from_millis(50);
    })
}

fn listen(puppet: &mut Puppet) -> String {
    puppet.ok("listen l 127.0.0.1:0 512")
}

#[test]
fn streams_between_all_pairs_of_processes() {
    let driver = driver();
    let mut puppets: Vec<_> = (0..4).map(|_| driver.puppet()).collect();
    let addrs: Vec<_> = puppets.iter_mut().map(listen).collect();
    // Everyone connects to everyone, itself included: each pair of movers both ways.
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        puppets[from].ok(&format!("connect c{to} {}", addrs[to]));
        puppets[to].ok(&format!("accept s{from} l"));
    }
    let bytes = 1_500_000;
    for round in 0..3u64 {
        for (from, to) in (0..4usize).flat_map(|from| (0..4usize).map(move |to| (from, to))) {
            let seed = (from * 4 + to) as u64;
            let at = round * bytes;
            // Within one process the ring has to take it all.
            let (bytes, at) = if from == to { (200_000, round * 200_000) } else { (bytes, at) };
            puppets[from].tell(&format!("send c{to} {seed} {at} {bytes} 33333"));
            puppets[to].tell(&format!("recv s{from} {seed} {at} {bytes}"));
            puppets[from].answer().unwrap();
            puppets[to].answer().unwrap();
        }
    }
    assert_eq!(driver.report().connections.len(), 16);
    puppets.into_iter().for_each(Puppet::finish);
    driver.wait_for("all gone", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0
    });
    assert!(driver.is_running());
}

#[test]
fn many_connections_echoed_by_threads_with_epoll() {
    let driver = driver();
    let mut server = driver.puppet();
    let addr = listen(&mut server);
    let (clients, each, bytes) = (3u64, 40u64, 60_000u64);
    server.tell(&format!("echo l 4 {}", clients * each));
    thread::scope(|scope| {
        for client in 0..clients {
            let (driver, addr) = (&driver, &addr);
            scope.spawn(move || {
                let mut puppet = driver.puppet();
                puppet.ok(&format!("connect-many c {addr} {each}"));
                for part in 0..3 {
                    for index in 0..each {
                        let seed = client * 1000 + index;
                        puppet.ok(&format!("send c{index} {seed} {} {bytes} 9999", part * bytes));
                    }
                    for index in 0..each {
                        let seed = client * 1000 + index;
                        puppet.ok(&format!("recv c{index} {seed} {} {bytes}", part * bytes));
                    }
                }
                for index in 0..each {
                    puppet.ok(&format!("shutdown c{index}"));
                    assert_eq!(puppet.ok(&format!("end c{index}")), "0");
                }
                puppet.finish();
            });
        }
    });
    assert_eq!(server.answer().unwrap(), (clients * each * 3 * bytes).to_string());
    server.finish();
    driver.wait_for("all gone", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0
    });
    assert!(driver.is_running());
}

#[test]
fn kills_leave_nothing_behind() {
    let driver = driver();
    let bystander = pd_tests::Bystander::start(&driver);
    let mut server = driver.puppet();
    let addr = listen(&mut server);
    let before = driver.report();
    let mut random = Random(3);
    for round in 0..KILLS {
        // A victim sends to and receives from the server, and is killed at some moment.
        let mut victim = driver.puppet();
        victim.ok(&format!("connect c {addr}"));
        victim.ok(&format!("connect d {addr}"));
        server.ok("accept s l");
        server.ok("accept t l");
        victim.tell(&format!("send c {round} 0 100000000 20000"));
        server.tell(&format!("recv s {round} 0 {}", 1 + random.below(2_000_000)));
        if round % 2 == 0 {
            server.answer().unwrap();
            victim.kill();
        } else {
            thread::sleep(Duration::from_micros(random.below(3000)));
            victim.kill();
            // Delivered bytes, then the end, orderly or not.
            match server.answer() {
                Ok(_) => {}
                Err((errno, message)) => {
                    assert!([libc::ECONNRESET, libc::ENODATA].contains(&errno), "{message}");
                }
            }
        }
        let _ = server.ask(&format!("send t {round} 0 500000 20000"));
        server.ok("close s");
        server.ok("close t");
    }
    server.ok("close-all");
    // A close is not answered: the driver takes it soon after.
    driver.wait_for("the dead are forgotten", |r| {
        let client = r.clients.iter().find(|client| client.pid == server.pid());
        r.clients.len() == before.clients.len()
            && r.connections.len() == 1
            && client.is_some_and(|client| (client.sockets, client.ring_bytes) == (0, 0))
    });
    bystander.check(&driver);
    bystander.finish();
    server.finish();
    driver.wait_for("all gone", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0
    });
    assert!(driver.is_running());
}
