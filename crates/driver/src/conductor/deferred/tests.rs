//! Tests of a conductor alone. The tests play the door and the movers.
use super::*;
use crate::clock::Clock;
use crate::conductor::{Crew, Inboxes, Movers, Others};
use crate::door::FromDoor;
use crate::driver::lead::Lead;
use crate::identity::Identity;
use crate::ids::{MoverId, Slot, TenantId};
use crate::mailbox::{Mailbox, Outbox};
use crate::memory::{Amounts, ClientMemory, HugepageUse, Pool, Shelves};
use crate::messages::{ToConductor, ToMover};
use crate::mover::{Mover, MoverSettings};
use crate::settings::Settings;
use crate::standing::Place;
use pd_abi::Event as Posted;
use rustix::process::{getpid, pidfd_open, PidfdFlags};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;

struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

struct Stage {
    conductor: Conductor,
    clock: Arc<ManualClock>,
    inboxes: Inboxes,
    door: Arc<Mailbox<ToDoor>>,
    mover: Arc<Mailbox<ToMover>>,
}

fn id(namespace: u64) -> NamespaceId {
    NamespaceId::for_test(namespace)
}

fn file() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Stage {
    /// Makes a stage with the clients 0, 1, ... of the namespaces. Each has a user of its own, and a socket.
    fn new(namespaces: &[u64]) -> Self {
        let clock = Arc::new(ManualClock(AtomicU64::new(1000)));
        let (inboxes, door, mover) =
            (Inboxes::new().unwrap(), Mailbox::new().unwrap(), Mailbox::new().unwrap());
        let counters = crate::metrics::region(1, 16, 16, 1 << 30).unwrap();
        let all = Amounts {
            clients: u64::MAX,
            descriptors: u64::MAX,
            lines_bytes: u64::MAX,
            memory_bytes: u64::MAX,
        };
        let as_clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let settings =
            MoverSettings { id: MoverId::default(), spin: Duration::ZERO, ring_idle: Duration::ZERO };
        let (engine, told) = (pd_engine::by_name("cpu").unwrap(), Mailbox::new().unwrap());
        let (inbox, metrics) = ([Arc::clone(&told)], Arc::new(Metrics::new(&counters, 1)));
        let nobody = Outbox::Kept(RefCell::default());
        let own = Mover::new(settings, as_clock, &engine, &inbox, nobody, metrics, Arc::default()).unwrap();
        let crew = Crew {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            stop: Arc::default(),
            broken: Arc::default(),
            cores: Arc::default(),
        };
        let mut movers = Movers::new(own, vec![], vec![told], crew);
        movers.listener = Some(Arc::clone(&mover));
        let conductor = Conductor::new(
            Settings::default(),
            Arc::clone(&clock) as Arc<dyn Clock>,
            inboxes.clone(),
            Others {
                door: Arc::clone(&door),
                movers,
                gate: Err("none in this test".to_owned()),
                pipes: crate::pipes::Pipes::new(clock.clone(), Arc::clone(&door), Duration::ZERO).unwrap(),
            },
            Pool::of(all, HugepageUse::Off, Shelves::default()),
            Arc::new(Metrics::new(&counters, 0)),
        );
        let mut conductor = conductor.unwrap();
        conductor.put_first_in_force().unwrap();
        let mut this = Self { conductor, clock, inboxes, door, mover };
        for (client, &namespace) in namespaces.iter().enumerate() {
            this.attach(client as u16, namespace);
        }
        this
    }

    fn attach(&mut self, number: u16, namespace: u64) {
        let client = ClientId::new(number);
        let identity = Identity {
            pid: std::process::id(),
            uid: 1000 + u32::from(number),
            image: None,
            pidfd: Arc::new(pidfd_open(getpid(), PidfdFlags::NONBLOCK).unwrap()),
            namespace: id(namespace),
            namespace_fd: file(),
            cgroup: None,
            container: None,
        };
        let memory = Arc::new(ClientMemory::new(number.into(), None).unwrap().0);
        let arrived = FromDoor::Arrived {
            client,
            identity: Box::new(identity),
            place: Place::default(),
            namespace: file(),
        };
        self.tell(arrived);
        self.tell(FromDoor::Welcomed { client, memory });
        self.tell(FromDoor::Attached { client });
        self.conductor.client_mut(client).unwrap().channels = 2;
        self.ask(number, 0, Operation::Socket, 0, "0.0.0.0:0");
        assert_eq!(self.answers().len(), 1);
        self.asked();
    }

    fn tell(&mut self, message: FromDoor) {
        self.inboxes.door.send(message);
        while self.conductor.step() {}
    }

    /// Sends a request about the client's first socket, or its second.
    fn ask(&mut self, client: u16, channel: usize, operation: Operation, slot: u16, address: &str) {
        let client = ClientId::new(client);
        let tag = operation as u32 * 100 + u32::from(slot);
        let mut request = Request::new(operation, SocketId::new(slot, 1), tag);
        request.family = 4;
        let request = request.with_address(at(address).into());
        self.inboxes.movers.send(ToConductor::Control { client, channel, request, permit: None });
        while self.conductor.step() {}
    }

    /// Returns the answers to clients: client, tag and errno.
    fn answers(&self) -> Vec<(u16, u32, u32)> {
        let mut commands = VecDeque::new();
        self.mover.drain(&mut commands);
        let posted = |command| match command {
            ToMover::Post { client, event, .. } => Some((client, event)),
            _ => None,
        };
        let errno = |event: &Posted| event.errno;
        commands
            .into_iter()
            .filter_map(posted)
            .map(|(client, event)| (client.get(), event.tag, errno(&event)))
            .collect()
    }

    /// Returns the lists that the door was asked for: the namespace, and the user whose helper is to read it.
    fn asked(&self) -> Vec<(NamespaceId, u32)> {
        let mut commands = VecDeque::new();
        self.door.drain(&mut commands);
        let asked = commands.into_iter().filter_map(|command| match command {
            ToDoor::ReadAddresses { payer, id, .. } => Some((id, payer.1.unwrap())),
            _ => None,
        });
        let mut asked: Vec<_> = asked.collect();
        asked.sort_unstable();
        asked
    }

    /// Delivers a list that the helper of this user has read.
    fn read(&mut self, namespace: u64, user: u32, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| (address.parse::<IpAddr>().unwrap(), 24));
        self.tell(FromDoor::Addresses(Box::new(Reading {
            payer: crate::messages::payer(TenantId::default(), user),
            id: id(namespace),
            _namespace: Arc::new(file()),
            found: Ok(addresses.collect()),
            took: Duration::ZERO,
        })));
    }

    fn pass(&mut self, time: Duration) {
        self.clock.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
        self.conductor.tick();
        while self.conductor.step() {}
    }
}

