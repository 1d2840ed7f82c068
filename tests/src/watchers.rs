//! Watchers of a descriptor, more than anybody needs.
use rustix::event::epoll;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::os::fd::{AsFd, OwnedFd};

/// Watches a descriptor with `count` entries of epoll, until they are dropped.
///
/// # Panics
/// Without the descriptors and the memory for that.
pub fn watch(fd: impl AsFd, count: usize) -> Vec<OwnedFd> {
    const COPIES: usize = 1000;
    let limit = Rlimit { current: getrlimit(Resource::Nofile).maximum, ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let copies: Vec<_> = (0..COPIES).map(|_| fd.as_fd().try_clone_to_owned().unwrap()).collect();
    let watch_all = |_| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for copy in &copies {
            let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, copy, epoll::EventData::new_u64(0), events).unwrap();
        }
        epoll
    };
    let mut held: Vec<_> = (0..count / COPIES).map(watch_all).collect();
    held.extend(copies);
    held
}
