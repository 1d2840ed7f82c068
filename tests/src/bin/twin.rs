//! Side of a twin, as a process of its own that has inherited the kernel's socket.
//!
//! `twin FD SIDE [take]`: holds descriptor FD. Does as each line of its standard input says and answers `ok`:
//! `take`; `claim FD` (what was accepted from listener FD); `send POSITION BYTES`; `receive POSITION BYTES`; `end`
//! (the stream has ended); `shut` (send no more); `close` (both sockets); `pass` (becomes this program anew, which takes: `exec`).
use pd_client::Shutdown;
use pd_tests::TwinSide;
use std::io::BufRead;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |index: usize| args[index].parse::<u64>().expect("number");
    let (descriptor, side) = (number(1) as i32, number(2));
    // SAFETY: inherited for this, and owned by nothing else in this process.
    let fd = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let take = || {
        let twin = TwinSide::take(fd, side);
        if twin.is_none() {
            std::process::exit(1);
        }
        twin
    };
    let mut twin = if args.len() > 3 { take() } else { None };
    if twin.is_some() {
        println!("ok");
    }
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("line");
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("number");
        match (command, &twin) {
            ("take", _) => twin = take(),
            ("claim", _) => {
                // SAFETY: inherited, and owned by nothing in this process.
                let listener = unsafe { BorrowedFd::borrow_raw(number() as i32) };
                pd_client::core::twin::listen(listener).expect("listen");
                let claimed = pd_client::core::twin::claim(fd).expect("claim").expect("a twin");
                twin = Some(TwinSide::new(claimed, side));
            }
            ("send", Some(twin)) => twin.send(number(), number() as usize),
            ("receive", Some(twin)) => twin.receive(number(), number()),
            ("end", Some(twin)) => twin.expect_end(),
            ("shut", Some(twin)) => twin.socket.shutdown(Shutdown::Write).expect("shut"),
            ("close", Some(twin)) => {
                // SAFETY: nobody uses the descriptor after this.
                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
                twin.socket.close().expect("close");
            }
            ("pass", _) => {
                let error = std::process::Command::new(&args[0]).args(&args[1..3]).arg("take").exec();
                panic!("exec: {error}");
            }
            other => panic!("what is {other:?}?"),
        }
        println!("ok");
    }
}
