//! A client that says where it listens, true or not, as a process of its own and another user.
//!
//! `claimant SOCKET UID`: attaches as user UID, and does as each line of its standard input says. Answers `ok` with a result, or `error` with an
//! errno and a message.
//! `kernel ADDRESS`: listens there by the kernel; the address. `inherited FD`: has this listener. `shut`: no more. `says ADDRESS COOKIE`: tells the driver that it listens there, by
//! a socket of this cookie (`own`: its own). `takes ADDRESS`: listens there on the fabric. `took`: connections that came to that listener.
use pd_abi::layout::socket_status;
use pd_abi::{Operation, Request, SocketId, TwinOperation};
use pd_tests::{cookie_of, Raw};
use std::io::BufRead;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, FromRawFd};
use std::path::Path;
use std::sync::atomic::Ordering;

struct Claimant {
    raw: Raw,
    kernels: Option<TcpListener>,
    fabrics: Option<SocketId>,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let uid = args[2].parse().expect("number");
    // SAFETY: plain system calls of a process with one thread.
    let is_user = unsafe { libc::setgid(uid) == 0 && libc::setuid(uid) == 0 };
    assert!(is_user, "needs root, to give it up");
    let raw = Raw::try_attach(Path::new(&args[1]), 1).expect("attach");
    let mut this = Claimant { raw, kernels: None, fabrics: None };
    println!("ok attached");
    for line in std::io::stdin().lock().lines() {
        match this.obey(&line.expect("line")) {
            Ok(result) => println!("ok {result}"),
            Err(errno) => println!("error {errno} refused"),
        }
    }
}

impl Claimant {
    fn obey(&mut self, line: &str) -> Result<String, u32> {
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let mut address = || words.next().and_then(|word| word.parse::<SocketAddr>().ok()).expect("address");
        match command {
            "kernel" => {
                let listener =
                    TcpListener::bind(address()).map_err(|error| error.raw_os_error().unwrap_or(0) as u32)?;
                let at = listener.local_addr().expect("address");
                self.kernels = Some(listener);
                Ok(at.to_string())
            }
            "inherited" => {
                let fd = words.next().and_then(|word| word.parse().ok()).expect("descriptor");
                // SAFETY: inherited for this, and owned by nothing else in this process.
                self.kernels = Some(unsafe { TcpListener::from_raw_fd(fd) });
                Ok(String::new())
            }
            "shut" => {
                self.kernels = None;
                Ok(String::new())
            }
            "says" => {
                let at = address();
                let cookie = words.next().and_then(|word| word.parse().ok());
                self.say(at, cookie).map(|()| String::new())
            }
            "takes" => self.take(address()).map(|()| String::new()),
            "took" => {
                let at = Raw::socket_word(self.fabrics.expect("a listener"), socket_status::RECV_PRODUCER);
                Ok(self.raw.status.load_u64(at, Ordering::Acquire).to_string())
            }
            other => panic!("what is {other}?"),
        }
    }

    fn say(&mut self, at: SocketAddr, cookie: Option<u64>) -> Result<(), u32> {
        let socket = self.kernels.as_ref().map_or(self.raw.socket.as_fd(), AsFd::as_fd);
        let (descriptor, own) = cookie_of(socket);
        let ends = [at.into(), pd_abi::Address::NONE];
        let answer = self.raw.call_about(TwinOperation::Listen, (descriptor, cookie.unwrap_or(own)), ends);
        errno(answer.errno)
    }

    fn take(&mut self, at: SocketAddr) -> Result<(), u32> {
        let socket = self.raw.open(0);
        let bind = Request::new(Operation::Bind, socket, 0).with_address(at.into());
        errno(self.raw.call(0, bind).errno)?;
        let listen = Request::new(Operation::Listen, socket, 0).with_numbers(8, 0);
        errno(self.raw.call(0, listen).errno)?;
        self.fabrics = Some(socket);
        Ok(())
    }
}

fn errno(errno: u32) -> Result<(), u32> {
    if errno == 0 {
        Ok(())
    } else {
        Err(errno)
    }
}
