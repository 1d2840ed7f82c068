use std::num::NonZero;
use std::sync::OnceLock;

/// Whether spinning can help at all: another party may run at the same time.
pub fn spinning_allowed() -> bool {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get)) > 1
}

/// A bounded spin that learns: what it waited for came in time, spin as long again; it did not, spin
/// less next time. Never more than the limit, and never less than a sixteenth of it, so that it can
/// learn again when peers are quick.
#[derive(Clone, Debug)]
pub struct Spin {
    pauses_max: u32,
    pauses: u32,
}

impl Spin {
    /// Pauses that fit two cores and three parties (measured: more costs throughput, none too).
    pub const PAUSES_DEFAULT: u32 = 200;

    /// A spin of at most `pauses_max` pauses; none on a machine with one core.
    pub fn new(pauses_max: u32) -> Self {
        let pauses_max = if spinning_allowed() { pauses_max } else { 0 };
        Self { pauses_max, pauses: pauses_max }
    }

    /// Spins until `ready` says yes (true) or the bound is reached (false).
    pub fn until(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        for _ in 0..self.pauses {
            if ready() {
                self.pauses = self.pauses_max;
                return true;
            }
            std::hint::spin_loop();
        }
        self.pauses = (self.pauses / 2).max(self.pauses_max / 16);
        ready()
    }
}
