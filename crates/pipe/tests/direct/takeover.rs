//! A link whose agent gives its place to another at any time, against queues: also one that does not take it in the end.
use super::queue::{last_steps, step, Model, Step, STEPS_WEIGHT};
use super::*;
use pd_pipe::Files;
use pd_shm::memfd::Pages;
use pd_shm::shelf::Shelf;
use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

#[derive(Clone, Debug)]
enum Change {
    /// Something that happens beside one agent, too.
    Plain(Step),
    TakeOver,
    GiveUp,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        STEPS_WEIGHT => step().prop_map(Change::Plain),
        3 => Just(Change::TakeOver),
        1 => Just(Change::GiveUp),
    ];
    prop::collection::vec(change, 1..300)
}

/// A file system for memory that another agent can go on with. None: the test may not make one.
fn shelf() -> Option<&'static Shelf> {
    static SHELF: OnceLock<Option<Shelf>> = OnceLock::new();
    let make =
        || Shelf::new(Pages::Ordinary).inspect_err(|error| println!("SKIPPED: no shelf: {error}")).ok();
    SHELF.get_or_init(make).as_ref()
}

fn dup(fd: &OwnedFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, 0).unwrap()
}

/// A link of which the agent gets a successor.
struct Served {
    stand: Stand,
    /// Files of the sender and of the receiver.
    files: [Files; 2],
    /// Owner of the receiver.
    owner: u64,
}

impl Served {
    fn new(shelf: &Shelf, unit: Unit) -> Self {
        let mut agent = Agent::new().unwrap();
        let ports = agent.add_link();
        let mut open = |port, direction| {
            let shape = Shape::new(direction, unit, RING).unwrap();
            let (made, files, offer) = Made::on(Some(shelf), shape).unwrap();
            let words = words(&offer);
            let id = agent.adopt(made, &Route::to(port)).unwrap();
            let pipe = Pipe::map(offer).unwrap();
            files.seal().unwrap();
            agent.start(id).unwrap();
            agent.set_owner(id, Some(7));
            (id, pipe, words, files)
        };
        let (from, sender, from_words, from_files) = open(ports.0, Direction::Send);
        let (to, receiver, to_words, to_files) = open(ports.1, Direction::Receive);
        let (ids, words) = ((from, to), (from_words, to_words));
        let stand = Stand { agent, ports, ids, sender, receiver, words };
        Self { stand, files: [from_files, to_files], owner: 7 }
    }

    /// Has both ends accept what is offered.
    fn accept(&mut self) {
        let Stand { agent, ids, sender, receiver, .. } = &mut self.stand;
        for (id, pipe, of_peer) in [(ids.0, sender, &self.files[1]), (ids.1, receiver, &self.files[0])] {
            if let Ok(eventfds) = agent.eventfds(id) {
                pipe.accept(&of_peer.peer(eventfds).unwrap()).unwrap();
            }
        }
    }

    fn set_owner(&mut self, owner: u64) {
        self.owner = owner;
        self.stand.agent.set_owner(self.stand.ids.1, Some(owner));
    }

    /// Makes an agent with the state of the one that serves.
    fn successor(&mut self) -> (Agent, (PortId, PortId), (PipeId, PipeId)) {
        let Stand { agent, ids, ports, .. } = &mut self.stand;
        let (ids, old_ports) = (*ids, *ports);
        agent.count_links();
        let mut next = Agent::new().unwrap();
        let ports = next.add_link();
        for (was, port) in [(old_ports.0, ports.0), (old_ports.1, ports.1)] {
            next.resume_port_counts(port, agent.port_counts(was));
        }
        let (links, last) = agent.links();
        next.number_from(last).unwrap();
        let mut resume = |id, end: usize, port, owner| {
            let files = self.files[end].all().map(dup);
            let (files, resumed) = Files::resume(self.files[end].shape(), files, true).unwrap();
            let (doorbell, _) = agent.descriptors(id).unwrap();
            let made = resumed.with_doorbell(dup(doorbell)).unwrap();
            let resumed = next.adopt(made, &Route::to(port)).unwrap();
            next.set_owner(resumed, Some(owner));
            next.resume(resumed, &agent.state(id).unwrap()).unwrap();
            self.files[end] = files;
            resumed
        };
        let new = (resume(ids.0, 0, ports.0, 7), resume(ids.1, 1, ports.1, self.owner));
        for link in links {
            let pipe = |id| Some(if id == ids.0 { new.0 } else { new.1 });
            let port = |port| Some(if port == old_ports.0 { ports.0 } else { ports.1 });
            next.resume_link(link.named(pipe, port).unwrap()).unwrap();
        }
        (next, ports, new)
    }

    fn take_over(&mut self) {
        let (mut next, ports, ids) = self.successor();
        self.stand.agent.hand_over();
        next.begin();
        (self.stand.agent, self.stand.ports, self.stand.ids) = (next, ports, ids);
    }

