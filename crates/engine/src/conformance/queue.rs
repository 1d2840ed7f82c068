//! The queues: acceptance, depth, and completions.

use super::memory::Memory;
use super::{drain, execute, unless_miri};
use crate::Engine;
use pd_abi::{limits::QUEUE_DEPTH, Command, CommandStatus, CommandType};

const LEN: usize = 64;

/// Commands that copy `LEN` bytes each to a destination of their own, numbered in `entry_seq`.
fn commands(memory: &Memory, count: usize) -> Vec<Command> {
    (0..count)
        .map(|i| Command { entry_seq: i as u16, ..memory.copy(0, LEN * (1 + i % QUEUE_DEPTH), LEN) })
        .collect()
}

fn memory() -> Memory {
    Memory::new(LEN * (1 + QUEUE_DEPTH))
}

/// Checks that the reported capability is valid and does not change.
pub fn capability(engine: &dyn Engine) {
    let capability = engine.capability();
    assert!(!capability.name.is_empty());
    assert!(capability.chunk_bytes_max > 0);
    assert_eq!(capability.queue_depth, QUEUE_DEPTH);
    let _pair = engine.queue_pair().expect("a queue pair");
    assert_eq!(engine.capability(), capability);
}

/// Every field but the type and the status comes back as it went in.
pub fn layout_echo(engine: &dyn Engine) {
    let memory = memory();
    let mut pair = engine.queue_pair().expect("a queue pair");
    let good = Command {
        status: 0xa1,
        cid: 0xb2b3,
        conn_id: 0xc4c5_c6c7,
        table_id: 0xd8,
        reserved: 0xd9,
        entry_seq: 0xfffe,
        ..memory.copy(0, 64, 33)
    };
    let bad = Command { data_len: 0, ..good };
    // SAFETY: `memory` outlives the pair and the copy is within it; the other command touches nothing.
    let completions = unsafe { execute(engine, &mut *pair, &[good, bad]) };
    assert_eq!(completions.len(), 2);
    for (command, status) in [(good, CommandStatus::Ok), (bad, CommandStatus::BadLength)] {
        let completion =
            Command { request_type: CommandType::GeneralCompleted as u8, status: status as u8, ..command };
        assert!(completions.contains(&completion), "{completion:?} is not among {completions:?}");
    }
}

/// Exactly the depth is accepted without a reap: a prefix of the slice, then nothing.
pub fn depth(engine: &dyn Engine) {
    let memory = memory();
    let commands = commands(&memory, QUEUE_DEPTH + 1);
    let mut pair = engine.queue_pair().expect("a queue pair");
    assert_eq!(pair.in_flight(), 0);
    // SAFETY: `memory` outlives the pair, and each accepted command has its own destination in it.
    unsafe {
        assert_eq!(pair.submit(&commands[..QUEUE_DEPTH - 24]), QUEUE_DEPTH - 24);
        assert_eq!(pair.submit(&commands[QUEUE_DEPTH - 24..]), 24);
        assert_eq!(pair.submit(&commands[QUEUE_DEPTH..]), 0);
    }
    assert_eq!(pair.in_flight(), QUEUE_DEPTH);
    let mut seen: Vec<u16> =
        drain(engine, &mut *pair, QUEUE_DEPTH).iter().map(|completion| completion.entry_seq).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..QUEUE_DEPTH as u16));
}

/// Each reaped completion makes room for one command, no more.
pub fn depth_returns_one_by_one(engine: &dyn Engine) {
    let memory = memory();
    let mut commands = commands(&memory, QUEUE_DEPTH);
    let mut pair = engine.queue_pair().expect("a queue pair");
    // SAFETY: `memory` outlives the pair, and each command has its own destination in it.
    assert_eq!(unsafe { pair.submit(&commands) }, QUEUE_DEPTH);
    let mut completion = [Command::default()];
    let mut turns = 0;
    while turns < 10 {
        if pair.reap(&mut completion) == 0 {
            std::thread::yield_now();
            continue;
        }
        // The destination that has just become free is used again.
        commands[0] = Command { request_type: CommandType::GeneralSend as u8, ..completion[0] };
        commands[1] = commands[0];
        // SAFETY: as above; the second of the two is not accepted.
        assert_eq!(unsafe { pair.submit(&commands[..2]) }, 1);
        turns += 1;
    }
    assert_eq!(drain(engine, &mut *pair, 7).len(), QUEUE_DEPTH);
}