const BIND: u32 = Operation::Bind as u32 * 100;
const LISTEN: u32 = Operation::Listen as u32 * 100;
const SOCKET: u32 = Operation::Socket as u32 * 100;
const CONNECT: u32 = Operation::Connect as u32 * 100;

#[test]
fn who_waits_for_a_list_waits_alone_and_in_order() {
    let mut stage = Stage::new(&[1, 2]);
    stage.ask(0, 0, Operation::Bind, 0, "10.0.0.1:80");
    stage.ask(0, 0, Operation::Listen, 0, "0.0.0.0:0");
    stage.ask(0, 0, Operation::Socket, 0, "0.0.0.0:0");
    assert_eq!(stage.asked(), [(id(1), 1000)]);
    // The client's other channel, and a client of another namespace, are served.
    stage.ask(0, 1, Operation::Socket, 0, "0.0.0.0:0");
    stage.ask(1, 0, Operation::Bind, 0, "127.0.0.1:80");
    assert_eq!(stage.answers(), [(0, SOCKET, 0), (1, BIND, 0)]);
    stage.read(2, 1001, &["10.0.0.2"]);
    assert_eq!(stage.answers(), []);
    stage.read(1, 1000, &["10.0.0.1"]);
    assert_eq!(stage.answers(), [(0, BIND, 0), (0, LISTEN, 0), (0, SOCKET, 0)]);
    assert_eq!(stage.asked(), []);
    assert!(stage.conductor.deferred.wake_by().is_none());
}

