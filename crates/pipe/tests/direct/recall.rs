//! Recalls of the direct path: reasons for the agent to see the frames, and an end that goes.
use super::*;

/// Each reason for the agent to see the frames, and its end.
#[test]
fn what_needs_the_agent_recalls_the_path_and_its_end_offers_another() {
    type Change = fn(&mut Stand, on: bool);
    let lease: Change = |stand, on| {
        stand.agent.set_lease(stand.ids.0, on.then_some(Lease { mac: [0; 6], ipv4: [0; 4] }));
    };
    let rate: Change = |stand, on| {
        stand.agent.fill_purse(0, Tokens::ALL);
        stand.agent.set_purse(stand.ids.0, on.then_some(0));
    };
    let owner: Change = |stand, on| stand.agent.set_owner(stand.ids.1, Some(if on { 8 } else { 7 }));
    for (name, change) in [("lease", lease), ("rate", rate), ("owner", owner)] {
        let mut stand = Stand::direct();
        stand.send(0);
        change(&mut stand, true);
        stand.agent.turn();
        stand.send(1);
        assert_eq!(stand.receive(), [], "{name}: what it has not read is the agent's");
        stand.agent.turn();
        assert!(!stand.is_direct(), "{name}");
        if name == "lease" {
            assert_eq!(stand.agent.counts(stand.ids.0).unwrap().frames_refused, 2);
        } else {
            assert_eq!(stand.receive(), [0, 1], "{name}");
        }
        change(&mut stand, false);
        stand.go_direct();
        stand.send(2);
        assert_eq!(stand.receive(), [2], "{name}");
    }
}

fn tap(agent: &mut Agent, of: Tapped) -> (TapId, Pipe) {
    let (made, files, offer) = Made::new(shape(Direction::Receive)).unwrap();
    let observer = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    (agent.add_tap(made, of, 64).unwrap(), observer)
}

#[test]
fn taps_mirrors_and_other_pipes_see_all_frames_from_then_on() {
    for case in 0..4 {
        let mut stand = Stand::direct();
        let mut observer = None;
        let (far, ids) = (stand.ports.1, stand.ids);
        let tapped = [Tapped::Port(stand.ports.0), Tapped::Pipe(ids.0), Tapped::Pipe(ids.1)];
        let mirror = match tapped.get(case) {
            Some(&of) => {
                observer = Some(tap(&mut stand.agent, of));
                None
            }
            None => Some(stand.agent.add_mirror(far).unwrap()),
        };
        stand.agent.turn();
        assert_eq!(stand.receive(), []);
        for number in 0..10 {
            stand.send(number);
        }
        stand.agent.turn();
        stand.agent.turn();
        assert_eq!(stand.receive(), (0..10).collect::<Vec<_>>(), "{case}");
        if let Some((tap, mut observer)) = observer {
            assert_eq!(
                observer.frames().map(|mut frames| (0..).take_while(|_| frames.next().is_some()).count()),
                Ok(10)
            );
            stand.agent.remove_tap(tap);
        }
        mirror.into_iter().for_each(|mirror| drop(stand.agent.remove_port(mirror)));
        stand.go_direct();
    }
    // A second sender, and a second receiver.
    for (direction, last) in [(Direction::Send, true), (Direction::Receive, false)] {
        let mut stand = Stand::direct();
        let port = if last { stand.ports.0 } else { stand.ports.1 };
        let (id, mut other, _words) = open(&mut stand.agent, port, direction);
        stand.agent.turn();
        stand.send(0);
        assert_eq!(stand.receive(), []);
        if last {
            other.send(&frame(1, 64), BACK).unwrap();
            other.flush();
        }
        stand.agent.turn();
        stand.agent.turn();
        let got = stand.receive().len() + other.waiting_frames();
        assert_eq!(got, 1 + usize::from(last));
        stand.agent.close(id);
        stand.go_direct();
    }
}

/// Counts the frames that are there; 0 of a sender.
trait Waiting {
    fn waiting_frames(&mut self) -> usize;
}

impl Waiting for Pipe {
    fn waiting_frames(&mut self) -> usize {
        let Ok(mut frames) = self.frames() else { return 0 };
        (0..).take_while(|_| frames.next().is_some()).count()
    }
}

#[test]
fn a_side_that_ends_leaves_the_other_with_a_clear_end() {
    // The receiver goes. Frames that lay before it are lost with it, and the next one reads on.
    let mut stand = Stand::direct();
    stand.send(0);
    stand.agent.close(stand.ids.1);
    stand.send(1);
    let (id, receiver, _words) = open(&mut stand.agent, stand.ports.1, Direction::Receive);
    (stand.receiver, stand.ids.1) = (receiver, id);
    stand.agent.turn();
    assert_eq!(stand.receive(), [1]);
    stand.go_direct();
    // The sender goes. Its frames are received, and then those of the next one.
    stand.send(2);
    stand.send(3);
    stand.agent.close(stand.ids.0);
    let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
    let old = (std::mem::replace(&mut stand.sender, sender), std::mem::replace(&mut stand.ids.0, id));
    stand.send(4);
    stand.agent.turn();
    assert_eq!(old.0.ended(), Some(Errno::CONNRESET));
    assert_eq!(stand.receive(), [2, 3, 4]);
    stand.go_direct();
    // Both ends are told that the port has gone.
    stand.agent.remove_port(stand.ports.0);
    assert_eq!(stand.receiver.wait(PATIENCE), Err(Errno::NODEV));
    assert_eq!(stand.sender.wait_room(RING, PATIENCE), Err(Errno::NODEV));
}

/// A receiver has given back more of one sender's ring than it has received from the next.
#[test]
fn space_given_back_to_one_sender_is_not_another_ones() {
    let mut stand = Stand::direct();
    for number in 0..100 {
        stand.send(number);
    }
    assert_eq!(stand.receive().len(), 100);
    stand.agent.close(stand.ids.0);
    let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
    (stand.sender, stand.ids.0) = (sender, id);
    stand.agent.turn();
    assert_eq!(stand.receive(), []);
    stand.agent.turn();
    stand.accept();
    stand.agent.turn();
    assert!(stand.is_direct());
    // The receiver does not look until the ring is full.
    let mut sent = 0;
    while stand.sender.send(&frame(sent, 64), BACK).is_ok() {
        sent += 1;
        stand.sender.flush();
    }
    assert_eq!(sent, RING / 64);
    assert_eq!(stand.receive(), (0..sent).collect::<Vec<_>>());
}
