//! Columns of the tables of `pd top`, and the order in which they go where there is little room.

use std::cmp::Ordering;

use crate::foreign::printable;
use crate::live::{ConnectionView, ContainerView, ServiceView, TrafficView};

/// A column of a table of `T`.
pub struct Column<T> {
    /// Heading of the column.
    pub title: &'static str,
    /// Characters that it takes.
    pub width: u16,
    /// The order in which columns go when the terminal is narrow: the highest first.
    pub rank: u8,
    cell: Cell<T>,
}

/// A row's part in a column.
enum Cell<T> {
    /// A row's text, and rows in the order that sorting by it gives.
    Words(fn(&T) -> String, fn(&T, &T) -> Ordering),
    /// A row's number, and how it is written. The largest comes first.
    Number(fn(&T) -> f64, fn(f64) -> String),
}

impl<T> Column<T> {
    /// Returns a row's text, without what a terminal obeys: processes choose names of containers.
    pub fn text(&self, row: &T) -> String {
        match self.cell {
            Cell::Words(text, _) => printable(&text(row)),
            Cell::Number(value, written) => written(value(row)),
        }
    }

    /// Rows in the order that sorting by this column gives.
    pub fn order(&self, a: &T, b: &T) -> Ordering {
        match self.cell {
            Cell::Words(_, order) => order(a, b),
            Cell::Number(value, _) => value(b).total_cmp(&value(a)),
        }
    }
}

const fn words<T>(
    title: &'static str,
    width: u16,
    rank: u8,
    text: fn(&T) -> String,
    order: fn(&T, &T) -> Ordering,
) -> Column<T> {
    Column { title, width, rank, cell: Cell::Words(text, order) }
}

const fn number<T>(
    title: &'static str,
    width: u16,
    rank: u8,
    value: fn(&T) -> f64,
    written: fn(f64) -> String,
) -> Column<T> {
    Column { title, width, rank, cell: Cell::Number(value, written) }
}

/// Column of all tables that rows are sorted by at the start: the busiest first.
pub const SORT_AT_FIRST: usize = 3;

/// Containers.
pub const CONTAINERS: [Column<ContainerView>; 12] = [
    words("CONTAINER", 16, 0, |c| c.name.clone(), |a, b| a.name.cmp(&b.name)),
    words("TENANT", 10, 10, |c| c.tenant.clone(), |a, b| a.tenant.cmp(&b.tenant)),
    words("NETWORK", 10, 11, |c| c.network.clone().unwrap_or_default(), |a, b| a.network.cmp(&b.network)),
    number("OUT Gbit/s", 11, 1, |c| c.sent_gbit_per_second, gbit),
    number("IN Gbit/s", 10, 2, |c| c.received_gbit_per_second, gbit),
    number("MSG/s", 7, 3, |c| c.messages_per_second, count),
    number("FULL/s", 7, 5, |c| c.rings_full_per_second, count),
    number("WAKES/s", 8, 6, |c| c.wake_ups_per_second, count),
    number("MEMORY", 7, 4, |c| c.memory_bytes as f64, |n| bytes(n as u64)),
    number("RINGS", 7, 9, |c| c.ring_bytes as f64, |n| bytes(n as u64)),
    number("CONNS", 6, 7, |c| c.connections as f64, |n| n.to_string()),
    number("CLIENTS", 8, 8, |c| c.clients as f64, |n| n.to_string()),
];

/// Connections.
pub const CONNECTIONS: [Column<ConnectionView>; 9] = [
    words("FROM", 26, 0, |c| end(&c.from_container, c.from), |a, b| a.from.cmp(&b.from)),
    words("TO", 26, 2, |c| end(&c.to_container, c.to), |a, b| a.to.cmp(&b.to)),
    words("PATH", 9, 5, |c| c.path.to_string(), |a, b| a.path.to_string().cmp(&b.path.to_string())),
    words("Gbit/s", 8, 1, |c| gbit(c.gbit_per_second[0]), |a, b| total(b).total_cmp(&total(a))),
    number("BACK", 8, 3, |c| c.gbit_per_second[1], gbit),
    number("MSG/s", 7, 4, |c| c.messages_per_second, count),
    number("FULL/s", 7, 6, |c| c.rings_full_per_second, count),
    number("WAKES/s", 8, 7, |c| c.wake_ups_per_second, count),
    number("BYTES", 7, 8, |c| c.bytes[0].saturating_add(c.bytes[1]) as f64, |n| bytes(n as u64)),
];

/// Ports, and pipes by tenant. `IN` is the pipes' receiving direction.
pub const TRAFFIC: [Column<TrafficView>; 9] = [
    words("PORT OR TENANT", 16, 0, |t| t.name.clone(), |a, b| a.name.cmp(&b.name)),
    words("KIND", 7, 3, |t| t.kind.clone(), |a, b| a.kind.cmp(&b.kind)),
    number("PIPES", 6, 6, |t| t.pipes as f64, |n| n.to_string()),
    number("IN pps", 7, 1, |t| t.received_frames_per_second, count),
    number("IN Gbit/s", 10, 4, |t| t.received_gbit_per_second, gbit),
    number("OUT pps", 8, 2, |t| t.sent_frames_per_second, count),
    number("OUT Gbit/s", 11, 5, |t| t.sent_gbit_per_second, gbit),
    number("DROPS/s", 8, 7, |t| t.dropped_frames_per_second, count),
    number("DROPPED", 8, 8, |t| t.frames_dropped as f64, count),
];

