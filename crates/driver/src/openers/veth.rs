//! Opens an interface for a port: a socket of `AF_XDP` with its memory, and a program that redirects frames of some flows into it.
//!
//! The link that attaches the program is a descriptor, which the driver holds. The interface is as before when the driver
//! removes the port, ends or is killed.
use super::bpf::link_to_interface;
use aya::maps::Map;
use aya::programs::Xdp;
use aya::{include_bytes_aligned, EbpfLoader};
use pd_pipe::{XSK_FRAME_BYTES, XSK_MEMORY_BYTES, XSK_RING_ENTRIES};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{bind, socket_with, sockopt, AddressFamily, SocketFlags, SocketType};
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The program, compiled by `build.sh`.
static OBJECT: &[u8] = include_bytes_aligned!("steer.bpf.o");
const NAME: &str = "pd_steer";

/// Longest time for which the kernel keeps a queue after the last descriptor of its socket is closed: a work queue releases it.
const QUEUE_BUSY_FOR: Duration = Duration::from_secs(2);
/// Interval of attempts to bind meanwhile.
const BIND_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Opens the driver's descriptors: the socket, its memory, the two maps that the driver fills, and the link.
pub fn open(interface: &str) -> Result<Vec<OwnedFd>, String> {
    let wrong = |what: &str, why: &dyn Display| format!("interface {interface}: {what}: {why}");
    let index = {
        let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|why| wrong("a socket", &why))?;
        name_to_index(any, interface).map_err(|_| format!("there is no interface {interface}"))?
    };
    let socket = socket().map_err(|why| format!("interface {interface}: {why}"))?;
    let memory = give_memory(&socket).map_err(|why| wrong("memory of the socket", &why))?;
    // The kernel copies if the interface's driver cannot receive into the memory itself.
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, index, 0);
    bind_to_queue(&socket, &address).map_err(|errno| match errno {
        Errno::BUSY => wrong("its first queue", &"another socket of AF_XDP has it"),
        errno => wrong("its first queue", &errno),
    })?;
    let program = Program::load(&socket).map_err(|why| format!("interface {interface}: {why}"))?;
    let link = link_to_interface(&program.program, index).map_err(|errno| match errno {
        Errno::BUSY | Errno::EXIST => wrong("XDP", &"it has a program already: ip link show says which"),
        errno => wrong("attaching a program", &errno),
    })?;
    Ok(vec![socket, memory, program.which, program.flows, link])
}

fn bind_to_queue(socket: &OwnedFd, address: &SocketAddrXdp) -> rustix::io::Result<()> {
    let since = Instant::now();
    loop {
        match bind(socket, address) {
            Err(Errno::BUSY) if since.elapsed() < QUEUE_BUSY_FOR => std::thread::sleep(BIND_AGAIN_AFTER),
            bound => return bound,
        }
    }
}

fn socket() -> Result<OwnedFd, String> {
    let made = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    made.map_err(|errno| match errno {
        Errno::AFNOSUPPORT => {
            "this kernel has no sockets of AF_XDP: use one with CONFIG_XDP_SOCKETS".to_owned()
        }
        Errno::PERM => "a socket of AF_XDP takes CAP_NET_RAW: use root".to_owned(),
        errno => format!("a socket of AF_XDP: {errno}"),
    })
}

/// Gives the socket rings, and memory of a file that the driver maps, too.
fn give_memory(socket: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let memory = memfd::create("pd-xsk", XSK_MEMORY_BYTES, Pages::Ordinary)?;
    let mapped = Region::<Own>::new(&memory, XSK_MEMORY_BYTES)?;
    let umem = XdpUmemReg {
        addr: mapped.address(0, XSK_MEMORY_BYTES).as_ptr() as u64,
        len: XSK_MEMORY_BYTES as u64,
        chunk_size: XSK_FRAME_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    // The kernel keeps the pages while the socket exists, mapped or not.
    sockopt::set_xdp_umem_reg(socket, umem)?;
    sockopt::set_xdp_umem_fill_ring_size(socket, XSK_RING_ENTRIES)?;
    sockopt::set_xdp_umem_completion_ring_size(socket, XSK_RING_ENTRIES)?;
    sockopt::set_xdp_rx_ring_size(socket, XSK_RING_ENTRIES)?;
    sockopt::set_xdp_tx_ring_size(socket, XSK_RING_ENTRIES)?;
    Ok(memory)
}

struct Program {
    program: OwnedFd,
    which: OwnedFd,
    flows: OwnedFd,
}

impl Program {
    /// Loads the program, and puts the socket into its map.
    fn load(socket: &OwnedFd) -> Result<Self, String> {
        let mut loaded = EbpfLoader::new().load(OBJECT).map_err(|why| format!("loading a program: {why}"))?;
        let wrong = |what: &str, why: &dyn Display| format!("{what} of the program: {why}");
        let program: &mut Xdp = loaded
            .program_mut(NAME)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| wrong(NAME, &"missing"))?;
        program.load().map_err(|why| match why {
            aya::programs::ProgramError::LoadError { io_error, verifier_log } => {
                wrong(NAME, &format!("{io_error}: {verifier_log}"))
            }
            why => wrong(NAME, &why),
        })?;
        let fd = program.fd().map_err(|why| wrong(NAME, &why))?;
        let program = fd.as_fd().try_clone_to_owned().map_err(|why| wrong(NAME, &why))?;
        let map = |name: &str| {
            let data = match loaded.map(name) {
                Some(Map::Array(data) | Map::XskMap(data)) => data,
                _ => return Err(wrong(name, &"missing")),
            };
            data.fd().as_fd().try_clone_to_owned().map_err(|why| wrong(name, &why))
        };
        let sockets = map("sockets")?;
        let number = std::os::fd::AsRawFd::as_raw_fd(socket) as u32;
        crate::bpf::update(&sockets, &0u32, &number).map_err(|why| wrong("sockets", &why))?;
        Ok(Self { program, which: map("which")?, flows: map("flows")? })
    }
}

