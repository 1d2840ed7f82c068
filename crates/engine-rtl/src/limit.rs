//! Limits of PCI Express: the most payload per second that a copy can move over a link.
//!
//! The model is that of pcie-bench (SIGCOMM 2018). Of the bits on the wire ([`Link::raw_gbit_per_s`], after the
//! 128b/130b code) three things are taken that are not transaction layer packets (TLPs): acknowledgements and
//! flow control updates, 8 bytes each, at the intervals that the specification recommends, and the clock
//! compensation of 4 symbols in 1,538 ([`Link::tlp_gbit_per_s`]). What is left carries TLPs. Each has, besides its
//! payload, 8 bytes of framing, sequence number and link CRC, and a header:
//!
//! | TLP | header | together |
//! |---|---|---|
//! | memory read request (`MRd`), 64-bit address | 16 | 24 |
//! | memory write request (`MWr`), 64-bit address | 16 | 24 |
//! | completion with data (`CplD`) | 12 | 20 |
//!
//! A copy reads in requests of at most `mrrs` bytes, answered by completions of at most `mps` bytes, and writes in
//! requests of at most `mps` bytes. The two directions of a link are independent: read requests share the direction to
//! the host (TX) with all writes; completions, and the doorbell, come the other way (RX). So each byte
//! crosses twice, but once in each direction, and TX is the tighter one. Aligned addresses are assumed throughout.

/// Framing, sequence number and link CRC of a TLP.
const FRAMING_BYTES: u32 = 8;
/// Bytes of an `MRd` or `MWr` besides payload.
pub const REQUEST_BYTES: u32 = FRAMING_BYTES + 16;
/// Bytes of a `CplD` besides payload.
pub const COMPLETION_BYTES: u32 = FRAMING_BYTES + 12;
/// An acknowledgement or a flow control update with its framing.
const DLLP_BYTES: f64 = 8.0;
/// Skip ordered sets: symbols taken, of so many.
const SKIP: f64 = 4.0 / 1538.0;
/// A message signalled interrupt and a doorbell are writes of one double word.
pub const WORD_BYTES: u32 = 4;
/// An entry of a submission or completion queue.
pub const COMMAND_BYTES: u32 = std::mem::size_of::<pd_abi::Command>() as u32;

/// Speed of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// 8 GT/s.
    Gen3,
    /// 16 GT/s.
    Gen4,
    /// 32 GT/s.
    Gen5,
}

/// Number of lanes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// 8.
    X8,
    /// 16.
    X16,
}

/// Equal links and their configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Speed.
    pub generation: Generation,
    /// Width of each link.
    pub lanes: Lanes,
    /// Links side by side: the paper's card has two.
    pub links: u32,
    /// Most payload of a write or a completion, bytes: 128, 256, 512.
    pub mps: u32,
    /// Most bytes of a read request.
    pub mrrs: u32,
}

/// Command traffic that goes with the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commands {
    /// None: the copy alone.
    None,
    /// A doorbell, a fetch, a batch of completions and an interrupt for each group of this many commands.
    Batches(u32),
}

impl Link {
    /// The paper's: two links of 8 lanes of the third generation.
    pub const GEN3_2X8: Self = Self::new(Generation::Gen3, Lanes::X8, 2);
    /// A link of 16 lanes of the third generation.
    pub const GEN3_X16: Self = Self::new(Generation::Gen3, Lanes::X16, 1);
    /// Two links of 8 lanes of the fourth generation.
    pub const GEN4_2X8: Self = Self::new(Generation::Gen4, Lanes::X8, 2);
    /// A link of 16 lanes of the fifth generation.
    pub const GEN5_X16: Self = Self::new(Generation::Gen5, Lanes::X16, 1);

    /// Links with the payload of 256 and the read requests of 512 bytes that hosts configure.
    pub const fn new(generation: Generation, lanes: Lanes, links: u32) -> Self {
        Self { generation, lanes, links, mps: 256, mrrs: 512 }
    }

    /// Bits per second on the wire, each direction, all links, after the 128b/130b code.
    pub fn raw_gbit_per_s(&self) -> f64 {
        let giga_transfers = match self.generation {
            Generation::Gen3 => 8.0,
            Generation::Gen4 => 16.0,
            Generation::Gen5 => 32.0,
        };
        giga_transfers * 128.0 / 130.0 * f64::from(self.width() * self.links)
    }

    /// Returns what is left of that for TLPs.
    pub fn tlp_gbit_per_s(&self) -> f64 {
        self.raw_gbit_per_s() * (1.0 - 2.0 * DLLP_BYTES / self.update_interval_bytes() - SKIP)
    }

    /// Symbols between acknowledgements, and between flow control updates: what the specification recommends is
    /// `(mps + 28) * factor / lanes + 115`, rounded down (tables 2-48 and 3-9 of revision 5).
    fn update_interval_bytes(&self) -> f64 {
        let factor = match (self.lanes, self.mps) {
            (Lanes::X8, ..=256) => 2.5,
            (Lanes::X8, _) => 1.0,
            (Lanes::X16, ..=256) => 3.0,
            (Lanes::X16, _) => 2.0,
        };
        (f64::from(self.mps + 28) * factor / f64::from(self.width()) + 115.0).floor()
    }

