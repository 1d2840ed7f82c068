//! Descriptors in flight. The kernel counts them for the user that sends them, and looks among them for sockets that only wait in each other.
//! A send of a socket waits for that, where its user has many in flight.
use super::frames::{ask_deafly, read_answers};
use super::stage;
use pd_abi::{Frame, FrameKind};
use pd_tests::{needs_root, program_path, Raw};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const ASKED: usize = 200;

/// Returns the path of the thread of this process that has this name.
fn thread(name: &str) -> std::path::PathBuf {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let is_it = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    tasks.map(|task| task.path()).find(is_it).expect("a thread of this name")
}

/// The attacker has the driver's user: a container's root without a user namespace.
#[test]
fn the_door_does_not_wait_while_sockets_in_flight_are_looked_at() {
    needs_root("the driver's user");
    let scene = stage();
    // The driver does not look for sockets where there are so many: other tests have connections here.
    let mut command = Command::new("unshare");
    command.arg("--net").arg(program_path("attacker"));
    command.arg(scene.driver.socket()).args(["collects", "4000", "0"]);
    let mut attacker = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(attacker.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "collects\n");
    let calls = thread("pd-door").join("syscall");
    let waits_in_send = format!("{} ", libc::SYS_sendmsg);
    let (is_over, mut waited) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let asks = || {
            let mut raw = Raw::attach(&scene.driver, 1);
            let wish = Frame::new(FrameKind::WakePipe).with_id(0);
            (0..ASKED).for_each(|_| drop(raw.ask(&wish, FrameKind::WakePipe).unwrap()));
            is_over.store(true, Ordering::SeqCst);
        };
        let asking = scope.spawn(asks);
        // The kernel names the call of a thread that sleeps in it.
        while !is_over.load(Ordering::SeqCst) && !asking.is_finished() {
            let call = std::fs::read_to_string(&calls).unwrap();
            waited += usize::from(call.starts_with(&waits_in_send));
        }
        asking.join().unwrap();
    });
    assert_eq!(waited, 0, "the door has waited for the kernel in a send");
    scene.bystander.check(&scene.driver);
    drop(attacker.stdin.take());
    assert!(attacker.wait().unwrap().success());
    drop(attacker);
    scene.end();
}

/// Returns the number of descriptors that wait to be received on a socket.
fn descriptors_unread(socket: &OwnedFd) -> usize {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_raw_fd())).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("scm_fds:")).expect("a socket of AF_UNIX");
    line.trim().parse().unwrap()
}

/// Descriptors that a client leaves unread are the kernel's memory, and count for the driver's user.
#[test]
fn a_client_leaves_few_descriptors_unread() {
    const UNREAD_MAX: usize = 64;
    let scene = stage();
    let raw = Raw::attach(&scene.driver, 1);
    let asked = ask_deafly(&raw, &Frame::new(FrameKind::WakePipe).with_id(0));
    let unread = descriptors_unread(&raw.socket);
    assert!((1..=UNREAD_MAX).contains(&unread), "{unread} of {asked} answers");
    scene.bystander.check(&scene.driver);
    // The client reads on, and all answers come.
    assert!(read_answers(&raw, asked).is_empty());
    drop(raw);
    scene.end();
}
