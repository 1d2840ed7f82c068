//! A puppet that knows the kernel's sockets alone: under the preload library an unmodified program, else one without any of ours.
//! Commands and answers are those of `puppet` in `peer.rs`, as far as the matrix of programs uses them.
use std::collections::HashMap;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

#[derive(Default)]
struct Plain {
    listeners: HashMap<String, TcpListener>,
    streams: HashMap<String, TcpStream>,
}

fn main() {
    let mut plain = Plain::default();
    for line in io::stdin().lock().lines() {
        let line = line.expect("command");
        let words: Vec<_> = line.split(' ').collect();
        match plain.apply(&words) {
            Ok(answer) => println!("ok {answer}"),
            Err(error) => println!("error {} {error}", error.raw_os_error().unwrap_or(libc::ENODATA)),
        }
    }
}

/// Makes the end of the stream a reset, by the C library's call, which the preload library sees.
fn close_resets(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of_val(&linger) as libc::socklen_t;
    // SAFETY: a `linger` that lives through the call.
    let set = unsafe {
        let place = (&raw const linger).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, place, len)
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Plain {
    fn apply(&mut self, words: &[&str]) -> io::Result<String> {
        let number = |index: usize| words[index].parse::<u64>().expect("number");
        let mut stream = self.streams.get(words[1]);
        Ok(match words[0] {
            "listen" => {
                let listener = TcpListener::bind(words[2])?;
                let bound = listener.local_addr()?;
                self.listeners.insert(words[1].to_owned(), listener);
                bound.to_string()
            }
            "connect" => self.keep(words[1], TcpStream::connect(words[2])?)?,
            "accept" => {
                let accepted = self.listeners[words[2]].accept()?.0;
                self.keep(words[1], accepted)?
            }
            "send" => {
                let mut bytes = vec![0; number(4) as usize];
                pd_tests::fill(number(2), number(3), &mut bytes);
                bytes
                    .chunks(number(5) as usize)
                    .try_for_each(|part| stream.as_mut().expect("stream").write_all(part))?;
                String::new()
            }
            "recv" => {
                let mut bytes = vec![0; number(4) as usize];
                stream.as_mut().expect("stream").read_exact(&mut bytes)?;
                pd_tests::verify(number(2), number(3), &bytes);
                String::new()
            }
            "end" => match stream.as_mut().expect("stream").read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => return self.apply(words),
                read => read?.to_string(),
            },
            "shutdown" => {
                stream.expect("stream").shutdown(Shutdown::Write)?;
                String::new()
            }
            "reset" => {
                close_resets(stream.expect("stream"))?;
                self.streams.remove(words[1]);
                String::new()
            }
            "close" => {
                self.streams.remove(words[1]);
                String::new()
            }
            other => panic!("no such command: {other}"),
        })
    }

    fn keep(&mut self, name: &str, stream: TcpStream) -> io::Result<String> {
        let names = format!("{} {}", stream.local_addr()?, stream.peer_addr()?);
        self.streams.insert(name.to_owned(), stream);
        Ok(names)
    }
}
