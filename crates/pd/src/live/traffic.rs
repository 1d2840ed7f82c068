//! Traffic of ports and pipes, between two looks.

use std::collections::BTreeMap;

use pd_driver::admin::{PipesReport, PortReport, TenantPipes};
use serde::Serialize;

/// A port, or the pipes of a tenant. `received` counts frames that pipes received, `sent` frames that pipes sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct TrafficView {
    pub name: String,
    /// Kind of the port; `tenant` of a tenant.
    pub kind: String,
    pub pipes: u64,
    pub frames_received: u64,
    pub bytes_received: u64,
    pub frames_sent: u64,
    pub bytes_sent: u64,
    /// Dropped by verdict, for lack of a bound pipe, or refused.
    pub frames_dropped: u64,
    pub received_frames_per_second: f64,
    pub received_gbit_per_second: f64,
    pub sent_frames_per_second: f64,
    pub sent_gbit_per_second: f64,
    pub dropped_frames_per_second: f64,
}

impl From<&PortReport> for TrafficView {
    fn from(port: &PortReport) -> Self {
        Self {
            name: port.name.clone(),
            kind: port.kind.clone(),
            pipes: port.pipes as u64,
            frames_received: port.frames_received,
            bytes_received: port.bytes_received,
            frames_sent: port.frames_sent,
            bytes_sent: port.bytes_sent,
            frames_dropped: port.frames_unbound + port.frames_lost + port.frames_unsent,
            ..Self::default()
        }
    }
}

impl From<&TenantPipes> for TrafficView {
    fn from(tenant: &TenantPipes) -> Self {
        let counts = tenant.counts;
        Self {
            name: tenant.name.clone(),
            kind: "tenant".to_owned(),
            pipes: tenant.pipes_open,
            frames_received: counts.frames_received,
            bytes_received: counts.bytes_received,
            frames_sent: counts.frames_sent,
            bytes_sent: counts.bytes_sent,
            frames_dropped: counts.frames_dropped
                + counts.frames_refused
                + counts.frames_unbound
                + counts.frames_lost
                + counts.frames_unsent,
            ..Self::default()
        }
    }
}

fn all(report: &PipesReport) -> impl Iterator<Item = TrafficView> + '_ {
    report.ports.iter().map(TrafficView::from).chain(report.tenants.iter().map(TrafficView::from))
}

/// Ports, then tenants, with rates where they were there `seconds` before.
pub fn traffic(before: Option<&PipesReport>, now: &PipesReport, seconds: f64) -> Vec<TrafficView> {
    let key = |view: &TrafficView| (view.kind.clone(), view.name.clone());
    let known: BTreeMap<_, _> = before.into_iter().flat_map(all).map(|view| (key(&view), view)).collect();
    let with_rates = |mut view: TrafficView| {
        if let Some(was) = known.get(&key(&view)).filter(|_| seconds > 0.0) {
            // A port of the same name that was made anew has counted less.
            let rate = |now: u64, was: u64| now.saturating_sub(was) as f64 / seconds;
            view.received_frames_per_second = rate(view.frames_received, was.frames_received);
            view.received_gbit_per_second = rate(view.bytes_received, was.bytes_received) * 8e-9;
            view.sent_frames_per_second = rate(view.frames_sent, was.frames_sent);
            view.sent_gbit_per_second = rate(view.bytes_sent, was.bytes_sent) * 8e-9;
            view.dropped_frames_per_second = rate(view.frames_dropped, was.frames_dropped);
        }
        view
    };
    all(now).map(with_rates).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use pd_driver::admin::TenantCounts;

    /// Makes the report of a generator's port with two pipes of a tenant, through which `n` frames of 100 bytes went each way.
    pub fn report(n: u64) -> PipesReport {
        let port = PortReport {
            name: "wan".to_owned(),
            kind: "gen".to_owned(),
            path: "agent".to_owned(),
            pipes: 2,
            frames_received: n,
            bytes_received: 100 * n,
            frames_sent: n,
            bytes_sent: 100 * n,
            frames_unbound: n / 2,
            frames_lost: 0,
            frames_unsent: 0,
            frames_wrong: 0,
            frames_missing: 0,
        };
        let counts = TenantCounts {
            frames_received: n,
            bytes_received: 100 * n,
            frames_sent: n,
            bytes_sent: 100 * n,
            frames_dropped: 1,
            frames_refused: 2,
            frames_unbound: 3,
            frames_lost: 0,
            frames_unsent: 0,
            notifications: n / 10,
        };
        let tenant = TenantPipes {
            name: "red".to_owned(),
            pipes_open: 2,
            pipes_opened: 3,
            pipes_refused: 4,
            pipes_cut_off: 1,
            counts,
        };
        PipesReport { ports: vec![port], pipes: Vec::new(), tenants: vec![tenant], taps: Vec::new() }
    }

    #[test]
    fn rates_are_those_of_the_same_port_and_never_negative() {
        let views = traffic(Some(&report(1000)), &report(3000), 0.5);
        assert_eq!((views[0].name.as_str(), views[0].kind.as_str(), views[0].pipes), ("wan", "gen", 2));
        assert_eq!(
            (views[0].received_frames_per_second, views[0].dropped_frames_per_second),
            (4000.0, 2000.0)
        );
        assert!((views[1].sent_gbit_per_second - 200_000.0 / 0.5 * 8e-9).abs() < 1e-12);
        assert_eq!((views[1].kind.as_str(), views[1].frames_dropped), ("tenant", 6));
        let mut other = report(10);
        other.ports[0].name = "lan".to_owned();
        for (before, now) in [(None, report(5)), (Some(report(9)), report(5)), (Some(other), report(5))] {
            let views = traffic(before.as_ref(), &now, 1.0);
            assert_eq!((views[0].received_frames_per_second, views[0].frames_received), (0.0, 5));
        }
    }
}
