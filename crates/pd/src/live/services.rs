//! Services of the policy, between two reports of the driver.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pd_driver::admin::{Report, ServiceReport};
use pd_driver::policy::Balance;
use serde::Serialize;

use crate::services::{is_up, state};

/// A service. `sent` counts bytes from clients to backends. Bytes count when their connection is over.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct ServiceView {
    pub address: SocketAddr,
    pub balance: Balance,
    /// Backends that get new connections.
    pub backends_up: u64,
    pub backends: u64,
    /// Reasons why other backends get none, each with the number of backends.
    pub down: String,
    pub connections_open: u64,
    pub connections_made: u64,
    pub connections_failed: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub connections_made_per_second: f64,
    pub connections_failed_per_second: f64,
    pub sent_gbit_per_second: f64,
    pub received_gbit_per_second: f64,
}

impl From<&ServiceReport> for ServiceView {
    fn from(service: &ServiceReport) -> Self {
        let counts = service.counts;
        Self {
            address: service.address,
            balance: service.balance,
            backends_up: service.backends.iter().filter(|backend| is_up(backend)).count() as u64,
            backends: service.backends.len() as u64,
            down: reasons(service),
            connections_open: counts.connections_open,
            connections_made: counts.connections_made,
            connections_failed: counts.connections_failed,
            bytes_sent: counts.bytes_sent,
            bytes_received: counts.bytes_received,
            connections_made_per_second: 0.0,
            connections_failed_per_second: 0.0,
            sent_gbit_per_second: 0.0,
            received_gbit_per_second: 0.0,
        }
    }
}

fn reasons(service: &ServiceReport) -> String {
    let mut counts = BTreeMap::new();
    for backend in service.backends.iter().filter(|backend| !is_up(backend)) {
        *counts.entry(state(backend)).or_insert(0) += 1;
    }
    let each: Vec<_> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    each.join(", ")
}

/// Services in the order of the policy. A service that was there `seconds` before has rates.
pub fn services(before: Option<&Report>, now: &Report, seconds: f64) -> Vec<ServiceView> {
    let before = before.filter(|_| seconds > 0.0).into_iter().flat_map(|report| &report.services);
    let known: BTreeMap<SocketAddr, &ServiceReport> =
        before.map(|service| (service.address, service)).collect();
    let with_rates = |service: &ServiceReport| {
        let mut view = ServiceView::from(service);
        if let Some(was) = known.get(&view.address).map(|service| service.counts) {
            // A service that left the policy and came back may have counted less.
            let rate = |now: u64, was: u64| now.saturating_sub(was) as f64 / seconds;
            view.connections_made_per_second = rate(view.connections_made, was.connections_made);
            view.connections_failed_per_second = rate(view.connections_failed, was.connections_failed);
            view.sent_gbit_per_second = rate(view.bytes_sent, was.bytes_sent) * 8e-9;
            view.received_gbit_per_second = rate(view.bytes_received, was.bytes_received) * 8e-9;
        }
        view
    };
    now.services.iter().map(with_rates).collect()
}
