//! Files that an honest client has the driver send: each holds the stream of one socket.
use super::*;
use pd_shm::passed;
use rustix::fs::{fstat, ftruncate, memfd_create, MemfdFlags};
use std::os::fd::{AsFd, OwnedFd};

/// The file of a socket.
#[derive(Debug)]
pub(super) struct Sent {
    memory: OwnedFd,
    state: State,
    /// Set once a send of the file was posted.
    pub has_sent: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The driver does not have the file open.
    Closed,
    Asked,
    Open {
        id: FileId,
        uses: u32,
    },
}

impl Sent {
    /// Counts a send, which the caller then has to post. None: the driver does not have the file open.
    pub fn count(&mut self, link: &Link) -> Option<FileId> {
        let State::Open { id, uses } = &mut self.state else { return None };
        if link.count_file(*id, uses.wrapping_add(1)) {
            *uses = uses.wrapping_add(1);
            return Some(*id);
        }
        link.count_file(*id, *uses);
        self.state = State::Closed;
        None
    }

    /// Takes back the count of a send that was not posted.
    pub fn take_back(&mut self, link: &Link) {
        if let State::Open { id, uses } = &mut self.state {
            *uses = uses.wrapping_sub(1);
            link.count_file(*id, *uses);
        }
    }
}

impl Honest {
    /// Asks the driver to open a socket's file, at times.
    pub(super) fn prepare_file(&mut self, at: usize, book: &mut Book) {
        let Some(link) = self.link.as_ref().filter(|link| link.files.is_some()) else { return };
        let Some(socket) = &mut self.sockets[at] else { return };
        let (Some(number), total) = (socket.number, socket.total) else { return };
        if socket.twin.is_some() || total == 0 || !self.random.chance(200) {
            return;
        }
        if socket.file.is_none() {
            let memory = memfd_create("pd-simulation", MemfdFlags::CLOEXEC).expect("memory");
            let bytes: Vec<u8> = (0..total).map(|at| byte(number, at)).collect();
            let mut written = 0;
            while written < bytes.len() {
                written += rustix::io::write(&memory, &bytes[written..]).expect("memory");
            }
            book.sockets[number].file = Some(kernel::inode(memory.as_fd()));
            socket.file = Some(Sent { memory, state: State::Closed, has_sent: false });
        }
        let (Some(file), Some(files)) = (&mut socket.file, &link.files) else { return };
        if !matches!(file.state, State::Closed) {
            return;
        }
        self.passed += 1;
        if passed::send(files, self.passed, file.memory.as_fd()).is_err() {
            return;
        }
        file.state = State::Asked;
        let channel = socket.channel;
        let request = Request::new(Operation::OpenFile, SocketId(0), 0).with_numbers(self.passed, 0);
        if !self.ask(channel, request, Asked::File(number)) {
            self.file_answered(number, 1, FileId(0));
        }
    }

    pub(super) fn file_answered(&mut self, number: Number, errno: u32, id: FileId) {
        let Some(link) = &self.link else { return };
        if errno == 0 {
            link.count_file(id, 0);
        }
        let of = self.sockets.iter_mut().flatten().find(|socket| socket.number == Some(number));
        if let Some(file) = of.and_then(|socket| socket.file.as_mut()) {
            file.state = if errno == 0 { State::Open { id, uses: 0 } } else { State::Closed };
        }
    }

    /// Cuts off a file that may still be read. Returns whether there was one.
    pub fn cut_file_off(&mut self, book: &mut Book) -> bool {
        let sent = |socket: &&mut Socket| socket.file.as_ref().is_some_and(|file| file.has_sent);
        let Some(socket) = self.sockets.iter_mut().flatten().find(sent) else { return false };
        let (Some(number), Some(file)) = (socket.number, &socket.file) else { return false };
        let bytes = fstat(&file.memory).expect("memory").st_size as u64;
        if bytes == 0 {
            return false;
        }
        ftruncate(&file.memory, self.random.below(bytes)).expect("memory");
        book.sockets[number].is_excused = true;
        true
    }
}
