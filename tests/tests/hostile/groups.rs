//! Control groups as a hint of whose a connection on the kernel is, of a tenant that may make such groups, and network namespaces.
use pd_driver::admin::{Answer, Ask};
use pd_driver::mounts::unified_hierarchy;
use pd_tests::talker::{connect, tenant, Scene, Way};
use pd_tests::{ip, ControlGroup, Puppet};
use rustix::net::{self, AddressFamily, SocketType};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SERVER: &str = "10.77.0.1";

/// A driver, a server of the tenant red in namespace a, and the group of the tenant jailed. Namespace b is nobody's.
struct Stage {
    scene: Scene,
    group: ControlGroup,
    _server: Puppet,
}

impl Stage {
    /// Makes one. `None`: no hierarchy of control groups can be written.
    fn new(port: u16) -> Option<Self> {
        Self::of(&["a", "b"], port)
    }

    /// As [`Self::new`], with a namespace of each letter.
    fn of(letters: &'static [&'static str], port: u16) -> Option<Self> {
        let scene = Scene::of(letters);
        let containers = unified_hierarchy()?.join("pipedevice");
        let _ = std::fs::create_dir(&containers);
        let group = ControlGroup::new(containers.join(scene.network.namespace("c")))?;
        let mut server = scene.start("a", Way::Static);
        server.ok(&format!("listen {port}"));
        Some(Self { scene, group, _server: server })
    }

    /// Puts rules in force. Returns the number of connections that ended on the kernel.
    fn apply(&self, rules: &str) -> u64 {
        let path = format!("/pipedevice/{}", self.scene.network.namespace("c"));
        let jailed = format!("[[tenant]]\nname = \"jailed\"\ncgroups = [{path:?}]\n");
        let text = jailed + &tenant(&self.scene.network, "red", &["a"], "") + "\n" + rules;
        match self.scene.driver.tell(&Ask::Apply { text }) {
            Answer::Applied { cut_on_kernel, not_on_kernel: None, .. } => cut_on_kernel,
            other => panic!("{other:?}"),
        }
    }

    /// Denies the tenant jailed everything of red.
    fn deny(&self) -> u64 {
        self.apply("[[rule]]\nfrom = \"jailed\"\nto = \"red\"\naction = \"deny\"")
    }

    /// Starts a program in namespace b and in a control group.
    fn start(&self, group: &Path) -> Puppet {
        self.start_in("b", group)
    }

    /// Starts a program in the namespace of this letter and in a control group.
    fn start_in(&self, letter: &str, group: &Path) -> Puppet {
        let puppet = self.scene.start(letter, Way::Plain);
        enter(group, puppet.pid());
        puppet
    }
}

fn enter(group: &Path, pid: u32) {
    std::fs::write(group.join("cgroup.procs"), pid.to_string()).expect("a group");
}

fn skipped() {
    println!("SKIPPED: no cgroup2 that can be written");
}

/// The kernel knows a socket by the group in which it was made, which its process can leave and remove.
#[test]
fn a_connection_whose_group_is_gone_ends_when_it_is_denied() {
    let Some(stage) = Stage::new(7401) else { return skipped() };
    // A client makes the namespace that of its own tenant.
    let mut known = stage.scene.start("b", Way::Native);
    known.ok("listen l 10.77.0.2:7400 8");
    let below = ControlGroup::new(stage.group.path().join("below")).expect("a group");
    let (mut hidden, mut other) = (stage.start(below.path()), stage.scene.start("b", Way::Plain));
    stage.apply("");
    for client in [&mut hidden, &mut other] {
        assert_eq!(connect(client, Way::Plain, 1, SERVER, 7401), 0);
    }
    enter(stage.group.path(), hidden.pid());
    drop(below);
    assert_eq!(stage.deny(), 1);
    let errno: i32 = hidden.ok("end 1").parse().unwrap();
    assert!([libc::ECONNABORTED, libc::ECONNRESET].contains(&errno), "{errno}");
    assert_eq!(other.ask("end 1").unwrap_err().0, libc::ETIMEDOUT, "nobody has denied it");
    drop((hidden, other, known));
}

