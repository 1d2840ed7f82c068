//! Several queue pairs, several threads, and the end of a pair.

use super::memory::{pattern, Memory};
use super::{drain, execute, unless_miri};
use crate::Engine;
use pd_abi::{limits::QUEUE_DEPTH, CommandStatus};
use std::thread;
use std::time::Duration;

const LEN: usize = 128;

/// A pair that is full and not reaped leaves another one its whole depth.
pub fn full_pair_blocks_no_other(engine: &dyn Engine) {
    let memory = Memory::new((1 + 2 * QUEUE_DEPTH) * LEN);
    let commands: Vec<_> = (1..=2 * QUEUE_DEPTH).map(|i| memory.copy(0, i * LEN, LEN)).collect();
    let (of_first, of_second) = commands.split_at(QUEUE_DEPTH);
    let mut first = engine.queue_pair().expect("a queue pair");
    let mut second = engine.queue_pair().expect("a second queue pair");
    // SAFETY: `memory` outlives both pairs, and all destinations are disjoint.
    unsafe {
        assert_eq!(first.submit(of_first), QUEUE_DEPTH);
        assert_eq!(second.submit(of_second), QUEUE_DEPTH);
    }
    assert_eq!(drain(engine, &mut *second, 50).len(), QUEUE_DEPTH);
    assert_eq!(first.in_flight(), QUEUE_DEPTH);
    assert_eq!(drain(engine, &mut *first, 50).len(), QUEUE_DEPTH);
}

/// Pairs on several threads at once, made on one thread, used on another. Each gets its own completions and
/// its own bytes, which a third thread then sees.
pub fn threads(engine: &dyn Engine) {
    thread::scope(|scope| {
        for number in 0..4u16 {
            let mut pair = engine.queue_pair().expect("a queue pair per thread");
            scope.spawn(move || {
                let mut memory = Memory::new((1 + QUEUE_DEPTH) * LEN);
                for round in 0..unless_miri(50, 1) {
                    let mark = [(round as u8) ^ (number as u8) << 6; LEN];
                    memory.fill(0, &mark);
                    let commands: Vec<_> = (1..=QUEUE_DEPTH)
                        .map(|i| pd_abi::Command { cid: number, ..memory.copy(0, i * LEN, LEN) })
                        .collect();
                    // SAFETY: `memory` outlives the commands, and their destinations are disjoint.
                    let completions = unsafe { execute(engine, &mut *pair, &commands) };
                    assert_eq!(completions.len(), QUEUE_DEPTH);
                    assert!(completions.iter().all(|completion| completion.cid == number));
                    memory = thread::scope(|scope| {
                        let reader = scope.spawn(move || {
                            let bytes = memory.bytes(LEN, QUEUE_DEPTH * LEN);
                            assert!(bytes.chunks(LEN).all(|copy| *copy == mark));
                            memory
                        });
                        reader.join().expect("the bytes are there")
                    });
                }
            });
        }
    });
}

/// Once a pair is dropped its commands write nothing any more, and the engine still works.
pub fn drop_in_flight(engine: &dyn Engine) {
    let mut memory = Memory::new((1 + QUEUE_DEPTH) * LEN);
    for reaps in [0, 1, 3] {
        let commands: Vec<_> = (1..=QUEUE_DEPTH).map(|i| memory.copy(0, i * LEN, LEN)).collect();
        let mut pair = engine.queue_pair().expect("a queue pair");
        // SAFETY: `memory` outlives the pair, and the destinations are disjoint.
        assert_eq!(unsafe { pair.submit(&commands) }, QUEUE_DEPTH);
        for _ in 0..reaps {
            pair.reap(&mut [pd_abi::Command::default(); 5]);
        }
        drop(pair);
        let after = vec![0xdd; QUEUE_DEPTH * LEN];
        memory.fill(LEN, &after);
        thread::sleep(Duration::from_millis(10));
        assert!(memory.bytes(LEN, after.len()) == after, "written after the pair was dropped");
    }
    let mut pair = engine.queue_pair().expect("a queue pair");
    // SAFETY: `memory` outlives the pair.
    let completions = unsafe { execute(engine, &mut *pair, &[memory.copy(0, LEN, LEN)]) };
    assert_eq!(CommandStatus::from_raw(completions[0].status), CommandStatus::Ok);
    assert!(memory.bytes(LEN, LEN).into_iter().eq((0..LEN).map(pattern)));
}
