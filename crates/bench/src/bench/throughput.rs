//! `throughput`: message sizes from 64 B to 4 MB over one connection (Figures 10 and 11). As in Figure 11
//! the sending container has one core; the receiver and the driver may use all.
//!
//! Further rows have 64 KB over 16 connections. Others have both ends on one core, on a core each, and where the scheduler puts them, all
//! blocking and all spinning. The last ones are on a machine without hugepages.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::stream_cell::StreamCell;
use super::{Bench, Settings};
use crate::catalogue::{Conditions, Cores, Placement, Scheme, Waiting, LIMITS, PEERS};
use crate::row::{Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const SIZES: [usize; 9] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [usize; 4] = [64, 1 << 10, 64 << 10, 1 << 20];
/// The size with which conditions and numbers of connections differ.
const SIZE: usize = 64 << 10;
/// Connections, and the schemes that have several.
const CONNECTIONS: usize = 16;
const SEVERAL: [Scheme; 7] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::TcpLoopback,
    Scheme::Unix,
];
/// Sizes without hugepages. No scheme has any then.
const SIZES_SMALL_PAGES: [usize; 3] = [1 << 10, 64 << 10, 1 << 20];
/// Schemes whose memory may be of hugepages, and schemes to compare with.
const HUGE: [Scheme; 7] = [
    Scheme::Pipedevice,
    Scheme::PipedeviceDefault,
    Scheme::PipedeviceDirect,
    Scheme::Tcp,
    Scheme::TcpTuned,
    Scheme::Ucx,
    Scheme::Libfabric,
];

/// Cells that are compared with each other.
struct Group {
    schemes: Vec<Scheme>,
    message_bytes: usize,
    connections: usize,
    cores: Cores,
    also: Params,
}

fn group(schemes: &[Scheme], message_bytes: usize) -> Group {
    let cores = Cores { send: Some(0), recv: None };
    Group { schemes: schemes.to_vec(), message_bytes, connections: 1, cores, also: Vec::new() }
}

fn run_groups(
    groups: Vec<Group>,
    under: Conditions,
    settings: &Settings,
    signals: &Signals,
) -> Result<Vec<Row>> {
    let mut schemes: Vec<Scheme> = groups.iter().flat_map(|group| group.schemes.clone()).collect();
    schemes.sort_unstable();
    schemes.dedup();
    let mut stand = Stand::set_up_under(under, &schemes, Memory::FEW, &settings.engine, signals)?;
    let cells: usize = groups.iter().map(|group| group.schemes.len()).sum();
    let bar = progress::bar((cells * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for group in groups {
        let cells = group.schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(StreamCell {
                connections: group.connections,
                cores: group.cores,
                also: group.also.clone(),
                ..StreamCell::of(scheme, group.message_bytes, settings.round_s)
            });
            cell
        });
        let name = Bench::Throughput.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&[&PEERS[..], &LIMITS[..]].concat());
    let sizes = settings.pick(&SIZES_QUICK, &SIZES).into_iter();
    let mut groups: Vec<Group> = sizes.map(|size| group(&schemes, size)).collect();
    groups.push(Group { connections: CONNECTIONS, ..group(&settings.among(&SEVERAL), SIZE) });
    let mut rows = run_groups(groups, Conditions::default(), settings, signals)?;
    if settings.quick {
        return Ok(rows);
    }
    for waiting in [Waiting::Blocks, Waiting::Spins] {
        let under = Conditions { waiting, ..Conditions::default() };
        let placed = |at: Placement| {
            let also = at.params().into_iter().chain(under.params()).collect();
            Group { cores: at.cores(), also, ..group(&settings.among(&PEERS), SIZE) }
        };
        let groups = Placement::of_ends().into_iter().map(placed).collect();
        rows.extend(run_groups(groups, under, settings, signals)?);
    }
    let under = Conditions { hugepages: false, ..Conditions::default() };
    let small_pages = |size| Group { also: under.params(), ..group(&settings.among(&HUGE), size) };
    let groups = SIZES_SMALL_PAGES.into_iter().map(small_pages).collect();
    rows.extend(run_groups(groups, under, settings, signals)?);
    Ok(rows)
}