/// A process of the group in a network namespace of its own stands before the one that is connected.
#[test]
fn a_connection_ends_whatever_namespaces_others_of_its_group_have() {
    let Some(stage) = Stage::new(7402) else { return skipped() };
    let mut apart = Command::new("unshare");
    apart.args(["--net", "sleep", "100"]).stdin(Stdio::null());
    let mut apart = apart.spawn().expect("unshare");
    while std::fs::read_link(format!("/proc/{}/ns/net", apart.id())).ok()
        == std::fs::read_link("/proc/self/ns/net").ok()
    {
        std::thread::yield_now();
    }
    enter(stage.group.path(), apart.id());
    let mut hidden = stage.start(stage.group.path());
    stage.apply("");
    assert_eq!(connect(&mut hidden, Way::Plain, 1, SERVER, 7402), 0);
    let ended = stage.deny();
    let said = hidden.ask("end 1");
    apart.kill().expect("a child");
    apart.wait().expect("a child");
    let errno: i32 = said.expect("it has ended").parse().unwrap();
    assert!([libc::ECONNABORTED, libc::ECONNRESET].contains(&errno), "{errno}");
    assert_eq!(ended, 1);
    drop(hidden);
}

/// The first thread of a process is in another namespace than the one that listens.
#[test]
fn a_namespace_that_only_a_thread_is_in_is_its_groups() {
    let Some(stage) = Stage::of(&["a", "b", "c"], 7404) else { return skipped() };
    let [home, apart] = ["b", "c"].map(|letter| stage.scene.network.namespace(letter));
    let mut hidden = stage.start_in("c", stage.group.path());
    // A thread of its own accepts.
    hidden.ok("listen 7405");
    assert_eq!(connect(&mut hidden, Way::Plain, 1, SERVER, 7404), 0);
    hidden.ok(&format!("enter /run/netns/{home}"));
    assert!(ip(&format!("netns del {apart}")));
    stage.apply("");
    let mut red = stage.scene.start("a", Way::Static);
    assert_eq!(connect(&mut red, Way::Static, 1, "10.77.0.3", 7405), 0);
    assert_eq!(stage.deny(), 1);
    let errno: i32 = hidden.ok("end 1").parse().unwrap();
    assert!([libc::ECONNABORTED, libc::ECONNRESET].contains(&errno), "{errno}");
    stage.apply("[[rule]]\nfrom = \"red\"\nto = \"jailed\"\naction = \"deny\"");
    assert_eq!(connect(&mut red, Way::Static, 2, "10.77.0.3", 7405), libc::EACCES);
    drop((hidden, red));
}

/// Returns a socket in the namespace of this name, from a thread that has ended since.
fn socket_in(namespace: &str) -> OwnedFd {
    let file = File::open(Path::new("/run/netns").join(namespace)).expect("a namespace");
    let make = move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
        net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket")
    };
    std::thread::spawn(make).join().expect("no panic")
}

/// Connects a socket from a process of a control group. Returns the errno, or 0.
fn connect_from(group: &Path, socket: &OwnedFd, to: SocketAddr) -> i32 {
    let (file, socket) = (group.join("cgroup.procs"), socket.try_clone().expect("a descriptor"));
    let mut command = Command::new("true");
    let enter_and_connect = move || {
        std::fs::write(&file, "0")?;
        Ok(net::connect(&socket, &to)?)
    };
    // SAFETY: the closure makes system calls, and allocates at most a path, which the C library allows after a fork.
    unsafe { command.pre_exec(enter_and_connect) };
    match command.spawn() {
        Ok(mut child) => {
            child.wait().expect("a child");
            0
        }
        Err(error) => error.raw_os_error().expect("an errno"),
    }
}

/// No process is in the namespace, no file stands for it, and the driver has never seen it.
#[test]
fn a_group_is_denied_in_a_namespace_that_only_a_socket_holds() {
    let Some(stage) = Stage::of(&["a", "b", "c"], 7403) else { return skipped() };
    let namespace = stage.scene.network.namespace("c");
    let [allowed, denied] = [(); 2].map(|()| socket_in(&namespace));
    assert!(ip(&format!("netns del {namespace}")));
    let to = format!("{SERVER}:7403").parse().expect("an address");
    stage.apply("");
    assert_eq!(connect_from(stage.group.path(), &allowed, to), 0);
    stage.deny();
    assert_eq!(connect_from(stage.group.path(), &denied, to), libc::EACCES);
}
