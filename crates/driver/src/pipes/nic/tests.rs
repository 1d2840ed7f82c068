use super::*;
use crate::policy::Policy;
use pd_abi::pipe::{PipeDirection, PipeUnit};
use pd_pipe::{Direction, Files, Made, Offer, Unit};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

const RING: u64 = 32 << 10;

struct Stand {
    nic: Nic,
    clock: Arc<ManualClock>,
    door: Arc<Mailbox<ToDoor>>,
    numbers: u32,
}

impl Stand {
    /// Returns the pipe whose memory a client is shown.
    fn peer(&mut self, client: ClientId, number: u32) -> Option<PipeName> {
        self.nic.show_peer(client, number).map(|(peer, _)| peer)
    }

    /// Makes a stand with tenants `default` and `red`, and a link and a sink.
    fn new(policy: &str) -> Self {
        let (clock, door) = (Arc::new(ManualClock::default()), Mailbox::new().unwrap());
        let nic = Nic::new(
            clock.clone(),
            Mailbox::new().unwrap(),
            Arc::clone(&door),
            Arc::default(),
            Duration::ZERO,
        )
        .unwrap();
        let mut this = Self { nic, clock, door, numbers: 0 };
        this.apply(policy);
        this.nic.add_port("wire", "link", NewPort::Link).unwrap();
        let sink = pd_pipe::Port::Sink(Default::default());
        this.nic.add_port("drain", "sink", NewPort::One(Box::new(sink))).unwrap();
        this
    }

    fn apply(&mut self, policy: &str) {
        let policy = Policy::parse(policy).unwrap();
        let tenant = |name: &str| {
            let limits = policy.tenant(name).map_or_else(Default::default, |tenant| tenant.limits);
            TenantNow { name: name.to_owned(), budget: Budget::new(limits) }
        };
        let tenants = vec![tenant("default"), tenant("red")];
        self.nic.apply_command(ToNic::Policy { binds: policy.binds, tenants });
    }

    fn open(
        &mut self,
        client: u16,
        tenant: u16,
        direction: PipeDirection,
        port: &str,
    ) -> Result<(u32, pd_pipe::Pipe), Errno> {
        let request = PipeRequest::new(direction, PipeUnit::Frames, port).unwrap();
        let of = match direction {
            PipeDirection::Receive => Direction::Receive,
            PipeDirection::Send => Direction::Send,
            PipeDirection::Forward => Direction::Forward,
        };
        let (number, files, offer) =
            self.ask(client, tenant, request, Shape::new(of, Unit::Frames, RING).unwrap())?;
        let pipe = pd_pipe::Pipe::map(offer).unwrap();
        files.seal().unwrap();
        self.start(client, number)?;
        Ok((number, pipe))
    }

    /// Has a pipe opened, which has to be started.
    fn ask(
        &mut self,
        client: u16,
        tenant: u16,
        request: PipeRequest,
        shape: Shape,
    ) -> Result<(u32, Files, Offer), Errno> {
        let (made, files, offer) = Made::new(shape).unwrap();
        self.numbers += 1;
        let (client, number) = (ClientId::new(client), self.numbers);
        let payer = (TenantId::new(tenant), None);
        let opening = Opening { client, serial: 1, payer, number, request, made, offer };
        self.nic.apply_command(ToNic::Open(Box::new(opening)));
        let Some(ToDoor::PipeOpened { opened, .. }) = self.told() else { panic!("no answer") };
        Ok((number, files, *opened.map_err(|(errno, _)| errno)?))
    }

    fn start(&mut self, client: u16, number: u32) -> Result<(), Errno> {
        let name = (ClientId::new(client), 1, number);
        self.nic.apply_command(ToNic::Start { client: name.0, serial: name.1, number });
        let Some(ToDoor::PipeStarted { client, serial, number, started }) = self.told() else {
            panic!("no answer")
        };
        assert_eq!((client, serial, number), name);
        started.map_err(|(errno, why)| {
            assert!(!why.is_empty());
            errno
        })
    }

    fn leave(&mut self, client: u16) {
        self.nic.apply_command(ToNic::Left { client: ClientId::new(client) });
        while self.nic.take_commands() {}
    }

    /// Returns what the door is told, if anything.
    fn told(&mut self) -> Option<ToDoor> {
        let mut told = VecDeque::new();
        self.door.drain(&mut told);
        told.pop_front()
    }

