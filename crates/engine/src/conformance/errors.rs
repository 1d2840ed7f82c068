//! Commands that cannot be carried out: an error status, and nothing else happens.

use super::execute;
use super::memory::Memory;
use crate::Engine;
use pd_abi::{Command, CommandStatus};

const LEN: usize = 100;

/// Returns ways to spoil a command, with their status.
fn spoiled(good: Command, chunk_bytes_max: u32) -> Vec<(Command, CommandStatus)> {
    use CommandStatus::{BadAddress, BadLength, BadType};
    let mut all = vec![
        (Command { data_len: 0, ..good }, BadLength),
        (Command { data_len: u32::MAX, ..good }, BadLength),
        (Command { src_addr: 0, ..good }, BadAddress),
        (Command { dst_addr: 0, ..good }, BadAddress),
    ];
    if let Some(data_len) = chunk_bytes_max.checked_add(1) {
        all.push((Command { data_len, ..good }, BadLength));
    }
    all.extend([0, 2, 3, 0x81, 0xff].map(|request_type| (Command { request_type, ..good }, BadType)));
    all
}

/// Each bad command completes with its error and writes nothing.
pub fn bad_commands(engine: &dyn Engine) {
    let memory = Memory::new(2 * LEN);
    let before = memory.bytes(0, 2 * LEN);
    let mut pair = engine.queue_pair().expect("a queue pair");
    for (bad, status) in spoiled(memory.copy(0, LEN, LEN), engine.capability().chunk_bytes_max) {
        // SAFETY: the engine must not touch memory for it.
        let completions = unsafe { execute(engine, &mut *pair, &[bad]) };
        assert_eq!(completions.len(), 1);
        assert_eq!(CommandStatus::from_raw(completions[0].status), status, "{bad:?}");
        assert_eq!(memory.bytes(0, 2 * LEN), before, "{bad:?} wrote something");
    }
}

/// Bad commands stop none of the good ones before, between and after them.
pub fn good_among_bad(engine: &dyn Engine) {
    let chunk = engine.capability().chunk_bytes_max;
    let memory = Memory::new(64 * LEN);
    let mut pair = engine.queue_pair().expect("a queue pair");
    let mut commands = Vec::new();
    let mut expected = Vec::new();
    for (bad, status) in spoiled(memory.copy(0, 0, LEN), chunk) {
        let good = memory.copy(0, (1 + commands.len()) * LEN, LEN);
        commands.extend([good, bad]);
        expected.extend([CommandStatus::Ok, status]);
    }
    for (number, command) in commands.iter_mut().enumerate() {
        command.entry_seq = number as u16;
    }
    // SAFETY: `memory` outlives the good ones, and their destinations are disjoint.
    let completions = unsafe { execute(engine, &mut *pair, &commands) };
    assert_eq!(completions.len(), commands.len());
    for completion in completions {
        let number = usize::from(completion.entry_seq);
        assert_eq!(CommandStatus::from_raw(completion.status), expected[number], "{:?}", commands[number]);
        if expected[number] == CommandStatus::Ok {
            assert_eq!(memory.bytes((1 + number) * LEN, LEN), memory.bytes(0, LEN));
        }
    }
}
