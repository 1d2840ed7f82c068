//! Behaviour at each limit: one error that names the thing and the remedy, and no loss.
use pd_abi::limits::RING_BYTES_DEFAULT;
use pd_abi::limits::{MESSAGE_BYTES_MAX, SOCKETS_MAX};
use pd_abi::{EventKind, Operation, Request, SocketId};
use pd_driver::{HugepageUse, Settings};
use pd_tests::{Puppet, Raw, TestDriver};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn driver(change: impl FnOnce(&mut Settings)) -> TestDriver {
    TestDriver::with("cpu", |settings| {
        settings.hugepages = HugepageUse::Off;
        settings.ring_idle = Duration::from_millis(50);
        change(settings);
    })
}

fn wait_gone(driver: &TestDriver) {
    driver.wait_for("all gone", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0 && r.rings_waiting == 0
    });
    assert!(driver.is_running());
}

/// Checks that the command fails with this errno, and that the message has all of the words.
fn fails(puppet: &mut Puppet, command: &str, errno: i32, words: &[&str]) {
    let (got, message) = puppet.ask(command).expect_err(command);
    assert_eq!(got, errno, "{command}: {message}");
    for word in words {
        assert!(message.contains(word), "{command}: no {word:?} in {message:?}");
    }
}

#[test]
fn a_full_backlog_has_the_one_too_many_wait() {
    let driver = driver(|_| {});
    let (mut server, mut client) = (driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 4");
    for round in 0..3 {
        client.ok(&format!("connect-many c {addr} 4"));
        fails(&mut client, &format!("connect-now d {addr}"), libc::ECONNREFUSED, &[&addr]);
        // Waiting sends lose nothing.
        for index in 0..4 {
            client.ok(&format!("send c{index} {index} 0 200000 50000"));
        }
        fails(&mut client, &format!("connect-now d {addr}"), libc::ECONNREFUSED, &[&addr]);
        server.ok("accept s0 l");
        // There is room for one, and only one.
        client.ok(&format!("connect c4 {addr}"));
        fails(&mut client, &format!("connect-now d {addr}"), libc::ECONNREFUSED, &[&addr]);
        client.ok("send c4 4 0 200000 50000");
        // A waiting connect gets the next place.
        client.tell(&format!("connect d {addr}"));
        for index in 0..5 {
            if index > 0 {
                server.ok(&format!("accept s{index} l"));
            }
            server.ok(&format!("recv s{index} {index} 0 200000"));
        }
        client.answer().unwrap();
        server.ok("accept e l");
        client.ok("close d");
        server.ok("close e");
        for index in 0..5 {
            client.ok(&format!("close c{index}"));
            assert_eq!(server.ok(&format!("end s{index}")), "0", "round {round}");
            server.ok(&format!("close s{index}"));
        }
    }
    drop((server, client));
    wait_gone(&driver);
}

#[test]
fn messages_and_blocks_too_large() {
    let driver = driver(|settings| settings.budget_bytes = 64 * MIB);
    let mut puppet = driver.puppet();
    let limit = MESSAGE_BYTES_MAX.to_string();
    fails(
        &mut puppet,
        &format!("malloc b {}", MESSAGE_BYTES_MAX + 1),
        libc::EMSGSIZE,
        &[&limit, "use several"],
    );
    fails(&mut puppet, &format!("malloc b {}", 65 * MIB), libc::ENOMEM, &["memory.budget_bytes"]);
    puppet.ok("malloc b 1000");
    let addr = puppet.ok("listen l 127.0.0.1:0 4");
    puppet.ok(&format!("connect c {addr}"));
    fails(&mut puppet, "send-bytes c b 1001", libc::EINVAL, &["1001", "1000"]);
    assert_eq!(puppet.ok("send-bytes c b 1000"), "1000");
    drop(puppet);
    wait_gone(&driver);
}

#[test]
fn an_exhausted_pool_says_so_and_recovers() {
    let driver = driver(|settings| settings.budget_bytes = 24 * MIB);
    let (mut greedy, mut server, mut client) = (driver.puppet(), driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 64");
    client.ok(&format!("connect before {addr}"));
    server.ok("accept before l");
    client.ok("send before 1 0 100000 50000");
    server.ok("recv before 1 0 100000");
    for number in 0.. {
        if let Err((errno, message)) = greedy.ask(&format!("malloc b{number} {}", 4 * MIB)) {
            assert_eq!(errno, libc::ENOMEM);
            assert!(message.contains("exhausted") && message.contains("memory.budget_bytes"), "{message}");
            assert!(number > 2, "{number} blocks");
            break;
        }
    }
    // Existing connections go on, and new ones while there is a ring for them.
    for round in 0..5 {
        client.tell(&format!("send before 1 {} 400000 50000", 100_000 + round * 400_000));
        server.ok(&format!("recv before 1 {} 400000", 100_000 + round * 400_000));
        client.answer().unwrap();
    }
    let report = driver.report();
    assert!(report.memory_used_bytes <= report.memory_budget_bytes);
    // The greedy one goes, and there is room again.
    greedy.kill();
    driver.wait_for("the greedy one's memory is back", |r| r.memory_used_bytes < 10 * MIB);
    let mut late = driver.puppet();
    late.ok(&format!("malloc b {}", 8 * MIB));
    late.ok(&format!("connect c {addr}"));
    server.ok("accept s l");
    drop((greedy, server, client, late));
    wait_gone(&driver);
}

#[test]
fn without_any_memory_a_connect_says_so() {
    let driver = driver(|settings| settings.budget_bytes = 4 * MIB);
    let (mut greedy, mut server, mut client) = (driver.puppet(), driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 64");
    greedy.ok(&format!("malloc b {}", 3 * MIB));
    fails(&mut client, "malloc b 100", libc::ENOMEM, &["exhausted", "memory.budget_bytes"]);
    fails(&mut client, &format!("connect c {addr}"), libc::ENOBUFS, &[&addr]);
    greedy.kill();
    driver.wait_for("memory is back", |r| r.memory_used_bytes == 0);
    client.ok(&format!("connect c {addr}"));
    server.ok("accept s l");
    client.ok("send c 1 0 50000 50000");
    drop((greedy, server, client));
    wait_gone(&driver);
}

#[test]
fn one_client_has_a_budget_of_its_own() {
    let driver = driver(|settings| settings.client_budget_bytes = 8 * MIB);
    let (mut greedy, mut other) = (driver.puppet(), driver.puppet());
    greedy.ok(&format!("malloc a {}", 3 * MIB));
    greedy.ok(&format!("malloc b {}", 3 * MIB));
    fails(&mut greedy, &format!("malloc c {}", 3 * MIB), libc::ENOMEM, &["memory.client_budget_bytes"]);
    other.ok(&format!("malloc a {}", 6 * MIB));
    // Freed resources are available again.
    greedy.ok("close a");
    greedy.ok(&format!("malloc c {}", 3 * MIB));
    drop((greedy, other));
    wait_gone(&driver);
}

#[test]
fn rings_shrink_when_memory_is_short_and_no_byte_is_lost() {
    // The sender's region takes 4 MiB; the rest is less than a page for each connection. The receiver reads of no region until it
    // receives: there is no room to tell it of more than some 50.
    let budget = 4 * MIB + MIB / 4;
    let driver = driver(|settings| settings.budget_bytes = budget);
    let (mut server, mut client) = (driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 256");
    client.ok("malloc b 1000000");
    let count = 200u64;
    client.ok(&format!("connect-many c {addr} {count}"));
    server.ok(&format!("accept-many s l {count}"));
    for index in 0..count {
        client.ok(&format!("send c{index} {index} 0 1000 1000"));
    }
    let denied = || driver.metrics().rings_denied;
    let report = driver.wait_for("rings are denied", |_| denied() > 0);
    assert!(report.memory_used_bytes <= budget);
    for client in &report.clients {
        assert!(client.ring_bytes <= MIB / 4, "{} ring bytes", client.ring_bytes);
    }
    // The others get theirs as the first are read.
    for index in 0..count {
        server.ok(&format!("recv s{index} {index} 0 1000"));
    }
    // And a stream much larger than any of these rings passes.
    for index in (0..count).step_by(10) {
        client.tell(&format!("send c{index} {index} 1000 600000 30000"));
        server.ok(&format!("recv s{index} {index} 1000 600000"));
        client.answer().unwrap();
    }
    driver.wait_for("nobody waits", |r| r.rings_waiting == 0);
    drop((server, client));
    wait_gone(&driver);
}

#[test]
fn idle_receive_memory_goes_to_a_client_that_has_none() {
    // The sender's region takes 4 MiB. Rings of the first client's many connections take the rest.
    let driver = driver(|settings| settings.budget_bytes = 4 * MIB + MIB / 4);
    let [mut many, mut sender, mut late] = [driver.puppet(), driver.puppet(), driver.puppet()];
    sender.ok("malloc b 1000000");
    let [to_many, to_late] = [&mut many, &mut late].map(|puppet| puppet.ok("listen l 127.0.0.1:0 256"));
    let count = 200;
    sender.ok(&format!("connect-many c {to_many} {count}"));
    many.ok(&format!("accept-many s l {count}"));
    for round in 0..3 {
        let begin = round * 1000;
        (0..count).for_each(|at| drop(sender.ok(&format!("send c{at} {at} {begin} 1000 1000"))));
        driver.wait_for("memory is used up", |_| driver.metrics().rings_denied > round);
        // No connection overtakes an earlier one: the order of the sends is one in which all can be received.
        (0..count).for_each(|at| drop(many.ok(&format!("recv s{at} {at} {begin} 1000"))));
        driver.wait_for("the rings go back", |r| r.clients.iter().all(|client| client.ring_bytes == 0));
        sender.ok(&format!("connect d{round} {to_late}"));
        late.ok(&format!("accept e{round} l"));
        sender.tell(&format!("send d{round} 1 0 3000000 100000"));
        late.ok(&format!("recv e{round} 1 0 3000000"));
        sender.answer().unwrap();
    }
    assert!(driver.metrics().regions_emptied > 0, "there was enough memory");
    driver.wait_for("nobody waits", |r| r.rings_waiting == 0);
    drop((many, sender, late));
    wait_gone(&driver);
}

#[test]
fn connections_have_a_limit() {
    let driver = driver(|settings| settings.connections_max = 10);
    let (mut server, mut client) = (driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 64");
    client.ok(&format!("connect-many c {addr} 10"));
    server.ok("accept-many s l 10");
    fails(&mut client, &format!("connect d {addr}"), libc::ENOBUFS, &[&addr]);
    client.ok("send c9 9 0 100000 50000");
    server.ok("recv s9 9 0 100000");
    client.ok("close c3");
    assert_eq!(server.ok("end s3"), "0");
    server.ok("close s3");
    driver.wait_for("one is gone", |r| r.connections.len() == 9);
    client.ok(&format!("connect c3 {addr}"));
    fails(&mut client, &format!("connect d {addr}"), libc::ENOBUFS, &[&addr]);
    drop((server, client));
    wait_gone(&driver);
}

#[test]
fn clients_have_a_limit() {
    let driver = driver(|settings| settings.clients_max = 3);
    let mut puppets: Vec<_> = (0..3).map(|_| driver.puppet()).collect();
    for puppet in &mut puppets {
        puppet.ok("listen l 127.0.0.1:0 4");
    }
    let mut late = driver.puppet();
    fails(&mut late, "listen l 127.0.0.1:0 4", libc::EUSERS, &["clients_max"]);
    puppets.pop().expect("three").finish();
    driver.wait_for("one is gone", |r| r.clients.len() == 2);
    late.ok("listen l 127.0.0.1:0 4");
    drop((puppets, late));
    wait_gone(&driver);
}

#[test]
fn a_client_has_65_536_sockets_and_not_one_more() {
    let driver = driver(|_| {});
    let mut raw = Raw::attach(&driver, 1);
    let mut request = Request::new(Operation::Socket, SocketId(0), 0);
    request.family = 4;
    let mut last = SocketId(0);
    let (mut asked, mut answered) = (0, 0);
    while answered < SOCKETS_MAX {
        // In batches: the driver takes them faster than one by one.
        while asked < SOCKETS_MAX && asked - answered < 512 {
            raw.post(0, &request);
            asked += 1;
        }
        while let Some(event) = raw.event(0) {
            assert_eq!((event.kind, event.errno), (EventKind::Answer as u8, 0), "socket {answered}");
            last = SocketId(event.socket);
            answered += 1;
        }
    }
    assert_eq!(driver.report().clients[0].sockets, SOCKETS_MAX);
    assert_eq!(driver.report().memory_used_bytes, 0, "idle sockets take no memory of the pool");
    assert_eq!(raw.call(0, request).errno, libc::EMFILE as u32);
    raw.post(0, &Request::new(Operation::Close, last, 0));
    let again = raw.call(0, request);
    assert_eq!((again.errno, SocketId(again.socket).slot()), (0, last.slot()));
    assert_ne!(SocketId(again.socket).generation(), last.generation());
    drop(raw);
    wait_gone(&driver);
}

#[test]
fn thousands_of_idle_connections_cost_no_ring_memory() {
    let driver = driver(|_| {});
    let (mut server, mut client) = (driver.puppet(), driver.puppet());
    let addr = server.ok("listen l 127.0.0.1:0 4096");
    client.ok("malloc b 1000");
    let before = driver.report().memory_used_bytes;
    let count = 3000;
    client.ok(&format!("connect-many c {addr} {count}"));
    server.ok(&format!("accept-many s l {count}"));
    let idle = |report: &pd_driver::admin::Report| report.clients.iter().all(|c| c.ring_bytes == 0);
    let report = driver.report();
    assert_eq!(report.connections.len(), count);
    assert!(idle(&report));
    assert_eq!(report.memory_used_bytes, before);
    // A few of them work: their rings come, go, and leave the rest as it was.
    for round in 0..3u64 {
        for index in [0, 1, 1500, 2999] {
            client.tell(&format!("send c{index} {index} {} 3000000 50000", round * 3_000_000));
            server.ok(&format!("recv s{index} {index} {} 3000000", round * 3_000_000));
            client.answer().unwrap();
        }
        let report = driver.wait_for("rings are given back", idle);
        // A ring for each of the four that may be at it at once, and memory to send from.
        let used = report.memory_used_bytes - before;
        assert!(used <= 6 * RING_BYTES_DEFAULT, "{used} bytes in round {round}");
    }
    drop((server, client));
    wait_gone(&driver);
}

#[test]
fn errors_name_the_thing_and_the_remedy() {
    let driver = driver(|settings| {
        settings.connections_max = 1;
        settings.budget_bytes = 8 * MIB;
    });
    let mut puppet = driver.puppet();
    let addr = puppet.ok("listen l 127.0.0.1:0 1");
    let port = addr.rsplit_once(':').expect("port").1;
    puppet.ok(&format!("connect c {addr}"));
    for (what, command, thing, remedy) in [
        ("an address not owned", "listen m 203.0.113.7:80 1".to_owned(), "203.0.113.7:80", "bind one of"),
        ("a port taken", format!("listen m 0.0.0.0:{port} 1"), port, "choose another"),
        ("nobody listens", "connect d 127.0.0.1:9".to_owned(), "127.0.0.1:9", "start the listener"),
        ("an address that nobody holds", "connect d 224.0.0.1:80".to_owned(), "224.0.0.1:80", "start"),
        ("a full backlog or too many connections", format!("connect d {addr}"), &addr, "raise"),
        ("a block too large", "malloc b 2000000000".to_owned(), "2000000000", "use several"),
        ("an exhausted pool", "malloc b 9000000".to_owned(), "pool", "raise memory.budget_bytes"),
    ] {
        let (_, message) = puppet.ask(&command).expect_err(what);
        assert!(message.contains(thing) && message.contains(remedy), "{what}: {message}");
    }
    drop(puppet);
    wait_gone(&driver);
}
