//! Attaching, in real namespaces and with users other than root.
use pd_driver::admin::{Answer, Ask, KernelReport};
use pd_driver::mounts::unified_hierarchy;
use pd_tests::{needs_root, peer_path, program_path, ControlGroup, Network, Puppet, TestDriver};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Users that exist nowhere.
const A: u32 = 61_001;
const B: u32 = 61_002;

fn driver() -> TestDriver {
    let driver = TestDriver::new();
    std::fs::set_permissions(driver.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    driver
}

/// Starts a puppet of user `uid`, by `before`.
fn puppet(driver: &TestDriver, before: &[&str], uid: u32) -> Puppet {
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
    let words = before.iter().copied().chain(["setpriv", &ids[0], &ids[1], "--clear-groups"]);
    let words: Vec<&str> = words.collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(peer_path()).arg("puppet");
    Puppet::new(driver.spawn(&mut command))
}

/// Tells whether the puppet attaches, by a listener on loopback. Otherwise returns errno and message of the library.
fn attaches(puppet: &mut Puppet) -> Result<(), (i32, String)> {
    puppet.tell("listen l 127.0.0.1:0 8");
    puppet.answer().map(drop)
}

fn refused_for(puppet: &mut Puppet, word: &str) {
    let (errno, why) = attaches(puppet).expect_err("it is not let in");
    assert_eq!(errno, libc::EACCES, "{why}");
    assert!(why.contains(word), "{why}");
}

fn kernel(driver: &TestDriver) -> KernelReport {
    match driver.tell(&Ask::Kernel) {
        Answer::Kernel(report) => *report,
        other => panic!("no report but {other:?}"),
    }
}

#[test]
fn containers_of_any_user_are_let_in_and_the_hosts_users_are_not() {
    needs_root("processes of other users, and network namespaces");
    let driver = driver();
    let network = Network::new();
    let namespace = network.namespace("a");
    let inside = ["ip", "netns", "exec", &namespace];
    // Root of the host, anyone in a network namespace of root's.
    attaches(&mut puppet(&driver, &["env"], 0)).unwrap();
    attaches(&mut puppet(&driver, &inside, A)).unwrap();
    // A user of the host, there and in a network namespace of its own.
    refused_for(&mut puppet(&driver, &["env"], A), "[attach] allow");
    let own = ["setpriv", "--reuid=61002", "--regid=61002", "--clear-groups", "unshare", "-r", "-n"];
    let by_user = Command::new(own[0]).args(&own[1..]).arg("true").status().unwrap();
    let mut expected = vec![("host_process".to_owned(), 1)];
    if by_user.success() {
        let mut command = Command::new(own[0]);
        command.args(&own[1..]).arg(peer_path()).arg("puppet");
        refused_for(&mut Puppet::new(driver.spawn(&mut command)), "own network namespace");
        expected.push(("users_namespace".to_owned(), 1));
    } else {
        println!("SKIPPED: a user's own network namespace: the kernel lets users make none");
    }
    let report = driver.report();
    assert_eq!(report.attaches_refused_by_reason.into_iter().collect::<Vec<_>>(), expected);
    let listed = kernel(&driver).refused;
    let host = listed.iter().find(|one| one.uid == A).expect("it is listed");
    assert_eq!((host.reason.as_deref(), host.errno), (Some("host_process"), libc::EACCES));
}

#[test]
fn members_of_the_sockets_group_are_let_in() {
    needs_root("processes of other users");
    let driver = TestDriver::with("cpu", |settings| settings.socket_group = Some(61_010));
    std::fs::set_permissions(driver.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    refused_for(&mut puppet(&driver, &["env"], A), "[attach] allow");
    for group in [["--regid=61010", "--clear-groups"], ["--regid=61001", "--groups=61009,61010"]] {
        let mut command = Command::new("setpriv");
        command.arg("--reuid=61001").args(group).arg(peer_path()).arg("puppet");
        attaches(&mut Puppet::new(driver.spawn(&mut command))).unwrap();
    }
}

#[test]
fn a_policy_says_who_may_attach_and_a_new_one_turns_clients_out() {
    needs_root("processes of other users, and network namespaces");
    let driver = driver();
    let network = Network::new();
    let at = |letter: &str, uid| puppet(&driver, &["ip", "netns", "exec", &network.namespace(letter)], uid);
    driver.apply(&format!("[attach]\nallow = [{{ uid = {A}, namespace = \"host\" }}]"));
    attaches(&mut puppet(&driver, &["env"], A)).unwrap();
    refused_for(&mut puppet(&driver, &["env"], B), "[attach] allow");
    let (mut a, mut b, mut c) = (at("a", A), at("b", B), at("b", A));
    for puppet in [&mut a, &mut b, &mut c] {
        attaches(puppet).unwrap();
    }
    let to = b.ok("listen m 10.77.0.2:0 8");
    a.ok(&format!("connect x {to}"));
    b.ok("accept y m");
    let to = c.ok("listen n 10.77.0.2:0 8");
    a.ok(&format!("connect z {to}"));
    c.ok("accept w n");
    // Clients of one user are cut off, with their connections; the others' go on.
    let deny =
        format!("[[tenant]]\nname = \"red\"\n[attach]\ndeny = [{{ uid = {B} }}, {{ tenant = \"red\" }}]");
    assert_eq!(driver.apply(&deny), 1);
    let until = Instant::now() + Duration::from_secs(20);
    while driver.report().clients.iter().any(|client| client.uid == B) {
        assert!(Instant::now() < until, "it is turned out");
        std::thread::sleep(Duration::from_millis(5));
    }
    c.tell("send w 1 0 300000 50000");
    a.ok("recv z 1 0 300000");
    c.answer().unwrap();
    a.tell("recv x 1 0 1");
    let (errno, _) = a.answer().expect_err("the connection has ended");
    assert_eq!(errno, libc::ECONNRESET);
    refused_for(&mut at("b", B), "deny");
    let report = driver.policy();
    assert!(report.attach.contains(&format!("attach: deny uid {B}")), "{:?}", report.attach);
    assert!(report.attaches_refused_by_reason["denied"] >= 1);
    // And back.
    driver.apply("");
    attaches(&mut at("b", B)).unwrap();
}

#[test]
fn containers_of_other_engines_are_known_by_their_control_groups() {
    needs_root("processes of other users, and control groups");
    let id = format!("{:064x}", std::process::id());
    // As docker has systemd make it.
    let place = |root: PathBuf| root.join(format!("docker-{id}.scope"));
    let Some(group) = unified_hierarchy().and_then(|root| ControlGroup::new(place(root))) else {
        println!("SKIPPED: no cgroup2 that can be written");
        return;
    };
    let driver = driver();
    let enter = group.enter();
    // Of a user, and with the host's network, as with --network host.
    let mut inside = puppet(&driver, &["sh", "-c", &enter, "sh"], A);
    attaches(&mut inside).unwrap();
    // A process of the container on the kernel.
    let server =
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print('ready', flush=True); s.accept()";
    let mut plain = Command::new("sh");
    plain.args(["-c", &enter, "sh", "python3", "-c", server]);
    let mut plain = Puppet::new(driver.spawn(&mut plain));
    assert_eq!(plain.line(), "ready");
    let mut list = Command::new(program_path("pd"));
    list.args(["ls", "--all", "--json", "--admin-socket"]).arg(driver.admin_socket());
    let output = list.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = format!("docker:{}", &id[..12]);
    let client = &listed["driver"]["clients"][0];
    assert_eq!((&client["container"], &client["engine_container"]["id"]), (&name.clone().into(), &id.into()));
    let processes = listed["kernel"]["processes"].as_array().unwrap().iter();
    let found = processes.filter(|process| process["pid"] == plain.pid()).collect::<Vec<_>>();
    assert_eq!(found.len(), 1, "{listed:#}");
    assert_eq!((&found[0]["container"], &found[0]["tenant"]), (&name.into(), &"default".into()));
    assert!(found[0]["reason"].as_str().unwrap().contains("LD_PRELOAD does not name it"), "{found:?}");
    drop((inside, plain));
}