    fn sent(&mut self) -> u64 {
        self.nic.report().ports.iter().map(|port| port.frames_sent).sum()
    }
}

#[test]
fn a_tenants_pipes_share_its_rate_and_others_have_their_own() {
    let mut stand =
        Stand::new("[[tenant]]\nname = \"red\"\nrate = { messages_per_second = 1000, burst_messages = 10 }");
    let mut pipes: Vec<_> = [(1, 1), (2, 1), (3, 0)]
        .map(|(client, tenant)| stand.open(client, tenant, PipeDirection::Send, "drain").unwrap().1)
        .into();
    for pipe in &mut pipes {
        for _ in 0..100 {
            pipe.send(&[1; 64], 0).unwrap();
        }
        pipe.flush();
    }
    for _ in 0..50 {
        stand.nic.turn();
    }
    // The burst of one, and all of the other.
    assert_eq!(stand.sent(), 110);
    let (_, until) = stand.nic.turn();
    assert!(until.is_some_and(|until| until > stand.clock.now()));
    for passed in 1..=50 {
        stand.clock.0.store(passed * 1000, Ordering::Relaxed);
        for _ in 0..5 {
            stand.nic.turn();
        }
        let sent = stand.sent();
        assert!((110 + passed - 4..=110 + passed).contains(&sent), "{sent} after {passed} ms");
    }
    stand.apply("");
    stand.nic.turn();
    stand.nic.turn();
    assert_eq!((stand.sent(), stand.nic.turn().1), (300, None));
}

/// A long frame makes a debt, and the average stays within the rate.
#[test]
fn long_frames_are_paid_for_by_later_leases() {
    let rate = "rate = { bytes_per_second = \"100KB\", burst_bytes = \"8KB\" }";
    let mut stand = Stand::new(&format!("[[tenant]]\nname = \"red\"\n{rate}"));
    let (_, mut pipe) = stand.open(1, 1, PipeDirection::Send, "drain").unwrap();
    let mut placed = 0u64;
    for passed in 0..1000u64 {
        stand.clock.0.store(passed * 1000, Ordering::Relaxed);
        while pipe.send(&[1; 9000], 0).is_ok() {
            placed += 1;
        }
        pipe.flush();
        stand.nic.turn();
    }
    let bytes = stand.sent() * 9000;
    assert!(placed > stand.sent());
    assert!((90_000..=8_000 + 100_000 + 9_000 + 4_096).contains(&bytes), "{bytes} bytes in a second");
}

#[test]
fn tenants_do_not_share_frames_and_have_shares_of_pipes() {
    let mut stand = Stand::new("[[tenant]]\nname = \"red\"");
    let _own = stand.open(1, 0, PipeDirection::Receive, "wire.0").unwrap();
    assert_eq!(stand.open(2, 1, PipeDirection::Receive, "wire.0").err(), Some(Errno::ADDRINUSE));
    let _other = stand.open(2, 1, PipeDirection::Receive, "wire.1").unwrap();
    let report = stand.nic.report();
    let tenants: Vec<_> = (report.tenants.iter())
        .map(|tenant| (&*tenant.name, tenant.pipes_open, tenant.pipes_refused))
        .collect();
    assert_eq!(tenants, [("default", 1, 0), ("red", 1, 1)]);
    // The first client moves to the other tenant: frames that it has received stay on the account of the first.
    let [left, payer] = [0, 1].map(|tenant| (TenantId::new(tenant), None));
    stand.nic.apply_command(ToNic::SetPayer { client: ClientId::new(1), left, payer });
    assert_eq!(stand.nic.report().tenants[1].pipes_open, 2);
    stand.leave(1);
    assert_eq!(stand.nic.report().pipes.len(), 1);
    assert!(stand.open(3, 0, PipeDirection::Receive, "wire.0").is_ok());
}

