//! States of drivers, changed on their way to another driver by an attacker.
//!
//! A program has a seed and a number of steps, for a run that makes a state, and then changes. Another driver gets the changed state.
//! That driver refuses the state, or goes on: then no agent panics, and no more is held than there is. Clients do not go on, since their
//! streams may be broken.
use super::kernel;
use super::world::World;
use super::Guard;
use crate::takeover::readable;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;

/// Take-overs in a million steps before the state is made.
const TAKE_OVERS: u64 = 3000;
/// Steps for each unit of a program's second word.
const STEPS: u64 = 16;
/// Most changes of a program.
const CHANGES_MAX: usize = 16;
/// Turns of the driver that goes on with a changed state.
const TURNS: usize = 200;
/// Bytes of a change: what it does, and two words.
const CHANGE_BYTES: usize = 5;

/// Runs a program. Returns whether another driver went on with the state; `None` if there was none.
pub fn run(program: &[u8]) -> Option<bool> {
    let (&[seed, steps], changes) = program.split_first_chunk()?;
    let _guard = Guard(seed.into());
    let mut world = World::with_take_overs(seed.into(), TAKE_OVERS);
    world.advance(u64::from(steps) * STEPS);
    kernel::with(|kernel| kernel.faults.clear());
    let shake = |bytes: &mut Vec<u8>, fds: &mut Vec<OwnedFd>| {
        changes.chunks_exact(CHANGE_BYTES).take(CHANGES_MAX).for_each(|change| shaken(change, bytes, fds));
    };
    let goes_on = world.give_to_another(shake)?;
    if goes_on {
        world.agents_go_on(TURNS);
    }
    Some(goes_on)
}

/// Applies a change to a state.
fn shaken(change: &[u8], bytes: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) {
    let word = |at: usize| usize::from(u16::from_le_bytes([change[at], change[at + 1]]));
    let (one, other) = (word(1), word(3));
    let (at, fd) = (one.checked_rem(bytes.len()), one.checked_rem(fds.len()));
    match (change[0] % 9, at, fd) {
        (0, Some(at), _) => bytes[at] ^= other as u8,
        (1, Some(at), _) => bytes.insert(at, other as u8),
        (2, Some(at), _) => drop(bytes.remove(at)),
        (3, Some(at), _) => bytes.truncate(at),
        (4, _, Some(fd)) => drop(fds.remove(fd)),
        (5, _, Some(fd)) => {
            let last = other % fds.len();
            fds.swap(fd, last);
        }
        (6, _, Some(fd)) => fds[fd] = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
        (7 | 8, ..) => {
            let Ok(mut state) = readable::from_bytes(bytes) else { return };
            readable::change_leaf(&mut state, one, other);
            // A value that the field cannot have has no bytes.
            if let Ok(changed) = readable::to_bytes(state) {
                *bytes = changed;
            }
        }
        _ => {}
    }
}
