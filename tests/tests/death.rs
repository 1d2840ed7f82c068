//! Clients killed at random moments: nothing leaks, nobody else notices, peers learn it in order.
use pd_client::{Listener, SendBuffer, Stream};
use pd_driver::policy::Path;
use pd_tests::{fill, verify, Random, TestDriver};
use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::{Duration, Instant};

/// Growth of this process's own regions: one of the largest size that its sends need.
const OWN_BYTES_MORE: u64 = 2 << 20;

/// Returns the number of kills: fewer over the direct path, where the driver's work is the same.
fn kills() -> u64 {
    match pd_tests::path() {
        Path::Offloaded => 2000,
        Path::Direct => 500,
    }
}

/// Closes connections that victims had asked for when they were killed, and that the driver has made since.
fn refuse_late(listener: &Listener) {
    while listener.accept().is_ok() {}
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Reads a victim's stream to its end: a prefix of its sends, then EOF or `ECONNRESET`.
fn read_victim(stream: &Stream, seed: u64) {
    let mut position = 0;
    loop {
        match stream.recv(64 << 10) {
            Ok(received) if received.is_empty() => return,
            Ok(received) => {
                verify(seed, position, &received);
                position += received.len() as u64;
            }
            Err(error) => {
                assert_eq!(error.errno(), libc::ECONNRESET, "{error}");
                return;
            }
        }
    }
}

fn feed_victim(stream: &Stream, seed: u64) {
    let mut random = Random(seed);
    let mut position = 0;
    let mut buffers: Vec<_> = (0..3).map(|_| SendBuffer::new(30_000).unwrap()).collect();
    loop {
        for buffer in &mut buffers {
            let len = 1 + random.below(30_000) as usize;
            let Ok(bytes) = buffer.wait_mut() else { return };
            fill(seed, position, &mut bytes[..len]);
            if let Err(error) = stream.send(buffer, ..len) {
                assert!([libc::ECONNRESET, libc::EPIPE].contains(&error.errno()), "{error}");
                return;
            }
            position += len as u64;
        }
    }
}

#[test]
fn thousands_of_kills() {
    let driver = TestDriver::with("cpu", |settings| settings.ring_bytes_default = 256 << 10);
    driver.attach_here();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap().to_string();

    // A pair that nothing of this may disturb.
    let mut bystander = driver.peer(&["recv", "127.0.0.1:0", "5000"]);
    let mut bystander_out = BufReader::new(bystander.stdout.take().unwrap());
    let mut line = String::new();
    bystander_out.read_line(&mut line).unwrap();
    let bystander_addr = line.trim().strip_prefix("ready ").unwrap();
    let calm = driver.peer(&["send", bystander_addr, "30000000000", "5000", "8"]);
    let calm_pid = calm.id();

    let warm = driver.wait_for("the bystanders' connection", |r| r.connections.len() == 1);
    let mut before = None;
    let mut random = Random(42);
    for round in 0..kills() {
        if round == 50 {
            // Past the first rounds, which fill caches of regions and threads.
            let quiet = driver.wait_for("quiet", |r| {
                refuse_late(&listener);
                r.connections.len() == 1 && r.clients.len() == warm.clients.len()
            });
            before = Some((quiet, descriptors()));
        }
        let role = if round % 2 == 0 { "victim-send" } else { "victim-recv" };
        let mut victim = driver.peer(&[role, &addr, &round.to_string()]);
        let kill_after = Duration::from_micros(random.below(6000));
        thread::scope(|scope| {
            listener.set_nonblocking(true);
            let early = random.below(4) == 0;
            if !early {
                // Killed at some moment of the transfer.
                let stream = loop {
                    match listener.accept() {
                        Ok(stream) => break stream,
                        Err(error) => assert_eq!(error.errno(), libc::EAGAIN),
                    }
                    thread::sleep(Duration::from_micros(200));
                };
                let reader = scope.spawn(move || match round % 2 {
                    0 => read_victim(&stream, round),
                    _ => feed_victim(&stream, round),
                });
                thread::sleep(kill_after);
                victim.kill().unwrap();
                reader.join().unwrap();
            } else {
                // Killed while it attaches, connects or sends unaccepted.
                thread::sleep(kill_after);
                victim.kill().unwrap();
            }
            victim.wait().unwrap();
            while let Ok(stream) = listener.accept() {
                if round % 2 == 0 {
                    read_victim(&stream, round);
                }
            }
        });
    }
    let (before, descriptors_before) = before.unwrap();
    let own = |r: &pd_driver::admin::Report| {
        let own = r.clients.iter().find(|c| c.pid == std::process::id()).unwrap();
        (own.sockets, own.region_bytes)
    };
    // This process has more memory once sends to a dead peer are still under way when it feeds the next one.
    let of_others = |r: &pd_driver::admin::Report| r.memory_used_bytes - own(r).1;
    let after = driver.wait_for("the dead are forgotten", |r| {
        refuse_late(&listener);
        r.connections.len() == 1
            && r.clients.len() == warm.clients.len()
            && of_others(r) <= of_others(&before)
    });
    assert_eq!(after.clients.len(), before.clients.len());
    assert_eq!(own(&after).0, own(&before).0, "sockets");
    assert!(own(&after).1 <= own(&before).1 + OWN_BYTES_MORE, "{} bytes", own(&after).1);
    // Memory that a dying process held is looked at once a second.
    let until = Instant::now() + Duration::from_secs(10);
    while descriptors() > descriptors_before + 2 {
        assert!(Instant::now() < until, "{} descriptors, {descriptors_before} before", descriptors());
        thread::sleep(Duration::from_millis(10));
    }

    // The bystanders still exchange bytes, and all are right.
    let moved = |r: &pd_driver::admin::Report| r.connections[0].bytes[0];
    let so_far = moved(&driver.report());
    driver.wait_for("the bystanders go on", |r| moved(r) > so_far);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(calm_pid as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    drop(calm);
    let mut rest = String::new();
    bystander_out.read_to_string(&mut rest).unwrap();
    let _ = bystander.kill();
    bystander.wait().unwrap();
    driver.wait_for("all gone but this process", |r| r.clients.len() == 1 && r.connections.is_empty());
}