#[test]
fn pipes_of_one_process_share_frames_and_those_of_several_where_all_ask_for_it() {
    let mut stand = Stand::new("");
    let shape = Shape::new(Direction::Receive, Unit::Frames, RING).unwrap();
    let mut open = |client, port: &str, l4_port: u16, shares| {
        let mut request = PipeRequest::new(PipeDirection::Receive, PipeUnit::Frames, port).unwrap();
        (request.shares, request.ports) = (shares, [0, l4_port]);
        request.protocol = if l4_port > 0 { 17 } else { 0 };
        stand.ask(client, 0, request, shape).map(drop)
    };
    let taken = Err(Errno::ADDRINUSE);
    for l4_port in [0, 53] {
        assert_eq!(open(1, "wire.0", l4_port, false), Ok(()));
        assert_eq!(open(1, "wire.0", l4_port, false), Ok(()), "the process itself");
        assert_eq!(open(2, "wire.0", l4_port, false), taken);
        assert_eq!(open(2, "wire.0", l4_port, true), taken, "the first has not asked for it");
        assert_eq!(open(1, "wire.1", l4_port, true), Ok(()));
        assert_eq!(open(2, "wire.1", l4_port, false), taken);
        assert_eq!(open(2, "wire.1", l4_port, true), Ok(()));
        assert_eq!(open(1, "wire.1", l4_port, false), taken, "the second has not said that it may be any");
    }
    // Other frames of the port, and senders.
    assert_eq!(open(2, "wire.0", 54, false), Ok(()));
    assert!(stand.open(3, 0, PipeDirection::Send, "wire.0").is_ok());
    // A process that has gone.
    stand.leave(1);
    assert!(stand.open(3, 0, PipeDirection::Receive, "wire.0").is_ok());
}

/// Else the frames of all are compared with a client's flows, one by one.
#[test]
fn a_tenants_flows_of_a_port_name_few_combinations_of_fields() {
    let mut stand = Stand::new("[[tenant]]\nname = \"red\"");
    let shape = Shape::new(Direction::Receive, Unit::Frames, RING).unwrap();
    let mut open = |tenant, port: &str, prefix: u8, last: u8| {
        let mut request = PipeRequest::new(PipeDirection::Receive, PipeUnit::Frames, port).unwrap();
        request.addresses[1] = ([10, 0, 0, last], prefix);
        stand.ask(1, tenant, request, shape).map(drop)
    };
    let kinds = KINDS_MAX as u8;
    for prefix in 8..8 + kinds {
        assert_eq!(open(0, "wire.0", prefix, 0), Ok(()), "{prefix} bits");
    }
    assert_eq!(open(0, "wire.0", 8 + kinds, 0), Err(Errno::NOSPC));
    // One that there is, another port, and another tenant.
    assert_eq!(open(0, "wire.0", 8, 0), Ok(()));
    assert_eq!(open(0, "wire.1", 8 + kinds, 0), Ok(()));
    assert_eq!(open(1, "wire.0", 32, 1), Ok(()));
}

#[test]
fn a_port_is_added_once_and_asked_for_by_those_who_may() {
    let mut stand = Stand::new("[[tenant]]\nname = \"red\"\n[[bind]]\ntenant = \"red\"");
    assert_eq!(stand.open(1, 0, PipeDirection::Send, "drain").err(), Some(Errno::ACCESS));
    assert_eq!(stand.open(1, 0, PipeDirection::Send, "nowhere").err(), Some(Errno::ACCESS));
    assert_eq!(stand.open(1, 1, PipeDirection::Send, "nowhere").err(), Some(Errno::NOENT));
    assert_eq!(stand.open(1, 1, PipeDirection::Receive, "drain").err(), Some(Errno::INVAL));
    let (_, mut pipe) = stand.open(1, 1, PipeDirection::Send, "drain").unwrap();
    for (name, port) in [("drain", NewPort::Link), ("wire", NewPort::Link), ("a.b", NewPort::Link)] {
        let (reply, answer) = channel();
        stand.nic.apply_command(ToNic::AddPort { name: name.to_owned(), kind: "link", port, reply });
        assert!(matches!(answer.recv(), Ok(Answer::Error(_))), "{name}");
    }
    stand.apply("[[tenant]]\nname = \"red\"\n[[bind]]\ntenant = \"red\"\nport = \"wire.0\"");
    assert_eq!(pipe.place(64).err(), Some(Errno::ACCESS));
    let report = stand.nic.report();
    assert!(report.pipes[0].ended.as_ref().is_some_and(|why| why.contains("[[bind]]")), "{report:?}");
}

