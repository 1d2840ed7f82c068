//! Columns of the tables of `pd top`, and the order in which they go where there is little room.

use std::cmp::Ordering;

use crate::live::{ConnectionView, ContainerView, ServiceView, TrafficView};

/// A column of a table of `T`.
pub struct Column<T> {
    /// Its heading.
    pub title: &'static str,
    /// Characters that it takes.
    pub width: u16,
    /// The order in which columns go when the terminal is narrow: the highest first.
    pub rank: u8,
    /// A row's text.
    pub text: fn(&T) -> String,
    /// Rows in the order that sorting by this column gives.
    pub order: fn(&T, &T) -> Ordering,
}

/// Column of all tables that rows are sorted by at the start: what moves most.
pub const SORT_AT_FIRST: usize = 3;

/// Containers.
pub const CONTAINERS: [Column<ContainerView>; 12] = [
    Column {
        title: "CONTAINER",
        width: 16,
        rank: 0,
        text: |c| c.name.clone(),
        order: |a, b| a.name.cmp(&b.name),
    },
    Column {
        title: "TENANT",
        width: 10,
        rank: 10,
        text: |c| c.tenant.clone(),
        order: |a, b| a.tenant.cmp(&b.tenant),
    },
    Column {
        title: "NETWORK",
        width: 10,
        rank: 11,
        text: |c| c.network.clone().unwrap_or_default(),
        order: |a, b| a.network.cmp(&b.network),
    },
    Column {
        title: "OUT Gbit/s",
        width: 11,
        rank: 1,
        text: |c| gbit(c.sent_gbit_per_second),
        order: |a, b| b.sent_gbit_per_second.total_cmp(&a.sent_gbit_per_second),
    },
    Column {
        title: "IN Gbit/s",
        width: 10,
        rank: 2,
        text: |c| gbit(c.received_gbit_per_second),
        order: |a, b| b.received_gbit_per_second.total_cmp(&a.received_gbit_per_second),
    },
    Column {
        title: "MSG/s",
        width: 7,
        rank: 3,
        text: |c| count(c.messages_per_second),
        order: |a, b| b.messages_per_second.total_cmp(&a.messages_per_second),
    },
    Column {
        title: "FULL/s",
        width: 7,
        rank: 5,
        text: |c| count(c.rings_full_per_second),
        order: |a, b| b.rings_full_per_second.total_cmp(&a.rings_full_per_second),
    },
    Column {
        title: "WAKES/s",
        width: 8,
        rank: 6,
        text: |c| count(c.wake_ups_per_second),
        order: |a, b| b.wake_ups_per_second.total_cmp(&a.wake_ups_per_second),
    },
    Column {
        title: "MEMORY",
        width: 7,
        rank: 4,
        text: |c| bytes(c.memory_bytes),
        order: |a, b| b.memory_bytes.cmp(&a.memory_bytes),
    },
    Column {
        title: "RINGS",
        width: 7,
        rank: 9,
        text: |c| bytes(c.ring_bytes),
        order: |a, b| b.ring_bytes.cmp(&a.ring_bytes),
    },
    Column {
        title: "CONNS",
        width: 6,
        rank: 7,
        text: |c| c.connections.to_string(),
        order: |a, b| b.connections.cmp(&a.connections),
    },
    Column {
        title: "CLIENTS",
        width: 8,
        rank: 8,
        text: |c| c.clients.to_string(),
        order: |a, b| b.clients.cmp(&a.clients),
    },
];

/// Connections.
pub const CONNECTIONS: [Column<ConnectionView>; 9] = [
    Column {
        title: "FROM",
        width: 26,
        rank: 0,
        text: |c| end(&c.from_container, c.from),
        order: |a, b| a.from.cmp(&b.from),
    },
    Column {
        title: "TO",
        width: 26,
        rank: 2,
        text: |c| end(&c.to_container, c.to),
        order: |a, b| a.to.cmp(&b.to),
    },
    Column {
        title: "PATH",
        width: 9,
        rank: 5,
        text: |c| c.path.to_string(),
        order: |a, b| a.path.to_string().cmp(&b.path.to_string()),
    },
    Column {
        title: "Gbit/s",
        width: 8,
        rank: 1,
        text: |c| gbit(c.gbit_per_second[0]),
        order: |a, b| total(b).total_cmp(&total(a)),
    },
    Column {
        title: "BACK",
        width: 8,
        rank: 3,
        text: |c| gbit(c.gbit_per_second[1]),
        order: |a, b| b.gbit_per_second[1].total_cmp(&a.gbit_per_second[1]),
    },
    Column {
        title: "MSG/s",
        width: 7,
        rank: 4,
        text: |c| count(c.messages_per_second),
        order: |a, b| b.messages_per_second.total_cmp(&a.messages_per_second),
    },
    Column {
        title: "FULL/s",
        width: 7,
        rank: 6,
        text: |c| count(c.rings_full_per_second),
        order: |a, b| b.rings_full_per_second.total_cmp(&a.rings_full_per_second),
    },
    Column {
        title: "WAKES/s",
        width: 8,
        rank: 7,
        text: |c| count(c.wake_ups_per_second),
        order: |a, b| b.wake_ups_per_second.total_cmp(&a.wake_ups_per_second),
    },
    Column {
        title: "BYTES",
        width: 7,
        rank: 8,
        text: |c| bytes(c.bytes[0].saturating_add(c.bytes[1])),
        order: |a, b| b.bytes.iter().sum::<u64>().cmp(&a.bytes.iter().sum()),
    },
];