#[test]
fn each_payer_has_its_own_helper_read_and_one_list_serves_all() {
    let mut stage = Stage::new(&[1, 1, 1]);
    for client in 0..3 {
        stage.ask(client, 0, Operation::Bind, 0, &format!("10.0.0.1:{}", 80 + client));
    }
    assert_eq!(stage.asked(), [(id(1), 1000), (id(1), 1001), (id(1), 1002)]);
    // The helpers of two users are held up, for ever.
    stage.read(1, 1002, &["10.0.0.1"]);
    assert_eq!(stage.answers().len(), 3);
    stage.pass(Duration::from_secs(1));
    stage.ask(0, 0, Operation::Socket, 0, "0.0.0.0:0");
    stage.ask(0, 0, Operation::Bind, 1, "10.0.0.1:90");
    assert_eq!(stage.asked(), [], "it is asked already");
    assert_eq!(stage.answers(), [(0, SOCKET, 0)]);
    stage.ask(0, 1, Operation::Socket, 0, "0.0.0.0:0");
    stage.answers();
    stage.pass(PATIENCE);
    assert_eq!(stage.answers(), [(0, BIND + 1, Errno::TIMEDOUT.raw_os_error() as u32)]);
    assert!(stage.conductor.deferred.wake_by().is_none());
}

/// A new deadline is met although a later one was known before.
#[test]
fn a_turn_knows_what_is_due_first() {
    let mut stage = Stage::new(&[1, 2]);
    let now = stage.clock.now();
    assert!(stage.conductor.log.may_say(("a line that is silent for ten seconds", DRIVER), now));
    let Stage { conductor, clock, inboxes, door: _door, mover } = stage;
    let mut lead = Lead::new(conductor, Arc::clone(&clock) as Arc<dyn Clock>);
    while lead.turn().is_none() {}
    let (client, operation) = (ClientId::new(0), Operation::Bind);
    let mut request = Request::new(operation, SocketId::new(0, 1), BIND);
    request.family = 4;
    let request = request.with_address(at("10.0.0.1:80").into());
    inboxes.movers.send(ToConductor::Control { client, channel: 0, request, permit: None });
    let mut by = lead.turn();
    while by.is_none() {
        by = lead.turn();
    }
    assert!(by.is_some_and(|by| by <= clock.now() + PATIENCE));
    clock.0.fetch_add(PATIENCE.as_millis() as u64, Ordering::Relaxed);
    while lead.turn().is_none() {}
    let mut commands = VecDeque::new();
    mover.drain(&mut commands);
    let errnos = commands.into_iter().filter_map(|command| match command {
        ToMover::Post { event, .. } => Some(event.errno),
        _ => None,
    });
    assert_eq!(errnos.collect::<Vec<_>>(), [Errno::TIMEDOUT.raw_os_error() as u32]);
}

#[test]
fn a_close_that_waited_for_too_long_is_carried_out() {
    let mut stage = Stage::new(&[1, 2]);
    stage.ask(0, 0, Operation::Connect, 0, "10.0.0.2:80");
    stage.ask(0, 0, Operation::Close, 0, "0.0.0.0:0");
    let is_open = |stage: &Stage| {
        stage.conductor.client(ClientId::new(0)).and_then(|client| client.socket(Slot::new(0))).is_some()
    };
    assert!(is_open(&stage) && stage.answers().is_empty());
    // Both have waited for too long before the conductor has a turn.
    stage.pass(PATIENCE * 2);
    let timed_out = Errno::TIMEDOUT.raw_os_error() as u32;
    assert_eq!(stage.answers(), [(0, Operation::Connect as u32 * 100, timed_out)]);
    assert!(!is_open(&stage));
}

