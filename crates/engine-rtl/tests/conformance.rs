//! The conformance suite for the simulated hardware. Without Verilator there is none: `make test` installs it; elsewhere
//! each test prints that it is skipped, unless PD_RTL_REQUIRED is set.

use pd_abi::{Command, CommandStatus, CommandType};
use pd_engine::{conformance, Engine};
use pd_engine_rtl::{Counts, Rtl};

fn engine() -> Option<Rtl> {
    match Rtl::new(None) {
        Ok(engine) => Some(engine),
        Err(error) if std::env::var_os("PD_RTL_REQUIRED").is_none() => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs one function of the suite, and looks at what went over the slot.
fn check(function: fn(&dyn Engine)) {
    let Some(engine) = engine() else { return };
    function(&engine);
    let Counts { refused, malformed, .. } = engine.counts();
    assert_eq!(
        (refused, malformed),
        (0, 0),
        "the card touched what no command names, or broke a rule of PCIe"
    );
}

macro_rules! suite {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(conformance::$name);
            }
        )*
    };
}

suite!(capability layout_echo depth depth_returns_one_by_one wrap_around batches order nothing
    every_size odd_alignments one_source_many_destinations
    bad_commands good_among_bad
    full_pair_blocks_no_other threads drop_in_flight
    random_against_model);

/// Commands that copy all of `source` to each part of `destination`.
fn copies(source: &[u8], destination: &mut [u8]) -> Vec<Command> {
    let (from, to) = (source.as_ptr().expose_provenance(), destination.as_mut_ptr().expose_provenance());
    let copy = |number| Command {
        request_type: CommandType::GeneralSend as u8,
        data_len: source.len() as u32,
        src_addr: from as u64,
        dst_addr: (to + number * source.len()) as u64,
        ..Command::default()
    };
    (0..destination.len() / source.len()).map(copy).collect()
}

/// A batch takes one write of a register, and the bytes cross the slot as packets.
#[test]
fn a_batch_is_one_doorbell() {
    const COMMANDS: usize = 64;
    const LEN: usize = 300;
    let Some(engine) = engine() else { return };
    let source = [0x5au8; LEN];
    let mut destination = vec![0u8; COMMANDS * LEN];
    let commands = copies(&source, &mut destination);
    let mut pair = engine.queue_pair().expect("a queue pair");
    let before = engine.counts();
    // SAFETY: source and destinations live until all completions are reaped below, and are disjoint.
    assert_eq!(unsafe { pair.submit(&commands) }, COMMANDS);
    let mut completions = [Command::default(); COMMANDS];
    while pair.in_flight() > 0 {
        let reaped = pair.reap(&mut completions);
        assert!(completions[..reaped].iter().all(|completion| completion.status == CommandStatus::Ok as u8));
        std::thread::yield_now();
    }
    let after = engine.counts();
    assert_eq!(after.register_writes - before.register_writes, 1);
    assert!(after.reads - before.reads > COMMANDS as u64, "a read of each payload, and of the entries");
    assert!(
        after.writes - before.writes > 2 * COMMANDS as u64,
        "two writes of each payload, and completions"
    );
    drop(pair);
    assert!(destination.iter().all(|byte| *byte == 0x5a));
}

/// A batch with nothing to copy is done before one with much that was submitted first; both are reaped, in order.
#[test]
fn a_later_batch_is_done_first() {
    const LEN: usize = 4096;
    const COPIES: usize = 16;
    let Some(engine) = engine() else { return };
    let source = [0x5au8; LEN];
    let mut destination = vec![0u8; COPIES * LEN];
    let copies = copies(&source, &mut destination);
    let mut pair = engine.queue_pair().expect("a queue pair");
    for _ in 0..50 {
        // SAFETY: source and destinations live until all completions are reaped below, and are disjoint.
        let accepted = unsafe { pair.submit(&copies) + pair.submit(&[Command::default()]) };
        assert_eq!(accepted, COPIES + 1);
        let mut statuses = Vec::new();
        let mut completions = [Command::default(); COPIES + 1];
        while pair.in_flight() > 0 {
            let reaped = pair.reap(&mut completions);
            statuses.extend(completions[..reaped].iter().map(|completion| completion.status));
            let Counts { refused, malformed, .. } = engine.counts();
            assert_eq!((refused, malformed), (0, 0));
        }
        let (last, first) = statuses.split_last().expect("completions");
        assert!(first.iter().all(|status| *status == CommandStatus::Ok as u8));
        assert_eq!(*last, CommandStatus::BadType as u8);
    }
}