    fn width(&self) -> u32 {
        match self.lanes {
            Lanes::X8 => 8,
            Lanes::X16 => 16,
        }
    }

    /// Bytes of TLPs that writing `len` bytes takes.
    fn write_bytes(&self, len: u32) -> u32 {
        len + len.div_ceil(self.mps) * REQUEST_BYTES
    }

    /// Bytes of the requests that reading `len` bytes takes.
    fn read_request_bytes(&self, len: u32) -> u32 {
        len.div_ceil(self.mrrs) * REQUEST_BYTES
    }

    /// Bytes of the completions that reading `len` bytes takes.
    fn completion_bytes(&self, len: u32) -> u32 {
        len + len.div_ceil(self.mps) * COMPLETION_BYTES
    }

    /// Most payload that can be read, in requests of `len` bytes and more.
    pub fn read_gbit_per_s(&self, len: u32) -> f64 {
        self.payload(len, self.completion_bytes(len).max(self.read_request_bytes(len)).into())
    }

    /// Most payload that can be written.
    pub fn write_gbit_per_s(&self, len: u32) -> f64 {
        self.payload(len, self.write_bytes(len).into())
    }

    /// Most payload that can be copied from host memory to host memory by commands of `len` bytes.
    pub fn copy_gbit_per_s(&self, len: u32, commands: Commands) -> f64 {
        let mut tx = f64::from(self.write_bytes(len) + self.read_request_bytes(len));
        let mut rx = f64::from(self.completion_bytes(len));
        if let Commands::Batches(size) = commands {
            let entries = size * COMMAND_BYTES;
            let word = REQUEST_BYTES + WORD_BYTES;
            let per = f64::from(size);
            tx += f64::from(self.read_request_bytes(entries) + self.write_bytes(entries) + word) / per;
            rx += f64::from(self.completion_bytes(entries) + word) / per;
        }
        self.payload(len, tx.max(rx))
    }

    fn payload(&self, len: u32, bytes_on_link: f64) -> f64 {
        self.tlp_gbit_per_s() * f64::from(len) / bytes_on_link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(value: f64, digits: i32) -> f64 {
        let scale = 10f64.powi(digits);
        (value * scale).round() / scale
    }

    #[test]
    fn tlp_rates_are_those_published() {
        for (links, published) in [(1, 57.9), (2, 115.8)] {
            let link = Link::new(Generation::Gen3, Lanes::X8, links);
            assert_eq!(rounded(link.tlp_gbit_per_s(), 1), published);
        }
        assert_eq!(rounded(Link::GEN3_X16.tlp_gbit_per_s(), 1), 113.7);
    }

    #[test]
    fn reads_writes_and_copies_of_4_kb_are_those_published() {
        let one = Link::new(Generation::Gen3, Lanes::X8, 1);
        for (link, read, write, copy) in [
            (one, 53.7, 52.9, 50.7),
            (Link::GEN3_2X8, 107.4, 105.8, 101.5),
            (Link::GEN3_X16, 105.5, 104.0, 99.7),
        ] {
            assert_eq!(rounded(link.read_gbit_per_s(4096), 1), read);
            assert_eq!(rounded(link.write_gbit_per_s(4096), 1), write);
            assert_eq!(rounded(link.copy_gbit_per_s(4096, Commands::None), 1), copy);
        }
        assert_eq!(rounded(Link::GEN4_2X8.copy_gbit_per_s(4096, Commands::None), 0), 203.0);
        let fast = Link::GEN5_X16;
        assert_eq!(rounded(fast.read_gbit_per_s(4096), 0), 422.0);
        assert_eq!(rounded(fast.write_gbit_per_s(4096), 0), 416.0);
        assert_eq!(rounded(fast.copy_gbit_per_s(4096, Commands::None), 0), 399.0);
    }

    #[test]
    fn unbatched_commands_and_small_payloads_cost_what_is_published() {
        for (len, published) in [(4096, 99.2), (1024, 92.9), (64, 33.7)] {
            assert_eq!(rounded(Link::GEN3_2X8.copy_gbit_per_s(len, Commands::Batches(1)), 1), published);
        }
        let small = Link { mps: 128, ..Link::GEN3_2X8 };
        assert_eq!(rounded(small.copy_gbit_per_s(4096, Commands::None), 1), 91.8);
    }

    #[test]
    fn batches_cost_less_the_larger_they_are() {
        let at = |commands| Link::GEN3_2X8.copy_gbit_per_s(1024, commands);
        assert!(at(Commands::Batches(1)) < at(Commands::Batches(4)));
        assert!(at(Commands::Batches(4)) < at(Commands::Batches(16)));
        assert!(at(Commands::Batches(16)) < at(Commands::None));
    }
}