/// Services. `IN` is the direction from clients. Bytes count when their connection is over.
pub const SERVICES: [Column<ServiceView>; 11] = [
    words("SERVICE", 22, 0, |s| s.address.to_string(), |a, b| a.address.cmp(&b.address)),
    words(
        "UP",
        7,
        1,
        |s| format!("{}/{}", s.backends_up, s.backends),
        |a, b| (a.backends_up * b.backends).cmp(&(b.backends_up * a.backends)),
    ),
    number("OPEN", 6, 2, |s| s.connections_open as f64, count),
    number("NEW/s", 7, 3, |s| s.connections_made_per_second, count),
    number("FAILED/s", 9, 4, |s| s.connections_failed_per_second, count),
    number("IN Gbit/s", 10, 5, |s| s.sent_gbit_per_second, gbit),
    number("OUT Gbit/s", 11, 6, |s| s.received_gbit_per_second, gbit),
    number("MADE", 7, 7, |s| s.connections_made as f64, count),
    number("FAILED", 7, 8, |s| s.connections_failed as f64, count),
    words(
        "BALANCE",
        17,
        9,
        |s| s.balance.to_string(),
        |a, b| a.balance.to_string().cmp(&b.balance.to_string()),
    ),
    words("DOWN", 24, 10, |s| s.down.clone(), |a, b| a.down.cmp(&b.down)),
];

/// Returns the columns that fit into `width`, in their order; the more important ones are kept first.
pub fn fitting<T>(columns: &[Column<T>], width: u16) -> Vec<usize> {
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|&at| columns[at].rank);
    let (mut room, mut kept) = (width, Vec::new());
    for at in by_rank {
        let takes = columns[at].width + u16::from(!kept.is_empty());
        if takes > room && !kept.is_empty() {
            break;
        }
        room = room.saturating_sub(takes);
        kept.push(at);
    }
    kept.sort_unstable();
    kept
}

fn total(connection: &ConnectionView) -> f64 {
    connection.gbit_per_second.iter().sum()
}

fn end(container: &str, at: Option<std::net::SocketAddr>) -> String {
    match at {
        Some(at) => format!("{at} {container}"),
        None => "gone".to_owned(),
    }
}

/// Formats a rate in Gbit/s.
pub fn gbit(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 0.01 => format!("{v:.4}"),
        v if v < 100.0 => format!("{v:.2}"),
        v => format!("{v:.0}"),
    }
}

/// Formats a number of things, in four or five characters.
pub fn count(value: f64) -> String {
    scaled(value, 1000.0, ["", "k", "M", "G", "T"])
}

/// Formats a number of bytes, in four or five characters.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, 1024.0, ["", "K", "M", "G", "T"])
}

fn scaled(mut value: f64, factor: f64, units: [&str; 5]) -> String {
    let mut unit = 0;
    while value >= factor * 0.9995 && unit + 1 < units.len() {
        value /= factor;
        unit += 1;
    }
    match (unit, value) {
        (0, v) if v > 0.0 && v < 9.95 && v.fract() != 0.0 => format!("{v:.1}"),
        (0, v) => format!("{v:.0}"),
        (_, v) if v < 9.995 => format!("{v:.2}{}", units[unit]),
        (_, v) if v < 99.95 => format!("{v:.1}{}", units[unit]),
        (_, v) => format!("{v:.0}{}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let counts: Vec<_> = [0.0, 0.5, 12.0, 999.0, 1000.0, 12_345.0, 2e6, 1e15].map(count).into();
        assert_eq!(counts, ["0", "0.5", "12", "999", "1.00k", "12.3k", "2.00M", "1000T"]);
        assert_eq!(
            (bytes(4 << 20), bytes(1023), bytes(5 << 30)),
            ("4.00M".into(), "1023".into(), "5.00G".into())
        );
        assert_eq!(
            (gbit(0.0), gbit(0.001), gbit(44.41), gbit(120.0)),
            ("0".into(), "0.0010".into(), "44.41".into(), "120".into())
        );
    }

    #[test]
    fn a_narrow_terminal_keeps_what_matters() {
        let titles = |width| {
            fitting(&CONTAINERS, width).into_iter().map(|at| CONTAINERS[at].title).collect::<Vec<_>>()
        };
        assert_eq!(titles(200).len(), CONTAINERS.len());
        assert_eq!(titles(1), ["CONTAINER"]);
        assert_eq!(titles(28), ["CONTAINER", "OUT Gbit/s"]);
        for width in 0..200 {
            let sum: u16 = fitting(&CONNECTIONS, width).iter().map(|&at| CONNECTIONS[at].width + 1).sum();
            assert!(sum <= width.max(26) + 1, "{width}");
        }
    }
}
