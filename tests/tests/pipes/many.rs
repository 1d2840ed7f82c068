//! As many pipes as a tenant may have.
use super::*;
use pd_tests::own_files;

const EACH: u16 = 240;

fn flow(port: u16) -> Flow {
    Flow { protocol: 17, ports: [0, port], ..Flow::default() }
}

/// Makes a frame of UDP.
fn frame(port: u16, round: u8) -> [u8; 64] {
    let mut frame = [round; 64];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[20..22].fill(0);
    frame[23] = 17;
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

/// Opens a client's pipes, each with a flow of its own.
fn open(stand: &Stand, first: u16) -> (Raw, Vec<pd_pipe::Pipe>) {
    let mut raw = Raw::attach(&stand.driver, 1);
    let pipes = (first..first + EACH).map(|port| {
        let options =
            Options { ring_bytes: 32 << 10, flow: flow(port), ..Options::new(Direction::Receive, "wire.1") };
        let (number, offer) = ask_for(&mut raw, &options).unwrap();
        let pipe = pd_pipe::Pipe::map(offer).unwrap();
        tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
        pipe
    });
    let pipes = pipes.collect();
    (raw, pipes)
}

#[test]
fn many_pipes_have_their_flows_while_half_of_them_die_and_leave_nothing() {
    let stand = Stand::new(&[("wire", PortSpec::Link)]);
    let (files, memory) = (own_files().len(), stand.driver.report().memory_used_bytes);
    {
        let mut sender = stand.open(&Options::new(Direction::Send, "wire.0")).unwrap();
        let (_stays, mut pipes) = open(&stand, 1);
        let other = open(&stand, 1 + EACH);
        let mut rounds = 0..;
        let mut exchange = |pipes: &mut Vec<pd_pipe::Pipe>| {
            let round = rounds.next().unwrap();
            for port in 1..=EACH {
                sender.pipe.send(&frame(port, round), 0).unwrap();
                sender.pipe.flush();
            }
            for (port, pipe) in (1..).zip(pipes) {
                pipe.wait(PATIENCE).unwrap();
                let mut frames = pipe.frames().unwrap();
                assert_eq!(frames.next().unwrap().bytes(), frame(port, round), "pipe {port}");
                assert!(frames.next().is_none());
            }
        };
        exchange(&mut pipes);
        drop(other);
        exchange(&mut pipes);
        stand.wait_for("half of the pipes are gone", |report| report.pipes.len() == 1 + usize::from(EACH));
        exchange(&mut pipes);
        // Their flows are free again.
        drop(open(&stand, 1 + EACH));
        exchange(&mut pipes);
        assert_eq!(stand.port("wire.1").frames_unbound, 0);
    }
    stand.settle(0, memory);
    stand.driver.wait_for("descriptors are closed", |_| own_files().len() <= files);
}