/// Tells whether an interface could be opened here.
pub fn check() -> Result<(), String> {
    socket().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipes::Steering;
    use pd_pipe::{Flow, Net, Steer};
    use proptest::prelude::*;
    use std::os::fd::AsRawFd;

    /// Runs the program over a frame in the kernel. Returns whether the frame goes to the socket.
    fn is_redirected(program: &OwnedFd, frame: &[u8]) -> bool {
        const TEST_RUN: i32 = 10;
        const REDIRECT: u64 = 4;
        // Program and result; length of the frame and of the output; their addresses; repetitions and duration.
        let first = program.as_raw_fd() as u64;
        let mut attr = [first, frame.len() as u64, frame.as_ptr() as u64, 0, 1, 0, 0, 0];
        // SAFETY: the kernel reads the frame, and writes into `attr`, which both live through the call.
        let result = unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, attr.as_mut_ptr(), size_of_val(&attr)) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        attr[0] >> 32 == REDIRECT
    }

    fn net() -> impl Strategy<Value = Net> {
        (0..=32u8, any::<bool>()).prop_map(|(prefix, near)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            let address = if near { 0x0a01_0203u32 } else { 0x0a01_0283 };
            Net { address: (address & mask).to_be_bytes(), prefix }
        })
    }

    fn flow() -> impl Strategy<Value = Flow> {
        let words = (prop::sample::select(vec![0u8, 6, 17]), [net(), net()], [0..3u16, 0..3u16]);
        words.prop_map(|(protocol, addresses, ports)| {
            let ports = if protocol == 0 { [0; 2] } else { ports };
            Flow { protocol, addresses, ports }
        })
    }

    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let odd = prop::sample::select(vec![
            None,
            Some((12, 0x86)),
            Some((14, 0x46)),
            Some((21, 1)),
            Some((20, 0x20)),
            Some((14, 0x65)),
        ]);
        let words =
            (14..80usize, prop::sample::select(vec![6u8, 17, 1]), any::<[bool; 2]>(), [0..3u8, 0..3u8], odd);
        words.prop_map(|(len, protocol, near, ports, odd)| {
            let mut frame = vec![0u8; 80];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[23] = protocol;
            for (at, near) in [26, 30].into_iter().zip(near) {
                frame[at..at + 4].copy_from_slice(&[10, 1, 2, if near { 3 } else { 0x83 }]);
            }
            (frame[35], frame[37]) = (ports[0], ports[1]);
            if let Some((at, byte)) = odd {
                frame[at] = byte;
            }
            frame.truncate(len);
            frame
        })
    }

    /// Checks that the program redirects exactly the frames for which the agent finds a pipe.
    #[test]
    fn the_program_and_the_agent_agree_on_flows() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: a program of an interface takes root");
            return;
        }
        let socket = match socket() {
            Ok(socket) => socket,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let Program { program, which, flows } = Program::load(&socket).unwrap();
        let steering = std::cell::RefCell::new(Steering::new(which, flows, socket));
        let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
        let any = (prop::collection::vec(flow(), 0..6), prop::collection::vec(frame(), 1..20));
        proptest::test_runner::TestRunner::new(config)
            .run(&any, |(flows, frames)| {
                steering.borrow_mut().set(&flows);
                for frame in frames {
                    let expected = flows.iter().any(|flow| flow.matches(&frame));
                    prop_assert_eq!(is_redirected(&program, &frame), expected, "{:?} {:?}", &flows, &frame);
                }
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn the_object_is_the_source_compiled() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openers");
        let mut check = std::process::Command::new("sha256sum");
        let status =
            check.args(["--check", "--quiet", "steer.bpf.sha256"]).current_dir(folder).status().unwrap();
        assert!(status.success(), "run crates/driver/src/openers/build.sh");
    }
}
