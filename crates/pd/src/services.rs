//! Services and their backends as tables.

use std::net::SocketAddr;

use comfy_table::{presets, Table};
use pd_driver::admin::{BackendReport, ProbeFailure, ServiceCounts, ServiceReport};

/// Describes why a backend gets no connections, or that it gets some.
pub fn state(backend: &BackendReport) -> &'static str {
    match backend {
        BackendReport { drain: true, .. } => "drained",
        BackendReport { no_listener: true, on_fabric: true, .. } => "up on the fabric alone",
        BackendReport { no_listener: true, .. } => "no listener",
        BackendReport { backlog_full: true, .. } => "backlog full",
        BackendReport { probe: Some(failure), .. } => match failure {
            ProbeFailure::Refused => "probe refused",
            ProbeFailure::TimedOut => "probe timed out",
            ProbeFailure::BadAnswer => "bad answer",
        },
        _ => "up",
    }
}

/// Tells whether a backend gets new connections.
pub fn is_up(backend: &BackendReport) -> bool {
    state(backend).starts_with("up")
}

/// Makes a row for each service, and one for each of its backends below.
pub fn table(services: &[ServiceReport]) -> Table {
    let mut table = Table::new();
    let header =
        ["SERVICE", "BACKEND", "WEIGHT", "STATE", "OPEN", "MADE", "FAILED", "BYTES SENT", "RECEIVED"];
    table.load_preset(presets::NOTHING).set_header(header);
    for service in services {
        let how = match service.affinity_seconds {
            Some(seconds) => format!("{}, affinity {seconds} s", service.balance),
            None => service.balance.to_string(),
        };
        let mut row =
            |at: SocketAddr, backend: String, weight: String, state: &str, counts: &ServiceCounts| {
                let numbers = [
                    counts.connections_open,
                    counts.connections_made,
                    counts.connections_failed,
                    counts.bytes_sent,
                    counts.bytes_received,
                ];
                let words = [at.to_string(), backend, weight, state.to_owned()];
                table.add_row(words.into_iter().chain(numbers.map(|n| n.to_string())));
            };
        row(service.address, format!("({how})"), String::new(), "", &service.counts);
        for backend in &service.backends {
            let weight = backend.weight.to_string();
            row(service.address, backend.address.to_string(), weight, state(backend), &backend.counts);
        }
    }
    table
}