#[test]
fn a_link_is_offered_within_a_tenant_and_what_was_shown_ends_when_a_client_leaves() {
    use PipeDirection::{Receive, Send};
    // The receiver may keep the sender's ring mapped, also when it has closed its pipe.
    for closes_first in [false, true] {
        let mut stand = Stand::new("");
        let (to, _receiver) = stand.open(1, 0, Receive, "wire.1").unwrap();
        let (from, sender) = stand.open(2, 1, Send, "wire.0").unwrap();
        let (one, two) = (ClientId::new(1), ClientId::new(2));
        let payer = |tenant| (TenantId::new(tenant), None);
        let set_payer = |stand: &mut Stand, client, left, payer| {
            stand.nic.apply_command(ToNic::SetPayer { client, left, payer });
            stand.nic.turn();
        };
        stand.nic.turn();
        assert_eq!((stand.peer(one, to), stand.peer(two, from)), (None, None));
        // Clients of the default tenant are told apart by user.
        let user = (TenantId::new(0), Some(7));
        set_payer(&mut stand, two, payer(1), user);
        assert_eq!(stand.peer(one, to), None);
        set_payer(&mut stand, two, user, payer(0));
        assert_eq!(stand.peer(two, from), Some((one, 1, to)));
        assert_eq!(stand.peer(one, to), Some((two, 1, from)));
        assert_eq!(stand.peer(one, from), None, "another's pipe");
        if closes_first {
            stand.nic.apply_command(ToNic::Close { client: one, number: to });
        }
        // A client that stays where it was ends nothing.
        set_payer(&mut stand, one, payer(0), payer(0));
        assert_eq!(sender.ended(), None);
        set_payer(&mut stand, one, payer(0), payer(1));
        assert_eq!(sender.ended(), Some(Errno::ACCESS), "{closes_first}");
    }
}

/// A pipe that has ended between the two steps of its opening, by each reason. Its client is told which.
#[test]
fn a_pipe_that_has_ended_is_not_started_and_its_client_is_told_why() {
    type End = fn(&mut Stand, ClientId, u32);
    let policy: End = |stand, _, _| stand.apply("[[tenant]]\nname = \"red\"\n[[bind]]\ntenant = \"red\"");
    let port: End = |stand, _, _| drop(stand.nic.remove_port("wire").unwrap());
    let tenant: End = |stand, client, _| {
        stand.apply("[[tenant]]\nname = \"red\"\n[[bind]]\ntenant = \"default\"");
        let [left, payer] = [0, 1].map(|tenant| (TenantId::new(tenant), None));
        stand.nic.apply_command(ToNic::SetPayer { client, left, payer });
    };
    let close: End = |stand, client, number| stand.nic.apply_command(ToNic::Close { client, number });
    let ends = [(policy, Errno::ACCESS), (port, Errno::NODEV), (tenant, Errno::ACCESS), (close, Errno::BADF)];
    for (end, expected) in ends {
        let mut stand = Stand::new("");
        let request = PipeRequest::new(PipeDirection::Receive, PipeUnit::Frames, "wire.0").unwrap();
        let shape = Shape::new(Direction::Receive, Unit::Frames, RING).unwrap();
        let (number, _files, _offer) = stand.ask(1, 0, request, shape).unwrap();
        end(&mut stand, ClientId::new(1), number);
        assert_eq!(stand.start(1, number), Err(expected));
    }
}

/// A client with many pipes goes: others' frames wait for few of them.
#[test]
fn pipes_of_a_client_that_leaves_are_few_in_a_turn() {
    let mut stand = Stand::new("");
    let pipes: Vec<_> = (0..20).map(|_| stand.open(1, 0, PipeDirection::Send, "drain").unwrap()).collect();
    let inbox = Arc::clone(&stand.nic.inbox);
    inbox.send(ToNic::Left { client: ClientId::new(1) });
    inbox.send(ToNic::LetGo { payer: (TenantId::new(0), None), memory: Vec::new() });
    let mut left = Vec::new();
    stand.nic.turn();
    left.push(stand.nic.pipes.len());
    // Later commands wait for their turn.
    inbox.send(ToNic::LetGo { payer: (TenantId::new(0), None), memory: Vec::new() });
    while stand.nic.turn().0 && left.last() != Some(&0) {
        left.push(stand.nic.pipes.len());
        // The memory is let go after the last.
        assert_eq!(stand.told().is_some(), left.last() == Some(&0));
    }
    assert_eq!(left, [pipes.len() - COMMANDS_MAX, pipes.len() - 2 * COMMANDS_MAX, 0]);
}
