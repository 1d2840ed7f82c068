//! `pd port`, `pd pipe`, and a program with a pipe of a driver in a process of its own.

use pd_client::pipe::{Direction, Options, Pipe};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// A driver in a folder of its own; killed when dropped.
struct Driver {
    child: Child,
    folder: tempfile::TempDir,
}

impl Driver {
    fn start() -> Driver {
        Driver::with("")
    }

    fn with(policy: &str) -> Driver {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("policy.toml"), policy).unwrap();
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\npolicy = {:?}\n[memory]\nbudget_bytes = \"16MiB\"\nring_bytes_default = \"1MiB\"\n",
            at("driver.sock"),
            at("admin.sock"),
            at("policy.toml")
        );
        std::fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        command.arg("driver").arg("--config").arg(at("driver.toml")).stderr(Stdio::null());
        let this = Driver { child: command.spawn().unwrap(), folder };
        let end = Instant::now() + Duration::from_secs(20);
        while !this.pd(&["pipe", "ls"]).status.success() {
            assert!(Instant::now() < end, "no driver");
            std::thread::sleep(Duration::from_millis(20));
        }
        this
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("driver.sock")
    }

    fn pd(&self, args: &[&str]) -> Output {
        let admin = self.folder.path().join("admin.sock");
        let args = [args, &["--admin-socket", admin.to_str().unwrap()]].concat();
        Command::new(env!("CARGO_BIN_EXE_pd")).args(args).output().unwrap()
    }

    fn done(&self, args: &[&str]) {
        let output = self.pd(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn refused(&self, args: &[&str], why: &str) {
        let output = self.pd(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_slice(&self.pd(args).stdout).unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that sends received frames back, until it is dropped. Each test has its own, as a process has one driver.
struct Echo {
    _process: Running,
}

impl Echo {
    fn start(driver: &Driver, port: &str) -> Echo {
        let mut this = Command::new(std::env::current_exe().unwrap());
        this.args(["--exact", "echo", "--ignored", "--nocapture"]).env("ECHO_PORT", port);
        let child = this.env("PD_SOCKET", driver.socket()).stdout(Stdio::null()).spawn().unwrap();
        let echo = Echo { _process: Running(child) };
        let end = Instant::now() + Duration::from_secs(20);
        while driver.json(&["pipe", "ls", "--json"])["pipes"].as_array().unwrap().is_empty() {
            assert!(Instant::now() < end, "no echo");
            std::thread::sleep(Duration::from_millis(5));
        }
        echo
    }
}

#[test]
#[ignore = "a program of the other tests"]
fn echo() {
    let port = std::env::var("ECHO_PORT").unwrap();
    let mut pipe = Pipe::open(&Options::new(Direction::Forward, &port)).unwrap();
    while pipe.wait(None).is_ok() {
        let mut frames = pipe.frames().unwrap();
        while frames.next().is_some() {}
    }
}

/// Makes a capture of `frames` frames of 60 bytes, each filled with its number.
fn capture(frames: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for number in 0..frames {
        for word in [0u32, 0, 60, 60] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([number; 60]);
    }
    bytes
}

#[test]
fn ports_come_and_go_and_a_pipe_has_their_packets() {
    let mut driver = Driver::start();
    let file = driver.folder.path().join("capture.pcap");
    std::fs::write(&file, capture(100)).unwrap();
    driver.done(&["port", "add", "old", "pcap", file.to_str().unwrap()]);
    driver.done(&["port", "add", "wan", "gen", "--sizes", "64,1500", "--frames", "1000"]);
    driver.done(&["port", "add", "wire", "link"]);
    driver.done(&["port", "add", "drain", "sink"]);
    driver.refused(&["port", "add", "wan", "sink"], "already");
    driver.refused(&["port", "add", "a b", "sink"], "no name");
    driver.refused(&["port", "add", "odd", "gen", "--sizes", "9"], "50 to 9216");
    driver.refused(&["port", "add", "none", "pcap", "/nowhere"], "/nowhere");
    driver.refused(&["port", "rm", "none"], "no port none");
    driver.done(&["port", "rm", "drain"]);
    let ports = driver.json(&["port", "ls", "--json"]);
    let names: Vec<_> = ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["old", "wan", "wire.0", "wire.1"]);

    std::env::set_var("PD_SOCKET", driver.socket());
    let open = |direction, port| Pipe::open(&Options::new(direction, port).ring_bytes(64 << 10)).unwrap();
    let mut played = open(Direction::Receive, "old");
    let mut number = 0;
    while number < 100 {
        played.wait(PATIENCE).unwrap();
        let mut frames = played.frames().unwrap();
        while let Some(frame) = frames.next() {
            assert_eq!(frame.bytes(), [number; 60]);
            number += 1;
        }
    }
    let mut echo = open(Direction::Forward, "wan");
    let mut count = 0;
    while count < 1000 {
        echo.wait(PATIENCE).unwrap();
        let mut frames = echo.frames().unwrap();
        while frames.next().is_some() {
            count += 1;
        }
    }
    let end = Instant::now() + Duration::from_secs(20);
    let wan = loop {
        let ports = driver.json(&["port", "ls", "--json"]);
        let wan = ports.as_array().unwrap().iter().find(|port| port["name"] == "wan").unwrap().clone();
        if wan["frames_sent"] == 1000 {
            break wan;
        }
        assert!(Instant::now() < end, "{wan}");
    };
    assert_eq!(
        (&wan["frames_wrong"], &wan["frames_missing"], &wan["pipes"]),
        (&0.into(), &0.into(), &1.into())
    );
    let report = driver.json(&["pipe", "ls", "--json"]);
    assert_eq!(report["pipes"].as_array().unwrap().len(), 2);
    assert_eq!(report["tenants"][0]["frames_received"], 1100);
    let table = String::from_utf8(driver.pd(&["pipe", "ls"]).stdout).unwrap();
    assert!(table.contains("forward") && table.contains("wan"), "{table}");

    driver.child.kill().unwrap();
    driver.child.wait().unwrap();
    assert_eq!(echo.wait(PATIENCE).unwrap_err().errno(), 104);
}

#[test]
fn a_generator_counts_and_times_what_comes_back() {
    let driver = Driver::start();
    driver.done(&["port", "add", "loop", "link"]);
    driver.done(&["port", "add", "hole", "sink"]);
    let echo = Echo::start(&driver, "loop.1");
    let gen = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pd"))
            .arg("gen")
            .args(args)
            .env("PD_SOCKET", driver.socket())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let json = |args: &[&str]| {
        let (_, out, said) = gen(&[args, &["--json"]].concat());
        serde_json::from_str::<serde_json::Value>(&out).unwrap_or_else(|_| panic!("{args:?}: {said}"))
    };
    let run = json(&["loop.0", "--sizes", "imix", "--flows", "3", "--frames", "24000", "--seconds", "20"]);
    assert_eq!((&run["frames_sent"], &run["loss"]), (&24_000.into(), &0.0.into()), "{run}");
    let returned = &run["returned"];
    assert_eq!((&returned["frames"], &returned["bytes"]), (&24_000.into(), &run["bytes_sent"]), "{run}");
    assert_eq!(run["bytes_sent"], 2000 * (7 * 64 + 4 * 594 + 1518), "{run}");
    assert_eq!((&returned["frames_reordered"], &returned["frames_foreign"]), (&0.into(), &0.into()), "{run}");
    let trip = &returned["round_trip_ns"];
    assert!(trip["min"].as_u64() > Some(0) && trip["p50"].as_u64() <= trip["max"].as_u64(), "{run}");

    // A short trial has few frames; its rates depend on the machine, the end of a search does not.
    let found = json(&["loop.0", "--search", "--rate", "2kpps", "--seconds", "0.1", "--loss-allowed", "100"]);
    assert_eq!(
        (&found["frames_per_second_max"], &found["trials"][0]["passed"]),
        (&2000.0.into(), &true.into())
    );

    let file = driver.folder.path().join("played.pcap");
    std::fs::write(&file, capture(7)).unwrap();
    let played = json(&["loop.0", "--pcap", file.to_str().unwrap(), "--frames", "70", "--seconds", "20"]);
    assert_eq!((&played["returned"]["frames"], &played["returned"]["bytes"]), (&70.into(), &4200.into()));
    assert!(played["returned"]["round_trip_ns"].is_null());

    // Frames on their way when a signal comes still come back.
    let sent = || {
        let ports = driver.pd(&["port", "ls", "--json"]).stdout;
        let ports: serde_json::Value = serde_json::from_slice(&ports).unwrap();
        ports.as_array().unwrap().iter().find(|port| port["name"] == "loop.0").unwrap()["frames_sent"]
            .as_u64()
    };
    let (before, end) = (sent(), Instant::now() + Duration::from_secs(20));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
    command.args(["gen", "loop.0", "--json", "--seconds", "60"]).env("PD_SOCKET", driver.socket());
    let running = command.stdout(Stdio::piped()).spawn().unwrap();
    while sent() == before {
        assert!(Instant::now() < end, "nothing is sent");
    }
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let run = running.wait_with_output().unwrap();
    let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&run["returned"]["frames"], &run["loss"]), (&run["frames_sent"], &0.0.into()), "{run}");
    drop(echo);

    let (done, out, said) = gen(&["hole", "--one-way", "--frames", "5000", "--seconds", "20"]);
    assert!(done && out.contains("5000 frames") && out.contains("lost       0.0000 %"), "{out}{said}");
    for (args, why) in [
        (&["nowhere"][..], "no port nowhere"),
        (&["hole"][..], "cannot open a pipe"),
        (&["loop.0", "--sizes", "20"][..], "58 to 9216"),
        (&["loop.0", "--rate", "fast"][..], "no rate"),
        (&["loop.0", "--seconds=-1"][..], "--seconds"),
        (&["loop.0", "--pcap", "/nonexistent"][..], "/nonexistent"),
    ] {
        let (done, _, said) = gen(args);
        assert!(!done && said.contains(why), "{args:?}: {said}");
    }
}

#[test]
fn a_dump_has_the_frames_of_a_port_and_holds_none_back() {
    let mut driver = Driver::start();
    driver.done(&["port", "add", "loop", "link"]);
    let _echo = Echo::start(&driver, "loop.1");
    driver.refused(&["pipe", "dump", "nowhere"], "no port nowhere");
    driver.refused(&["pipe", "dump", "--pipe", "9:9"], "no pipe 9:9");
    driver.refused(&["pipe", "dump", "--pipe", "9"], "CLIENT:PIPE");
    driver.refused(&["pipe", "dump"], "required");

    let file = driver.folder.path().join("dump.pcapng");
    let admin = driver.folder.path().join("admin.sock");
    let mut dump = Command::new(env!("CARGO_BIN_EXE_pd"));
    dump.args(["pipe", "dump", "loop.0", "--count", "1000", "--snap", "70", "--out"]).arg(&file);
    let mut dump = Running(dump.arg("--admin-socket").arg(&admin).spawn().unwrap());
    // A tap without a reader: its ring fills, and no frame waits for it.
    let of = pd_driver::admin::TapOf::Port { name: "loop.1".to_owned() };
    let unread = pd_driver::admin::tap(&admin, of, 9000).unwrap();
    let taps = || driver.json(&["pipe", "ls", "--json"])["taps"].as_array().unwrap().clone();
    let end = Instant::now() + Duration::from_secs(20);
    while taps().len() < 2 {
        assert!(Instant::now() < end, "{:?}", taps());
    }
    let gen = |frames: &str| {
        let args = ["gen", "loop.0", "--sizes", "64,1500", "--frames", frames, "--seconds", "20", "--json"];
        let output = Command::new(env!("CARGO_BIN_EXE_pd"))
            .args(args)
            .env("PD_SOCKET", driver.socket())
            .output()
            .unwrap();
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["loss"], 0.0, "{run}");
    };
    gen("500");
    assert!(dump.0.wait().unwrap().success());
    gen("4000");
    let lost = taps().iter().find(|tap| tap["of"]["port"]["name"] == "loop.1").unwrap().clone();
    assert!(lost["frames_lost"].as_u64() > Some(0), "{lost}");
    drop(unread);
    let end = Instant::now() + Duration::from_secs(20);
    while !taps().is_empty() {
        assert!(Instant::now() < end, "{:?}", taps());
    }

    // A driver that is killed ends the dumps that it has.
    let mut dump = Command::new(env!("CARGO_BIN_EXE_pd"));
    dump.args(["pipe", "dump", "loop.0", "--out", "/dev/null", "--admin-socket"]).arg(&admin);
    let mut dump = Running(dump.stderr(Stdio::piped()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    while driver.json(&["pipe", "ls", "--json"])["taps"].as_array().unwrap().is_empty() {
        assert!(Instant::now() < end, "no tap");
    }
    driver.child.kill().unwrap();
    driver.child.wait().unwrap();
    let mut said = String::new();
    dump.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(dump.0.wait().unwrap().success() && said.contains("the driver has ended"), "{said}");

    let bytes = std::fs::read(&file).unwrap();
    let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
    let (mut there, mut back) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        if let pcap_file::pcapng::Block::EnhancedPacket(packet) = block.unwrap() {
            let out = packet.options.iter().any(|option| {
                matches!(option, pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption::Flags(2))
            });
            assert_eq!(packet.data.len(), (packet.original_len as usize).min(70));
            // The number of its stamp.
            let number = u32::from_be_bytes(packet.data[46..50].try_into().unwrap());
            if out { &mut there } else { &mut back }.push(number);
        }
    }
    let all: Vec<u32> = (0..500).collect();
    assert!(there == all && back == all, "{} and {} frames", there.len(), back.len());
    match Command::new("tcpdump").arg("-nr").arg(&file).output() {
        Ok(read) => {
            let text = String::from_utf8_lossy(&read.stdout).into_owned();
            let lines = text.lines().filter(|line| line.contains("198.18.0.1.1024 > 198.18.0.2.9"));
            assert_eq!(lines.count(), 1000, "{}", String::from_utf8_lossy(&read.stderr));
        }
        Err(_) => eprintln!("SKIPPED: no tcpdump to read the capture with"),
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let driver = Driver::start();
    driver.done(&["port", "add", "out", "sink"]);
    let admin = driver.folder.path().join("admin.sock");
    let run = |args: &[&str], out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        command.args(args).arg("--admin-socket").arg(&admin).stdout(out).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let lists: [&[&str]; 3] = [&["port", "ls"], &["pipe", "ls", "--json"], &["pipe", "dump", "out"]];
    for args in lists {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = run(args, full.into()).wait_with_output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && why.contains("No space left"), "{args:?}: {why}");
        assert!(!why.contains("panicked"), "{args:?}: {why}");
    }
    // The reader of a capture goes while nothing comes.
    let mut dump = run(&["pipe", "dump", "out"], Stdio::piped());
    let mut out = dump.stdout.take().unwrap();
    out.read_exact(&mut [0; 28]).unwrap();
    drop(out);
    assert!(dump.wait().unwrap().success());
}

#[test]
fn a_socket_of_memif_takes_the_place_of_no_file() {
    let driver = Driver::start();
    let file = driver.folder.path().join("precious");
    std::fs::write(&file, "all that there is").unwrap();
    let socket = file.to_str().unwrap();
    driver.refused(&["port", "add", "in", "memif", "--socket", socket], "Address already in use");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "all that there is");
    // A socket of a port that was removed is another matter.
    std::fs::remove_file(&file).unwrap();
    for _ in 0..2 {
        driver.done(&["port", "add", "in", "memif", "--socket", socket]);
        driver.done(&["port", "rm", "in"]);
    }
}