    /// Does what concerns the agents. Returns what else there is to do.
    fn apply(&mut self, change: Change) -> Option<Step> {
        match change {
            Change::TakeOver => self.take_over(),
            Change::GiveUp => drop(self.successor()),
            Change::Plain(Step::Accept) => self.accept(),
            Change::Plain(Step::Recall) => self.set_owner(8),
            Change::Plain(Step::Allow) => self.set_owner(7),
            Change::Plain(step) => return Some(step),
        }
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Frames arrive whole, once and in order, whichever agent passes them on. Those that are lent stay as they are. Counts go on.
    #[test]
    fn a_link_whose_agents_change_is_a_queue(changes in changes()) {
        let Some(shelf) = shelf() else { return Ok(()) };
        let (mut served, mut model) = (Served::new(shelf, Unit::Frames), Model::default());
        for change in changes.into_iter().chain(last_steps().map(Change::Plain)) {
            if let Some(step) = served.apply(change) {
                model.step(&mut served.stand, step)?;
            }
        }
        let stand = &mut served.stand;
        model.end(stand)?;
        let [near, far] = [stand.ports.0, stand.ports.1].map(|port| stand.agent.port_counts(port));
        prop_assert_eq!((near.frames_sent, far.bytes_received), model.expected);
    }

    /// Bytes of a stream come once and in order, whichever agent passes them on. Counts go on.
    #[test]
    fn a_stream_whose_agents_change_is_a_queue(changes in changes()) {
        let Some(shelf) = shelf() else { return Ok(()) };
        let mut served = Served::new(shelf, Unit::Bytes);
        let (mut sent, mut got) = (0u64, 0u64);
        let end = (0..200).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Receive(39) });
        for change in changes.into_iter().chain([Step::Flush].into_iter().chain(end).map(Change::Plain)) {
            let Some(step) = served.apply(change) else { continue };
            let stand = &mut served.stand;
            match step {
                Step::Send(len, _) => match stand.sender.place(len) {
                    Ok(place) => {
                        place.iter_mut().zip(sent..).for_each(|(byte, at)| *byte = at as u8);
                        stand.sender.placed(BACK);
                        sent += len as u64;
                    }
                    Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                },
                Step::Flush | Step::FlushBack => stand.sender.flush(),
                Step::Turn => drop(stand.agent.turn()),
                Step::Accept | Step::Recall | Step::Allow => {}
                Step::Receive(part) | Step::Lend(part) | Step::TakeBack(part) => {
                    let Ok(bytes) = stand.receiver.peek() else { continue };
                    let len = bytes.len() * (part + 1) / 40;
                    prop_assert!(bytes[..len].iter().zip(got..).all(|(&byte, at)| byte == at as u8));
                    prop_assert_eq!(stand.receiver.done(len), Ok(()));
                    got += len as u64;
                }
            }
        }
        prop_assert_eq!(got, sent);
        let [sender, receiver] = served.stand.counts();
        prop_assert_eq!((sender.bytes_sent, receiver.bytes_received), (sent, sent));
    }

    /// State that was changed is refused or harmless: no agent panics, and none reads or writes outside.
    #[test]
    fn changed_positions_are_refused_or_harmless(steps in prop::collection::vec(step(), 1..300), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let Some(shelf) = shelf() else { return Ok(()) };
        let mut served = Served::new(shelf, Unit::Frames);
        for step in steps {
            match step {
                Step::Send(len, _) => drop(served.stand.sender.send(&frame(1, len), BACK)),
                Step::Flush => served.stand.sender.flush(),
                Step::Turn => drop(served.stand.agent.turn()),
                Step::Accept => served.accept(),
                Step::Receive(_) => {
                    if let Ok(mut frames) = served.stand.receiver.frames() {
                        frames.next();
                    }
                }
                _ => {}
            }
        }
        let Served { stand: Stand { agent, ids, .. }, files, .. } = &served;
        let mut next = Agent::new().unwrap();
        let ports = next.add_link();
        let mut new = Vec::new();
        for (end, (id, port)) in [(ids.0, ports.0), (ids.1, ports.1)].into_iter().enumerate() {
            let (_, resumed) = Files::resume(files[end].shape(), files[end].all().map(dup), true).unwrap();
            let made = resumed.with_doorbell(dup(agent.descriptors(id).unwrap().0)).unwrap();
            let own = next.adopt(made, &Route::to(port)).unwrap();
            next.set_owner(own, Some(7));
            let state = changed(&agent.state(id).unwrap(), at, value);
            let resumed = state.is_none_or(|state| next.resume(own, &state).is_ok());
            new.extend(resumed.then_some(own));
        }
        if let [from, to] = new[..] {
            for link in agent.links().0 {
                let link = link.named(|id| Some(u8::from(id == ids.0)), |_| Some(0u8)).unwrap();
                let link = changed(&link, at, value).unwrap_or(link);
                let pipe = |name| Some(if name == 1 { from } else { to });
                let _ = next.resume_link(link.named(pipe, |_| Some(ports.0)).unwrap());
            }
        }
        next.begin();
        for _ in 0..8 {
            next.turn();
        }
    }
}

/// Returns a state with one byte of it changed. None: it is no state then.
fn changed<T>(state: &T, at: prop::sample::Index, value: u8) -> Option<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let mut bytes = postcard::to_allocvec(state).unwrap();
    let at = at.index(bytes.len());
    bytes[at] = value;
    postcard::from_bytes(&bytes).ok()
}
