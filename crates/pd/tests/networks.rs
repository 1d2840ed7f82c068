//! `pd run --network`: networks of the policy, each with addresses and a bridge of its own.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Two networks with the same range, of which blue sees red's under other addresses, and red blue's.
const POLICY: &str = r#"
    [[network]]
    name = "red"
    range = "10.0.0.0/24"
    [[network]]
    name = "blue"
    range = ["10.0.0.0/24", "10.0.1.0/30"]
    [[network]]
    name = "bare"
    tenants = ["default"]
    [[map]]
    from = "blue"
    prefix = "10.9.0.0/24"
    to = "red"
    at = "10.0.0.0/24"
    [[map]]
    from = "red"
    prefix = "10.8.0.0/24"
    to = "blue"
    at = "10.0.0.0/24"
"#;

/// A driver with [`POLICY`], and containers with names of its own.
struct Stage {
    folder: tempfile::TempDir,
    driver: Child,
}

fn pd(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pd")).args(words).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("policy.toml"), POLICY).unwrap();
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\npolicy = {:?}\n[memory]\nbudget_bytes = \"64MiB\"\nring_bytes_default = \"1MiB\"\n",
            at("driver.sock"),
            at("admin.sock"),
            at("policy.toml")
        );
        fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        let command = command.args(["driver", "--config", &at("driver.toml")]);
        let driver =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !Path::new(&at("admin.sock")).exists() {
            assert!(Instant::now() < end, "the driver never begins");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { folder, driver }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn name(&self, of: &str) -> String {
        format!("t{}-{of}", self.driver.id())
    }

    /// Runs a container in a network. The command goes on in the background.
    fn run(&self, name: &str, network: &str, more: &[&str], command: &[&str]) -> Output {
        let (name, socket) = (self.name(name), self.at("driver.sock"));
        let words = ["run", "-d", "--name", &name, "--network", network, "--socket", &socket];
        pd(&[&words[..], more, &["--"], command].concat())
    }

    fn exec(&self, name: &str, command: &str) -> String {
        let output = pd(&["exec", &self.name(name), "--", "sh", "-c", command]);
        said(&output).trim().to_owned()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for network in ["red", "blue"] {
            pd(&["stop", "--time", "0", "--network", network, "--admin-socket", &self.at("admin.sock")]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// A server that sends its container's name and the client's address to each client.
const SERVER: &str = "import socket,os\ns=socket.socket()\ns.setsockopt(1,2,1)\ns.bind(('0.0.0.0',7500))\ns.listen(64)\n\
                      while 1:\n c,a=s.accept()\n c.sendall((os.environ['PD_CONTAINER'][-3:]+' '+a[0]).encode())\n c.close()\n";

fn client(address: &str) -> String {
    format!(
        "python3 -c \"import socket\ntry:\n s=socket.create_connection(('{address}',7500),3)\n print(s.recv(99).decode(),s.getpeername()[0])\n\
         except OSError as e:\n print('errno',e.errno)\""
    )
}

#[test]
fn two_networks_of_one_range_run_beside_each_other() {
    assert!(rustix::process::geteuid().is_root(), "containers need root");
    let stage = Stage::new();
    for (network, modes) in [("red", ["", "--preload"]), ("blue", ["", "--preload"])] {
        for (index, mode) in modes.into_iter().enumerate() {
            let name = format!("{}{}", &network[..2], index + 1);
            let more: &[&str] = if mode.is_empty() { &[] } else { &[mode] };
            let output = stage.run(&name, network, more, &["python3", "-c", SERVER]);
            assert!(output.status.success(), "{}", said(&output));
        }
    }
    // The first address of the range is a container's.
    for name in ["re1", "bl1"] {
        assert_eq!(stage.exec(name, "echo $PD_ADDRESS"), "10.0.0.1");
    }
    // Each reaches its own network's: without the library, with it in each mode, by address and by name.
    for (from, peer) in [("re1", "re2"), ("bl1", "bl2"), ("re2", "re1"), ("bl2", "bl1")] {
        let address = if peer.ends_with('1') { "10.0.0.1" } else { "10.0.0.2" };
        let own = if peer.ends_with('1') { "10.0.0.2" } else { "10.0.0.1" };
        let end = Instant::now() + Duration::from_secs(20);
        while stage.exec(from, &client(address)).contains("errno") {
            assert!(Instant::now() < end, "{peer} never listens");
        }
        for mode in ["", "PD_PRELOAD=all", "PD_PRELOAD=short"] {
            let heard = stage.exec(from, &format!("{mode} {}", client(address)));
            assert_eq!(heard, format!("{peer} {own} {address}"), "{mode}");
        }
        let heard = stage.exec(from, &client(&stage.name(peer)));
        assert_eq!(heard, format!("{peer} {own} {address}"), "by name");
    }
    // Names of other networks lead to mapped addresses, which only the fabric carries: with the library, in each mode.
    let hosts = stage.exec("bl1", "cat /etc/hosts");
    for line in [format!("10.0.0.2\t{}", stage.name("bl2")), format!("10.9.0.2\t{}", stage.name("re2"))] {
        assert!(hosts.lines().any(|own| own == line), "{line} in {hosts}");
    }
    assert!(!hosts.contains(&format!("10.0.0.1\t{}", stage.name("re1"))), "{hosts}");
    let heard = stage.exec("bl1", &client("10.9.0.2"));
    assert!(["errno 113", "errno 101"].contains(&&*heard), "{heard}");
    for mode in ["", "PD_PRELOAD=all", "PD_PRELOAD=short"] {
        for address in ["10.9.0.2", &stage.name("re2")] {
            let heard = stage.exec("bl2", &format!("{mode} {}", client(address)));
            assert_eq!(heard, "re2 10.8.0.2 10.9.0.2", "{mode} to {address}");
        }
    }
    // A policy without maps takes the names away.
    let text = POLICY.split("[[map]]").next().unwrap();
    fs::write(stage.at("policy.toml"), text).unwrap();
    let applied = pd(&["policy", "apply", "--admin-socket", &stage.at("admin.sock")]);
    assert!(applied.status.success(), "{}", said(&applied));
    let hosts = stage.exec("bl1", "cat /etc/hosts");
    assert!(!hosts.contains("10.9.0") && hosts.contains("10.0.0.2"), "{hosts}");
    // View of administrators.
    let listed = said(&pd(&["ls", "--admin-socket", &stage.at("admin.sock")]));
    let line = listed.lines().find(|line| line.contains(&stage.name("bl2"))).unwrap();
    assert!(line.contains("blue") && line.contains("10.0.0.2/24"), "{line}");
    let top = said(&pd(&["top", "--once", "--json", "--admin-socket", &stage.at("admin.sock")]));
    assert!(top.contains("\"network\": \"red\"") || top.contains("\"network\":\"red\""), "{top}");
    // All of a network end, and its bridge goes with the last.
    let bridge = line.split_whitespace().find(|word| word.starts_with("pdn")).unwrap().to_owned();
    assert!(Path::new("/sys/class/net").join(&bridge).exists());
    let stopped =
        pd(&["stop", "--time", "0", "--network", "blue", "--admin-socket", &stage.at("admin.sock")]);
    assert_eq!(said(&stopped).lines().count(), 2);
    assert!(!Path::new("/sys/class/net").join(&bridge).exists());
    assert!(!said(&pd(&["ls", "--admin-socket", &stage.at("admin.sock")])).contains(&stage.name("bl2")));
}

#[test]
fn what_cannot_be_is_named_with_a_remedy() {
    assert!(rustix::process::geteuid().is_root(), "containers need root");
    let stage = Stage::new();
    let refused = |network: &str, more: &[&str], words: &[&str]| {
        let output = stage.run("x", network, more, &["true"]);
        assert_eq!(output.status.code(), Some(125));
        for word in words {
            assert!(said(&output).contains(word), "{word} is missing in {}", said(&output));
        }
    };
    refused("green", &[], &["no network 'green'", "add [[network]]", "red, blue"]);
    refused("bare", &[], &["network bare has no range", "range = "]);
    refused(
        "red",
        &["--ip", "10.0.7.1"],
        &["10.0.7.1", "no range of network red (10.0.0.0/24)", "leave --ip out"],
    );
    refused("red", &["--ip", "10.0.0.255"], &["10.0.0.255", "broadcast"]);
    let both = pd(&["run", "--name", "x", "--network", "red", "--bridge", "b", "--", "true"]);
    assert!(said(&both).contains("cannot be used with"), "{}", said(&both));
    // A second range, when the first is full; and one address twice.
    let sleep = ["sleep", "60"];
    assert!(stage.run("y", "blue", &["--ip", "10.0.1.2"], &sleep).status.success());
    let again = stage.run("z", "blue", &["--ip", "10.0.1.2"], &sleep);
    assert!(said(&again).contains("is taken by container"), "{}", said(&again));
    assert!(stage.exec("y", "ip route").contains("10.0.0.0/24 dev eth0"));
}
