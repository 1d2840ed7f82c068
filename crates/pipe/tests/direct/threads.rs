//! Programs and an agent in threads that sleep.
use super::*;

/// Question of a pipe for the memory of the other end, with the way of the answer.
pub type Question = (PipeId, Sender<Option<PeerOffer>>);

/// A way to the thread of the agent.
#[derive(Debug)]
struct Far(PipeId, Sender<Question>);

impl Broker for Far {
    fn peer(&mut self) -> Option<PeerOffer> {
        let (reply, answer) = channel();
        self.1.send((self.0, reply)).ok()?;
        answer.recv().ok()?
    }
    fn is_alive(&self) -> bool {
        true
    }
}

/// Runs an agent that answers questions and changes the path all the time until `stop`. Sets `enough` after 40 changes.
pub fn change_paths(
    agent: &mut Agent,
    ids: (PipeId, PipeId),
    asked: &Receiver<Question>,
    [enough, stop]: [&AtomicBool; 2],
) {
    let (mut changes, mut was, mut turns) = (0, false, 0);
    while !stop.load(Ordering::Acquire) {
        while let Ok((id, reply)) = asked.try_recv() {
            let _ = reply.send(agent.peer(id).ok());
        }
        let is_direct = agent.is_direct(ids.0);
        if is_direct != was {
            (changes, was, turns) = (changes + 1, is_direct, 0);
            enough.fetch_or(changes >= 40, Ordering::Release);
            // Allowed at once, and recalled after some turns.
            agent.set_owner(ids.1, Some(7));
        }
        turns += 1;
        if is_direct && turns == 5 {
            agent.set_owner(ids.1, Some(8));
        }
        if !agent.turn() {
            agent.wait(Duration::from_micros(300));
        }
    }
}

/// Has two programs ask an agent in another thread. Returns its end of the questions.
pub fn ask_from_afar(ids: (PipeId, PipeId), sender: &mut Pipe, receiver: &mut Pipe) -> Receiver<Question> {
    let (ask, asked) = channel();
    sender.set_broker(Box::new(Far(ids.0, ask.clone())));
    receiver.set_broker(Box::new(Far(ids.1, ask)));
    asked
}

/// Two programs and an agent, each in a thread that sleeps, while the path changes all the time.
#[test]
fn programs_that_sleep_lose_no_frame_while_the_path_changes() {
    let stand = Stand::new();
    let Stand { mut agent, ids, mut sender, mut receiver, .. } = stand;
    let asked = ask_from_afar(ids, &mut sender, &mut receiver);
    let (enough, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (enough, stop) = (&enough, &stop);
    std::thread::scope(|scope| {
        let agent = scope.spawn(move || {
            change_paths(&mut agent, ids, &asked, [enough, stop]);
            agent.count_links();
            [ids.0, ids.1].map(|id| agent.counts(id).unwrap())
        });
        let sender = scope.spawn(move || {
            let mut count = 0;
            while !enough.load(Ordering::Acquire) {
                while let Err(errno) = sender.send(&frame(count, 64 + (count % 3) as usize * 100), BACK) {
                    assert_eq!(errno, Errno::AGAIN);
                    sender.wait_room(RING / 2, PATIENCE).unwrap();
                }
                count += 1;
                if count % 50 == 0 {
                    sender.flush();
                }
                if count % 4096 == 0 {
                    sender.wait_room(RING, PATIENCE).unwrap();
                }
            }
            while sender.send(&frame(u64::MAX, 64), BACK).is_err() {
                sender.wait_room(RING / 2, PATIENCE).unwrap();
            }
            sender.wait_room(RING, PATIENCE).unwrap();
            count
        });
        let (mut expected, mut is_over) = (0, false);
        while !is_over {
            receiver.wait(PATIENCE).unwrap();
            let mut frames = receiver.frames().unwrap();
            while let Some(frame) = frames.next() {
                is_over = number(frame.bytes()) == u64::MAX;
                if !is_over {
                    assert_eq!(number(frame.bytes()), expected);
                    expected += 1;
                }
            }
        }
        assert_eq!(sender.join().unwrap(), expected);
        stop.store(true, Ordering::Release);
        let [sent, received] = agent.join().unwrap();
        assert_eq!((sent.frames_sent, received.frames_received), (expected + 1, expected + 1));
    });
}
