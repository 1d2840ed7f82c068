use super::*;
use crate::Cpu;

const LEN: usize = 64;

fn engine(plan: FaultPlan) -> Fault {
    Fault::new(Arc::new(Cpu::new()), plan)
}

/// A source and a destination per command.
struct Memory {
    src: Box<[u8; LEN]>,
    dst: Vec<[u8; LEN]>,
}

impl Memory {
    fn new(count: usize) -> Self {
        Self { src: Box::new([7; LEN]), dst: vec![[0; LEN]; count] }
    }

    fn commands(&mut self) -> Vec<Command> {
        let src_addr = self.src.as_ptr().expose_provenance() as u64;
        let first = self.dst.as_mut_ptr().expose_provenance();
        (0..self.dst.len())
            .map(|i| Command {
                request_type: CommandType::GeneralSend as u8,
                data_len: LEN as u32,
                src_addr,
                dst_addr: (first + i * LEN) as u64,
                entry_seq: i as u16,
                ..Default::default()
            })
            .collect()
    }
}

/// Submits all and reaps until nothing is in flight. Returns sequence and status of the completions of each
/// call of `reap`.
fn trace(pair: &mut dyn QueuePair, memory: &mut Memory) -> Vec<Vec<(u16, u8)>> {
    let commands = memory.commands();
    // SAFETY: the memory outlives the loop below, which waits for every command; the destinations are
    // disjoint.
    assert_eq!(unsafe { pair.submit(&commands) }, commands.len());
    let mut calls = Vec::new();
    while pair.in_flight() > 0 {
        let mut completions = [Command::default(); 32];
        let reaped = pair.reap(&mut completions);
        calls.push(completions[..reaped].iter().map(|c| (c.entry_seq, c.status)).collect());
    }
    calls
}

fn run(plan: FaultPlan, count: usize) -> (Vec<Vec<(u16, u8)>>, Memory) {
    let mut memory = Memory::new(count);
    let mut pair = engine(plan).queue_pair().unwrap();
    (trace(&mut *pair, &mut memory), memory)
}

const ALL: FaultPlan =
    FaultPlan { seed: 1, fail_per_mille: 100, delay_reaps_max: 5, reorder: true, dead_after: Some(900) };

#[test]
fn the_same_seed_does_the_same() {
    assert_eq!(run(ALL, 1000).0, run(ALL, 1000).0);
    assert_ne!(run(ALL, 1000).0, run(FaultPlan { seed: 2, ..ALL }, 1000).0);
}

#[test]
fn a_pair_does_the_same_whatever_others_do() {
    let plan = FaultPlan { dead_after: None, ..ALL };
    let alone = run(plan, 500).0;
    let engine = engine(plan);
    let mut first = engine.queue_pair().unwrap();
    let mut second = engine.queue_pair().unwrap();
    let other = trace(&mut *second, &mut Memory::new(500));
    assert_eq!(trace(&mut *first, &mut Memory::new(500)), alone);
    assert_ne!(other, alone, "pairs draw from different streams");
}

#[test]
fn fails_as_often_as_asked_and_leaves_every_kind_of_wreck() {
    let (calls, memory) = run(FaultPlan { fail_per_mille: 300, ..Default::default() }, 1000);
    let (mut untouched, mut partial) = (0, 0);
    for (seq, status) in calls.into_iter().flatten() {
        let copied = memory.dst[usize::from(seq)].iter().filter(|byte| **byte == 7).count();
        match CommandStatus::from_raw(status) {
            CommandStatus::Ok => assert_eq!(copied, LEN),
            CommandStatus::Failed if copied == 0 => untouched += 1,
            CommandStatus::Failed => partial += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((200..400).contains(&(untouched + partial)), "{untouched} + {partial} of 1,000");
    assert!(untouched > 50 && partial > 50, "{untouched} untouched, {partial} in part");
}

#[test]
fn dies_after_n_commands_of_all_pairs() {
    let engine = engine(FaultPlan { dead_after: Some(15), ..Default::default() });
    let failed = |calls: Vec<Vec<(u16, u8)>>| calls.into_iter().flatten().filter(|c| c.1 != 0).count();
    for failures in [0, 5, 10] {
        let mut memory = Memory::new(10);
        assert_eq!(failed(trace(&mut *engine.queue_pair().unwrap(), &mut memory)), failures);
        assert_eq!(memory.dst.iter().filter(|dst| dst[0] == 0).count(), failures, "a dead engine writes");
    }
}

#[test]
fn delays_keep_the_order_of_a_pair_and_reordering_does_not() {
    let order = |reorder| {
        let plan = FaultPlan { delay_reaps_max: 20, reorder, ..Default::default() };
        run(plan, 100).0.into_iter().flatten().map(|c| c.0).collect::<Vec<_>>()
    };
    assert!(order(false).is_sorted());
    let mut shuffled = order(true);
    assert!(!shuffled.is_sorted());
    shuffled.sort_unstable();
    assert!(shuffled.into_iter().eq(0..100));
}

#[test]
fn delays_are_bounded() {
    let plan = FaultPlan { delay_reaps_max: 3, ..Default::default() };
    let mut pair = engine(plan).queue_pair().unwrap();
    for _ in 0..200 {
        assert!(trace(&mut *pair, &mut Memory::new(1)).len() <= 4);
    }
}

#[test]
fn completions_of_two_pairs_overtake_each_other() {
    let engine = engine(FaultPlan { delay_reaps_max: 8, ..Default::default() });
    let mut pairs = [engine.queue_pair().unwrap(), engine.queue_pair().unwrap()];
    let mut memories = [Memory::new(1), Memory::new(1)];
    let overtaken = (0..100).filter(|_| {
        let calls = [0, 1].map(|i| trace(&mut *pairs[i], &mut memories[i]).len());
        calls[1] < calls[0]
    });
    assert!(overtaken.count() > 10);
}