/// Many times around the queues, with batches that fit no boundary.
pub fn wrap_around(engine: &dyn Engine) {
    let memory = memory();
    let mut pair = engine.queue_pair().expect("a queue pair");
    let all = commands(&memory, unless_miri(40, 3) * QUEUE_DEPTH);
    for batch in all.chunks(601) {
        // SAFETY: `memory` outlives the pair; the destinations of one batch are disjoint.
        assert_eq!(unsafe { pair.submit(batch) }, batch.len());
        let mut seen: Vec<u16> = drain(engine, &mut *pair, 97).iter().map(|c| c.entry_seq).collect();
        seen.sort_unstable();
        let mut sent: Vec<u16> = batch.iter().map(|c| c.entry_seq).collect();
        sent.sort_unstable();
        assert_eq!(seen, sent, "each completion comes once");
    }
}

/// Batches of every size up to the depth, reaped into room of every size.
pub fn batches(engine: &dyn Engine) {
    let memory = memory();
    let mut pair = engine.queue_pair().expect("a queue pair");
    let commands = commands(&memory, QUEUE_DEPTH);
    for size in (1..=QUEUE_DEPTH).step_by(unless_miri(1, 173)) {
        // SAFETY: `memory` outlives the pair; the destinations are disjoint.
        assert_eq!(unsafe { pair.submit(&commands[..size]) }, size);
        assert_eq!(pair.in_flight(), size);
        assert_eq!(drain(engine, &mut *pair, QUEUE_DEPTH + 1 - size).len(), size);
    }
}

/// An ordered engine completes in the order of submission, errors included.
pub fn order(engine: &dyn Engine) {
    if !engine.capability().ordered {
        return;
    }
    let memory = memory();
    let mut pair = engine.queue_pair().expect("a queue pair");
    let mut commands = commands(&memory, QUEUE_DEPTH);
    for command in commands.iter_mut().step_by(5) {
        command.data_len = 0;
    }
    // SAFETY: `memory` outlives the pair; the destinations are disjoint.
    let completions = unsafe { execute(engine, &mut *pair, &commands) };
    assert!(completions.iter().map(|c| c.entry_seq).eq(0..QUEUE_DEPTH as u16));
}

/// Empty slices and empty queues: nothing happens, and nothing beyond the count is written.
pub fn nothing(engine: &dyn Engine) {
    let memory = memory();
    let mut pair = engine.queue_pair().expect("a queue pair");
    let mark = Command { cid: 0x5a5a, ..Default::default() };
    let mut room = [mark; 8];
    assert_eq!(pair.reap(&mut []), 0);
    assert_eq!(pair.reap(&mut room), 0);
    // SAFETY: no commands.
    assert_eq!(unsafe { pair.submit(&[]) }, 0);
    assert_eq!(pair.in_flight(), 0);
    // SAFETY: `memory` outlives the pair; the destinations are disjoint.
    assert_eq!(unsafe { pair.submit(&commands(&memory, 3)) }, 3);
    assert_eq!(pair.reap(&mut []), 0);
    assert_eq!(pair.in_flight(), 3);
    while pair.in_flight() > 0 {
        let before = pair.in_flight();
        room = [mark; 8];
        let reaped = pair.reap(&mut room);
        assert!(reaped <= before && room[reaped..].iter().all(|entry| *entry == mark));
        std::thread::yield_now();
    }
}
