//! Memory that its clients take away: killed for want of memory, or by truncating and punching what they have shared, of each kind.
use super::{stage, stage_for_anyone};
use pd_abi::pipe::{PipeDirection, PipeRequest, PipeUnit};
use pd_abi::{Frame, FrameKind};
use pd_driver::admin::{Ask, PortSpec};
use pd_shm::{Own, Region};
use pd_tests::{needs_root, program_path, ControlGroup, Raw};
use rustix::fs::{fallocate, fcntl_get_seals, ftruncate, FallocateFlags};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes a control group with little memory.
fn small_group(bytes: u64) -> Option<ControlGroup> {
    let name = format!("pd-test-small-{}", std::process::id());
    let places = [
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup/unified", "memory.max"),
        ("/sys/fs/cgroup", "memory.max"),
    ];
    places.into_iter().find_map(|(root, limit)| {
        let group = ControlGroup::new(Path::new(root).join(&name))?;
        group.path().join(limit).exists().then_some(())?;
        group.set(limit, bytes).ok().map(|()| group)
    })
}

#[test]
fn clients_killed_for_want_of_memory_take_nothing_along() {
    needs_root("control groups");
    const BYTES: u64 = 12 << 20;
    const CLIENTS: u64 = 10;
    let Some(group) = small_group(BYTES) else {
        println!("SKIPPED: no control groups that bound memory");
        return;
    };
    let scene = stage_for_anyone();
    let before = scene.driver.metrics().clients_left;
    for number in 0..CLIENTS {
        // Regions and rings that the driver makes are the driver's; what the client makes of its own memory is the group's.
        let mut command = Command::new("sh");
        let script = "echo $$ >\"$1/cgroup.procs\"; shift; exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(group.path()).arg(program_path("attacker"));
        command.arg(scene.driver.socket()).args(["bloats", &(2 + number % 5).to_string()]);
        let mut client = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("sh");
        let ended = client.wait().expect("a child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGKILL), "{ended:?}");
        scene.bystander.check(&scene.driver);
    }
    assert_eq!(scene.driver.metrics().clients_left, before + CLIENTS);
    drop(group);
    scene.end();
}

/// Rings of pipes of packets, beside the regions of [`super::regions`] and the rings of [`super::direct`].
#[test]
fn memory_of_pipes_cannot_be_taken_away() {
    let scene = stage();
    scene.driver.tell(&Ask::PortAdd { name: "drain".to_owned(), port: PortSpec::Sink });
    let mut raw = Raw::attach(&scene.driver, 1);
    for direction in [PipeDirection::Send, PipeDirection::Receive] {
        let request = PipeRequest::new(direction, PipeUnit::Frames, "drain").expect("a short name");
        let wish = Frame::new(FrameKind::Pipe).with_bytes(64 << 10, 0).with_pipe_request(&request);
        let Ok((frame, fds)) = raw.ask(&wish, FrameKind::Pipe) else {
            assert_eq!(direction, PipeDirection::Receive, "nothing comes out of a drain");
            continue;
        };
        let memory: Vec<_> = fds.iter().filter(|fd| fcntl_get_seals(fd).is_ok()).collect();
        assert!(!memory.is_empty());
        let maps: Vec<_> =
            memory.iter().filter_map(|fd| Region::<Own>::new(fd, size(fd) as usize).ok()).collect();
        for fd in &memory {
            let size = size(fd);
            assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 2 * size).is_err(), "{direction:?}");
            // As long as it is not sealed its pages may go: the driver makes them again, or cuts the client off.
            let _ = fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size);
        }
        let ready = raw.ask(&Frame::new(FrameKind::PipeMapped).with_id(frame.id), FrameKind::Ready);
        if ready.is_ok() {
            for fd in &memory {
                let size = size(fd);
                let punched = fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size);
                assert!(ftruncate(fd, 0).is_err() && punched.is_err(), "{direction:?}");
            }
        }
        scene.bystander.check(&scene.driver);
        drop(maps);
    }
    drop(raw);
    scene.driver.tell(&Ask::PortRemove { name: "drain".to_owned() });
    // Threads of ports stay with the driver, and their descriptors.
    scene.bystander.check(&scene.driver);
    scene.driver.wait_for("only the bystanders are left", |report| report.clients.len() == 2);
    scene.bystander.finish();
    assert!(scene.driver.is_running());
}

fn size(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).expect("own descriptor").st_size as u64
}