#[test]
fn a_list_counts_that_was_begun_after_the_request() {
    let mut stage = Stage::new(&[1, 2]);
    stage.read(1, 1000, &["10.0.0.1"]);
    stage.read(2, 1001, &["10.0.0.2"]);
    stage.ask(1, 0, Operation::Listen, 0, "0.0.0.0:0");
    stage.ask(0, 0, Operation::Connect, 0, "10.0.0.2:1");
    let refused = Errno::CONNREFUSED.raw_os_error() as u32;
    assert_eq!(stage.answers(), [(1, LISTEN, 0), (0, CONNECT, refused)], "both lists are new");
    stage.pass(Duration::from_secs(1));
    stage.ask(0, 0, Operation::Connect, 0, "10.0.0.2:1");
    assert_eq!(stage.asked(), [(id(1), 1000), (id(2), 1000)]);
    // The first list takes so long that the second is old when it comes. The old one counts all the same.
    stage.read(2, 1000, &["10.0.0.2"]);
    stage.pass(Duration::from_secs(1));
    stage.read(1, 1000, &["10.0.0.1"]);
    assert_eq!(stage.asked(), []);
    assert_eq!(stage.answers(), [(0, CONNECT, refused)]);
    // An address without a known holder may be anybody's.
    stage.pass(Duration::from_secs(1));
    stage.ask(0, 0, Operation::Connect, 0, "10.0.0.3:1");
    assert_eq!(stage.asked(), [(id(1), 1000), (id(2), 1000)]);
}

#[test]
fn what_waits_is_bounded_and_goes_with_its_client() {
    let mut stage = Stage::new(&[1, 2]);
    for _ in 0..WAITING_MAX {
        stage.ask(0, 0, Operation::Bind, 0, "10.0.0.1:80");
    }
    assert_eq!(stage.answers(), []);
    stage.ask(0, 0, Operation::Bind, 0, "10.0.0.1:80");
    assert_eq!(stage.answers(), [(0, BIND, Errno::NOBUFS.raw_os_error() as u32)]);
    stage.ask(1, 0, Operation::Bind, 0, "10.0.0.1:80");
    assert_eq!(stage.conductor.deferred.of_payer.len(), 2);
    stage.tell(FromDoor::Left { client: ClientId::default() });
    let deferred = &stage.conductor.deferred;
    assert_eq!((deferred.of_payer.len(), deferred.lanes.len(), deferred.awaiting.len()), (1, 1, 1));
    stage.read(1, 1000, &["10.0.0.1"]);
    assert_eq!(stage.answers(), []);
    stage.read(2, 1001, &["10.0.0.1"]);
    assert_eq!(stage.answers(), [(1, BIND, 0)]);
    let deferred = &stage.conductor.deferred;
    assert!(deferred.reading.is_empty() && deferred.order.is_empty());
}

#[test]
fn a_container_is_registered_when_the_holders_list_is_there() {
    let mut stage = Stage::new(&[1]);
    stage.read(1, 1000, &["10.0.0.1"]);
    stage.ask(0, 0, Operation::Bind, 0, "10.0.0.1:80");
    stage.answers();
    stage.pass(Duration::from_secs(1));
    let registering = |name: &str| Registering {
        registration: crate::door::Registration {
            network: None,
            name: name.into(),
            tenant: "t".into(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
        },
        pidfd: Arc::new(pidfd_open(getpid(), PidfdFlags::NONBLOCK).unwrap()),
        namespace: id(7),
        namespace_fd: file(),
        cgroup: None,
    };
    let asked = |name| Box::new(crate::door::Asked::Register(registering(name)));
    for name in ["late", "never"] {
        let (reply, answer) = channel();
        stage.tell(FromDoor::Asked { asked: asked(name), reply });
        assert!(answer.try_recv().is_err(), "it waits");
        if name == "never" {
            stage.pass(PATIENCE);
            let why = answer.try_recv().unwrap();
            assert!(matches!(&why, Answer::Error(why) if why.contains("never")), "{why:?}");
            continue;
        }
        // The previous holder has given the address up.
        stage.tell(FromDoor::Addresses(Box::new(Reading {
            payer: DRIVER,
            id: id(1),
            _namespace: Arc::new(file()),
            found: Ok(crate::addresses::Addresses::default()),
            took: Duration::ZERO,
        })));
        assert!(matches!(answer.try_recv().unwrap(), Answer::Done));
        stage.pass(Duration::from_secs(1));
    }
}
