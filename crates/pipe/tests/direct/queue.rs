//! A link that changes its path, against a queue.
use super::lending::Loans;
use super::*;

/// Something that a program or the agent does.
#[derive(Clone, Debug)]
pub enum Step {
    Send(usize, bool),
    Flush,
    Turn,
    Receive(usize),
    Accept,
    Recall,
    Allow,
    Lend(usize),
    TakeBack(usize),
    FlushBack,
}

/// Weight of all steps together.
pub const STEPS_WEIGHT: u32 = 41;

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..9000usize, prop::bool::weighted(0.1)).prop_map(|(len, drop)| Step::Send(len, drop)),
        6 => (1..200usize, prop::bool::weighted(0.1)).prop_map(|(len, drop)| Step::Send(len, drop)),
        4 => Just(Step::Flush),
        5 => Just(Step::Turn),
        5 => (1usize..40).prop_map(Step::Receive),
        3 => Just(Step::Accept),
        1 => Just(Step::Recall),
        2 => Just(Step::Allow),
        4 => (1usize..40).prop_map(Step::Lend),
        4 => (1usize..40).prop_map(Step::TakeBack),
        1 => Just(Step::FlushBack),
    ]
}

/// Steps by which all that is under way arrives.
pub fn last_steps() -> impl Iterator<Item = Step> {
    let turns = (0..200).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Receive(100) });
    [Step::Flush, Step::TakeBack(usize::MAX), Step::FlushBack].into_iter().chain(turns)
}

/// A queue of frames, and counts of what the two programs did with them.
#[derive(Default)]
pub struct Model {
    frames: VecDeque<Vec<u8>>,
    count: u64,
    /// Bytes that were received.
    bytes: u64,
    dropped: u64,
    /// Frames and bytes that were sent to the peer.
    pub expected: (u64, u64),
    loans: Loans,
}

impl Model {
    /// Does a step of a program, or of an agent that passes frames on, and compares.
    pub fn step(&mut self, stand: &mut Stand, step: Step) -> Result<(), TestCaseError> {
        let Self { frames: model, count, bytes, dropped, expected, loans } = self;
        match step {
            Step::Send(len, is_dropped) => {
                *count += 1;
                let frame = frame(*count, len);
                match stand.sender.send(&frame, if is_dropped { DROP } else { BACK }) {
                    Ok(()) if is_dropped => *dropped += 1,
                    Ok(()) => {
                        *expected = (expected.0 + 1, expected.1 + frame.len() as u64);
                        model.push_back(frame);
                    }
                    Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                }
            }
            Step::Flush => stand.sender.flush(),
            Step::Turn => drop(stand.agent.turn()),
            Step::Accept => stand.accept(),
            Step::Recall => stand.agent.set_owner(stand.ids.1, Some(8)),
            Step::Allow => stand.agent.set_owner(stand.ids.1, Some(7)),
            Step::Lend(most) => {
                for _ in 0..most {
                    match stand.receiver.lend() {
                        Ok((at, length)) => {
                            loans.0.push_back((at, model.pop_front().unwrap()));
                            *bytes += u64::from(length);
                            prop_assert_eq!(usize::from(length), loans.0.back().unwrap().1.len());
                        }
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                    loans.check();
                }
            }
            Step::TakeBack(most) => {
                for _ in 0..most.min(loans.0.len()) {
                    loans.take_back(&mut stand.receiver);
                }
            }
            Step::FlushBack => {
                loans.check();
                stand.receiver.flush_back();
                prop_assert_eq!(stand.receiver.lent() > 0, !loans.0.is_empty());
            }
            Step::Receive(most) => {
                let frames = stand.receiver.frames();
                prop_assert_eq!(frames.as_ref().err() == Some(&Errno::BUSY), !loans.0.is_empty());
                let Ok(mut frames) = frames else { return Ok(()) };
                for _ in 0..most {
                    let Some(frame) = frames.next() else { break };
                    let expected: Option<Vec<u8>> = model.pop_front();
                    prop_assert_eq!(Some(frame.bytes()), expected.as_deref());
                    *bytes += frame.bytes().len() as u64;
                }
            }
        }
        Ok(())
    }

    /// Compares what has become of all that was sent.
    pub fn end(&self, stand: &mut Stand) -> Result<(), TestCaseError> {
        let Self { frames, bytes, dropped, expected, .. } = self;
        prop_assert!(frames.is_empty(), "{} frames are missing", frames.len());
        prop_assert_eq!(
            (stand.agent.violation(stand.ids.0), stand.agent.violation(stand.ids.1)),
            (None, None)
        );
        prop_assert_eq!(*bytes, expected.1);
        let [sent, received] = stand.counts();
        prop_assert_eq!((received.frames_received, received.bytes_received), *expected);
        prop_assert_eq!(
            (sent.frames_sent, sent.bytes_sent, sent.frames_dropped),
            (expected.0, expected.1, *dropped)
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Frames arrive whole, once and in order, whoever passes them on. Those that are lent stay as they are.
    #[test]
    fn a_link_that_changes_paths_is_a_queue(steps in prop::collection::vec(step(), 1..400)) {
        let (mut stand, mut model) = (Stand::new(), Model::default());
        for step in steps.into_iter().chain(last_steps()) {
            model.step(&mut stand, step)?;
        }
        model.end(&mut stand)?;
    }

    /// Whatever the sender writes into its words and its table, the receiver's library reads nothing outside and goes on.
    #[test]
    fn a_receiver_survives_any_sender(writes in prop::collection::vec((any::<u16>(), any::<u32>(), any::<bool>()), 0..60)) {
        let mut stand = Stand::direct();
        let mut producer = 0u64;
        for (at, value, is_index) in writes {
            if is_index {
                producer = producer.wrapping_add(u64::from(value % 9) * 64 + u64::from(value % 50 == 0));
                stand.words.0.store_u64(pipe_control::SEND_PRODUCER, producer, Ordering::Release);
            } else {
                let entry = if value % 4 == 0 { value } else { entry((value % 300) as u16, (value >> 30) as u16) };
                stand.words.0.store_u32(entry_offset(u64::from(at) * 64, RING), entry, Ordering::Relaxed);
            }
            if let Ok(mut frames) = stand.receiver.frames() {
                while let Some(frame) = frames.next() {
                    prop_assert!((14..=9216).contains(&frame.bytes().len()));
                    std::hint::black_box(frame.bytes().iter().fold(0u8, |sum, &byte| sum ^ byte));
                }
            }
            stand.agent.turn();
        }
        prop_assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
    }
}
