//! Work that a client can cause in the driver before it is attached, and beside its rings.
use super::{stage, stage_for_anyone, Scene};
use pd_abi::{Frame, FrameKind};
use pd_shm::Pod;
use pd_tests::{ip, needs_root, peer_path, program_path, Network, Raw};
use rustix::io::Errno;
use std::io::BufRead;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Sends a message with a descriptor. Says whether the kernel took it.
fn send_with(socket: impl AsFd, bytes: &[u8], fd: impl AsFd) -> bool {
    match pd_raw::send_with(socket, bytes, fd) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error, Errno::PERM, "refused by the kernel");
            false
        }
    }
}

#[test]
fn descriptors_sent_before_the_accept() {
    let scene = stage();
    let admin = scene.driver.socket().with_file_name("admin.sock");
    let (gift, peer) = pd_raw::lingering(Duration::from_secs(3600)).unwrap();
    let hello = Frame::new(FrameKind::Hello);
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_refused = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    for _ in 0..8 {
        // As fast as can be: with luck the driver has not accepted it yet.
        let client = Raw::dial(&scene.driver);
        let taken = send_with(&client, hello.as_bytes(), &gift);
        let administrator = UnixStream::connect(&admin).unwrap();
        let taken = taken | send_with(&administrator, b"{\"op\":\"list\"}\n", &gift);
        assert!(!taken || !is_refused, "the kernel can refuse them");
    }
    scene.bystander.check(&scene.driver);
    // Resets the connection, so that closing the other end waits for nobody.
    drop(peer);
    drop(gift);
    scene.end();
}

/// Runs an attack `what` of a process of user `nobody` `count` times, while the bystanders go on. Returns how often it
/// succeeded, and how often it was refused.
fn attack(scene: &Scene, what: &str, count: u64) -> (u64, u64) {
    attack_by(scene, Command::new(program_path("attacker")), what, count, || {})
}

/// Runs an attack by another command, and calls a function meanwhile.
fn attack_by(
    scene: &Scene,
    mut command: Command,
    what: &str,
    count: u64,
    mut beside: impl FnMut(),
) -> (u64, u64) {
    command.arg(scene.driver.socket()).args([what, &count.to_string()]).stdout(Stdio::piped());
    let mut attacker = command.spawn().unwrap();
    while attacker.try_wait().unwrap().is_none() {
        scene.bystander.check(&scene.driver);
        beside();
    }
    let output = attacker.wait_with_output().unwrap();
    assert!(output.status.success(), "{what}");
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
    (numbers[0], numbers[1])
}

/// Returns the page faults of this process's threads of this name: their new memory.
fn faults(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let of = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        // Behind the name, which may hold anything.
        let fields = stat.rsplit_once(')')?.1.split_whitespace();
        (name.trim() == thread).then_some(fields)?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}

#[test]
fn one_user_attaches_in_a_loop() {
    needs_root("another user's process");
    let scene = stage_for_anyone();
    let since = Instant::now();
    let (welcomed, refused) = attack(&scene, "connects", 6000);
    let most = 1000.0 + 500.0 * since.elapsed().as_secs_f64() + 64.0;
    assert!((welcomed as f64) <= most, "{welcomed} welcomed, {refused} refused, {most} at most");
    // Others are let in.
    drop(Raw::attach(&scene.driver, 1));
    scene.end();
}

#[test]
fn one_user_asks_for_pipes_in_a_loop() {
    needs_root("another user's process");
    let scene = stage_for_anyone();
    let since = Instant::now();
    let (made, refused) = attack(&scene, "pipes", 40_000);
    // 20 of its tokens each.
    let most = (400_000.0 + 200_000.0 * since.elapsed().as_secs_f64()) / 20.0 + 1.0;
    assert!((made as f64) <= most && refused == 0, "{made} made, {most} at most");
    scene.end();
}

#[test]
fn large_regions_are_made_beside_the_movers() {
    needs_root("another user's process");
    let scene = stage_for_anyone();
    let before = faults("pd-driver");
    let (made, _) = attack(&scene, "regions", 20);
    assert_eq!(made, 20);
    let (faults, pages) = (faults("pd-driver") - before, made * (64 << 20) / 4096);
    assert!(faults < pages / 100, "{faults} faults of the mover's thread for {pages} pages");
    scene.end();
}

#[test]
fn any_port_is_refused_as_fast_as_it_is_given() {
    needs_root("another user's process");
    let scene = stage_for_anyone();
    let (_, refused) = attack(&scene, "ports", 8_000);
    assert_eq!(refused, 8_000);
    scene.end();
}

#[test]
fn thousands_of_addresses_hold_up_nobody() {
    needs_root("making network namespaces");
    let scene = stage_for_anyone();
    let network = Network::new();
    let batch = scene.driver.folder().join("batch");
    let lines = (0..16_000u32).map(|n| format!("addr add 10.78.{}.{}/32 dev lo\n", n >> 8, n & 255));
    std::fs::write(&batch, lines.collect::<String>()).unwrap();
    assert!(ip(&format!("-n {} -batch {}", network.namespace("a"), batch.display())));
    let mut victim = network.puppet(&scene.driver, "b");
    let mut attacker = Command::new("ip");
    attacker.args(["netns", "exec", &network.namespace("a")]).arg(program_path("attacker"));
    let mut bound = 0;
    let (_, refused) = attack_by(&scene, attacker, "addresses", 8_000, || {
        victim.ok("listen l 10.77.0.2:0 8");
        victim.ok("close l");
        bound += 1;
    });
    assert_eq!(refused, 8_000, "it holds no such address");
    assert!(bound > 0);
    victim.finish();
    drop(network);
    scene.end();
}

#[test]
fn broken_protocols_do_not_flood_the_log() {
    needs_root("another user's process");
    let folder = tempfile::tempdir().unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).unwrap();
    let (socket, log) = (folder.path().join("driver.sock"), folder.path().join("log"));
    let mut driver = Command::new(peer_path())
        .arg("driver")
        .args([&socket, &folder.path().join("admin.sock")])
        .arg("attach_anyone=1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    std::io::BufReader::new(driver.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let since = Instant::now();
    let attacker = Command::new(program_path("attacker")).arg(&socket).args(["garbage", "500"]).output();
    let attacker = attacker.unwrap();
    assert_eq!(String::from_utf8_lossy(&attacker.stdout), "done 500 0\n");
    let counts = since.elapsed().as_secs() as usize / 10 + 1;
    drop(driver.stdin.take());
    assert!(driver.wait().unwrap().success());
    let text = std::fs::read_to_string(&log).unwrap();
    let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert!(lines("unexpected message on the attach socket") == 1, "{text}");
    assert!(lines("the same again") <= counts, "{text}");
}

/// A client has the kernel wait, with the lock of its folder in `/proc`, which the driver looks into for each client.
#[test]
fn folders_of_proc_that_are_being_listed() {
    needs_root("userfaultfd");
    let scene = stage();
    let mut command = Command::new(program_path("attacker"));
    command.arg(scene.driver.socket()).args(["lists", "1", "0"]).stdout(Stdio::piped());
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "done 1 0\n");
    drop(Raw::attach(&scene.driver, 1));
    scene.end();
}