/// Ports, and pipes by tenant. What pipes receive is in.
pub const TRAFFIC: [Column<TrafficView>; 9] = [
    Column {
        title: "PORT OR TENANT",
        width: 16,
        rank: 0,
        text: |t| t.name.clone(),
        order: |a, b| a.name.cmp(&b.name),
    },
    Column { title: "KIND", width: 7, rank: 3, text: |t| t.kind.clone(), order: |a, b| a.kind.cmp(&b.kind) },
    Column {
        title: "PIPES",
        width: 6,
        rank: 6,
        text: |t| t.pipes.to_string(),
        order: |a, b| b.pipes.cmp(&a.pipes),
    },
    Column {
        title: "IN pps",
        width: 7,
        rank: 1,
        text: |t| count(t.received_frames_per_second),
        order: |a, b| b.received_frames_per_second.total_cmp(&a.received_frames_per_second),
    },
    Column {
        title: "IN Gbit/s",
        width: 10,
        rank: 4,
        text: |t| gbit(t.received_gbit_per_second),
        order: |a, b| b.received_gbit_per_second.total_cmp(&a.received_gbit_per_second),
    },
    Column {
        title: "OUT pps",
        width: 8,
        rank: 2,
        text: |t| count(t.sent_frames_per_second),
        order: |a, b| b.sent_frames_per_second.total_cmp(&a.sent_frames_per_second),
    },
    Column {
        title: "OUT Gbit/s",
        width: 11,
        rank: 5,
        text: |t| gbit(t.sent_gbit_per_second),
        order: |a, b| b.sent_gbit_per_second.total_cmp(&a.sent_gbit_per_second),
    },
    Column {
        title: "DROPS/s",
        width: 8,
        rank: 7,
        text: |t| count(t.dropped_frames_per_second),
        order: |a, b| b.dropped_frames_per_second.total_cmp(&a.dropped_frames_per_second),
    },
    Column {
        title: "DROPPED",
        width: 8,
        rank: 8,
        text: |t| count(t.frames_dropped as f64),
        order: |a, b| b.frames_dropped.cmp(&a.frames_dropped),
    },
];

/// Services. What clients send is in. Bytes count when their connection is over.
pub const SERVICES: [Column<ServiceView>; 10] = [
    Column {
        title: "SERVICE",
        width: 22,
        rank: 0,
        text: |s| s.address.to_string(),
        order: |a, b| a.address.cmp(&b.address),
    },
    Column {
        title: "UP",
        width: 7,
        rank: 1,
        text: |s| format!("{}/{}", s.backends_up, s.backends),
        order: |a, b| (a.backends_up * b.backends).cmp(&(b.backends_up * a.backends)),
    },
    Column {
        title: "OPEN",
        width: 6,
        rank: 2,
        text: |s| count(s.connections_open as f64),
        order: |a, b| b.connections_open.cmp(&a.connections_open),
    },
    Column {
        title: "NEW/s",
        width: 7,
        rank: 3,
        text: |s| count(s.connections_made_per_second),
        order: |a, b| b.connections_made_per_second.total_cmp(&a.connections_made_per_second),
    },
    Column {
        title: "FAILED/s",
        width: 9,
        rank: 4,
        text: |s| count(s.connections_failed_per_second),
        order: |a, b| b.connections_failed_per_second.total_cmp(&a.connections_failed_per_second),
    },
    Column {
        title: "IN Gbit/s",
        width: 10,
        rank: 5,
        text: |s| gbit(s.sent_gbit_per_second),
        order: |a, b| b.sent_gbit_per_second.total_cmp(&a.sent_gbit_per_second),
    },
    Column {
        title: "OUT Gbit/s",
        width: 11,
        rank: 6,
        text: |s| gbit(s.received_gbit_per_second),
        order: |a, b| b.received_gbit_per_second.total_cmp(&a.received_gbit_per_second),
    },
    Column {
        title: "MADE",
        width: 7,
        rank: 7,
        text: |s| count(s.connections_made as f64),
        order: |a, b| b.connections_made.cmp(&a.connections_made),
    },
    Column {
        title: "FAILED",
        width: 7,
        rank: 8,
        text: |s| count(s.connections_failed as f64),
        order: |a, b| b.connections_failed.cmp(&a.connections_failed),
    },
    Column {
        title: "BALANCE",
        width: 17,
        rank: 9,
        text: |s| s.balance.to_string(),
        order: |a, b| a.balance.to_string().cmp(&b.balance.to_string()),
    },
];

/// The columns that fit into `width`, the more important ones first to be kept, in their order.
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

/// A rate in Gbit/s.
pub fn gbit(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 0.01 => format!("{v:.4}"),
        v if v < 100.0 => format!("{v:.2}"),
        v => format!("{v:.0}"),
    }
}

/// A number of things, in four or five characters.
pub fn count(value: f64) -> String {
    scaled(value, 1000.0, ["", "k", "M", "G", "T"])
}

/// A number of bytes, likewise.
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