#[test]
fn a_container_has_the_pipes_that_the_policy_gives_its_tenant() {
    const POLICY: &str = "[[tenant]]\nname = \"red\"\n[[tenant]]\nname = \"blue\"\n\
        [[bind]]\ntenant = \"red\"\nport = \"loop.0\"\n[[bind]]\ntenant = \"default\"\nport = \"loop.1\"\n";
    let driver = Driver::with(POLICY);
    let run = |tenant: &str, port: &str, command: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_pd"));
        run.args(["run", "--bridge", "pdt117", "--name", "t117-gen", "--ip", "10.97.117.2/24"]);
        run.args(["--tenant", tenant, "--pipe", port, "--socket"]).arg(driver.socket());
        let output = run.arg("--").args(command).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let (code, _, said) = run("red", "loop.0", &["true"]);
    assert!(code == 125 && said.contains("no ports"), "{said}");
    driver.done(&["port", "add", "loop", "link"]);
    let _echo = Echo::start(&driver, "loop.1");
    let pd = env!("CARGO_BIN_EXE_pd");
    let (code, out, said) =
        run("red", "loop.0", &[pd, "gen", "--frames", "5000", "--seconds", "20", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(
        (code, &report["returned"]["frames"], &report["loss"]),
        (0, &5000.into(), &0.0.into()),
        "{out}"
    );
    let (code, out, _) = run("red", "loop.0", &["sh", "-c", "echo $PD_PIPES"]);
    assert_eq!((code, &*out), (0, "loop.0\n"));
    for (tenant, port) in [("blue", "loop.0"), ("red", "loop.1"), ("red", "nowhere")] {
        let (code, _, said) = run(tenant, port, &["true"]);
        let why = format!("tenant {tenant} may have no pipe on port {port}: no [[bind]]");
        assert!(code == 125 && said.contains(&why), "{said}");
    }
    driver.done(&["port", "rm", "loop"]);
    let (code, _, said) = run("red", "loop.0", &["true"]);
    assert!(code == 125 && said.contains("no port loop.0"), "{said}");
    let mut none = Command::new(pd);
    none.args([
        "run",
        "--bridge",
        "pdt117",
        "--name",
        "t117-none",
        "--no-driver",
        "--pipe",
        "loop.0",
        "--",
        "true",
    ]);
    let said = String::from_utf8(none.output().unwrap().stderr).unwrap();
    assert!(said.contains("--no-driver"), "{said}");
}
