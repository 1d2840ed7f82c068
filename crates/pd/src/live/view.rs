//! Two looks at the driver, and the events in between, for `pd top` and `pd stats`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pd_abi::counters::{AgentCounters, ClientCounters, FlowCounters};
use pd_driver::admin::{ClientReport, ConnectionReport};
use pd_driver::policy::Path as BytesPath;
use serde::Serialize;

use super::services::{services, ServiceView};
use super::traffic::{traffic, TrafficView};
use super::Sample;

/// Everything, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// Between the two looks; 0 after the first, and then all rates are.
    pub interval_seconds: f64,
    /// The driver.
    pub driver: DriverView,
    /// Clients by container; those without one, one by one.
    pub containers: Vec<ContainerView>,
    /// Connections.
    pub connections: Vec<ConnectionView>,
    /// Ports, and pipes by tenant.
    pub traffic: Vec<TrafficView>,
    /// Services of the policy.
    pub services: Vec<ServiceView>,
}

/// The driver as a whole.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct DriverView {
    pub pid: Option<u32>,
    /// Nanoseconds of the clock: another value is another driver.
    pub started_ns: u64,
    pub movers: u32,
    /// Agents that have a thread, and the part of their time in which they work.
    pub movers_working: u64,
    pub movers_busy: f64,
    /// Of one core; absent if its process cannot be seen.
    pub cpu_percent: Option<f64>,
    pub cpu_seconds: Option<f64>,
    pub memory_used_bytes: u64,
    pub memory_budget_bytes: u64,
    pub rings_waiting: u64,
    pub clients: u64,
    pub connections: u64,
    pub gbit_per_second: f64,
    pub counters: BTreeMap<&'static str, u64>,
    pub per_second: BTreeMap<&'static str, f64>,
}

/// A container, or a client without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct ContainerView {
    /// The container's name; `pid N` without one.
    pub name: String,
    pub tenant: String,
    pub network: Option<String>,
    pub image: Option<String>,
    pub pod: Option<String>,
    pub clients: u64,
    pub connections: u64,
    pub memory_bytes: u64,
    pub ring_bytes: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub rings_full: u64,
    pub wake_ups: u64,
    pub sent_gbit_per_second: f64,
    pub received_gbit_per_second: f64,
    pub messages_per_second: f64,
    pub rings_full_per_second: f64,
    pub wake_ups_per_second: f64,
}

/// A connection. Pairs are there and back, as seen by the connecting side.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct ConnectionView {
    pub connection: u32,
    /// On the direct path the numbers come from the clients.
    pub path: BytesPath,
    pub from: Option<SocketAddr>,
    pub from_container: String,
    pub to: Option<SocketAddr>,
    pub to_container: String,
    pub bytes: [u64; 2],
    pub messages: [u64; 2],
    pub rings_full: u64,
    pub wake_ups: u64,
    pub gbit_per_second: [f64; 2],
    pub messages_per_second: f64,
    pub rings_full_per_second: f64,
    pub wake_ups_per_second: f64,
}

impl View {
    /// Returns the view of `now`, with rates since `before` if that was of the same driver. Parties that are new have no
    /// rates.
    pub fn between(before: Option<&Sample>, now: &Sample) -> View {
        let before = before.filter(|before| before.header.started_ns == now.header.started_ns);
        let seconds = before.map_or(0.0, |before| now.at.saturating_duration_since(before.at).as_secs_f64());
        let clients: BTreeMap<u64, &ClientCounters> = before
            .map(|before| before.names.clients.iter().map(|c| c.serial).zip(&before.clients).collect())
            .unwrap_or_default();
        let flows: BTreeMap<u64, &[FlowCounters; 2]> = before
            .map(|before| before.names.connections.iter().map(|c| c.serial).zip(&before.flows).collect())
            .unwrap_or_default();
        let connections = now.names.connections.iter().zip(&now.flows);
        let connections = connections.map(|(names, at)| {
            let more = flows.get(&names.serial).map_or([FlowCounters::default(); 2], |before| {
                [at[0].since(&before[0]), at[1].since(&before[1])]
            });
            connection(now, names, at, &more, seconds)
        });
        View {
            interval_seconds: seconds,
            driver: driver(before, now, seconds),
            containers: containers(now, &clients, seconds),
            connections: connections.collect(),
            traffic: traffic(before.map(|before| &*before.pipes), &now.pipes, seconds),
            // The names are older than this look, and of the same age as their counts.
            services: match now.names_before.as_ref().filter(|_| before.is_some()) {
                Some((names, seconds)) => services(Some(names), &now.names, *seconds),
                None => services(None, &now.names, 0.0),
            },
        }
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

fn gbit_per_second(bytes: u64, seconds: f64) -> f64 {
    per_second(bytes, seconds) * 8e-9
}

fn driver(before: Option<&Sample>, now: &Sample, seconds: f64) -> DriverView {
    let more = before.map_or(AgentCounters::default(), |before| now.totals.since(&before.totals));
    let cpu = before.and_then(|before| Some(now.cpu?.saturating_sub(before.cpu?).as_secs_f64()));
    DriverView {
        pid: now.pid,
        started_ns: now.header.started_ns,
        movers: now.header.movers,
        movers_working: now.gauges.movers_working,
        // A mover that sleeps counts its sleep afterwards.
        movers_busy: (now.gauges.movers_working as f64 - per_second(more.mover_idle_ns, seconds) * 1e-9)
            .max(0.0),
        cpu_percent: cpu.filter(|_| seconds > 0.0).map(|cpu| cpu / seconds * 100.0),
        cpu_seconds: now.cpu.map(|cpu| cpu.as_secs_f64()),
        memory_used_bytes: now.gauges.memory_used_bytes,
        memory_budget_bytes: now.header.memory_budget_bytes,
        rings_waiting: now.gauges.rings_waiting,
        clients: now.totals.clients_attached.saturating_sub(now.totals.clients_left),
        connections: now.totals.connections_made.saturating_sub(now.totals.connections_closed),
        gbit_per_second: gbit_per_second(more.bytes_delivered, seconds),
        counters: now.totals.entries().collect(),
        per_second: more.entries().map(|(name, count)| (name, per_second(count, seconds))).collect(),
    }
}

/// Returns the displayed name of a client's container.
pub fn container_of(client: &ClientReport) -> String {
    client.container.clone().unwrap_or_else(|| format!("pid {}", client.pid))
}

fn containers(now: &Sample, before: &BTreeMap<u64, &ClientCounters>, seconds: f64) -> Vec<ContainerView> {
    let mut all: BTreeMap<String, ContainerView> = BTreeMap::new();
    for (names, at) in now.names.clients.iter().zip(&now.clients) {
        let name = container_of(names);
        let entry = all.entry(name.clone()).or_insert_with(|| ContainerView {
            name,
            tenant: names.tenant.clone().unwrap_or_default(),
            network: names.network.clone(),
            image: names.image.clone(),
            pod: names.pod.clone(),
            ..ContainerView::default()
        });
        let more = before.get(&names.serial).map_or(ClientCounters::default(), |before| at.since(before));
        entry.clients += 1;
        let ends = now.names.connections.iter().flat_map(|c| [&c.from, &c.to]).flatten();
        entry.connections += ends.filter(|(client, _)| *client == names.client).count() as u64;
        entry.memory_bytes += names.region_bytes;
        entry.ring_bytes += names.ring_bytes;
        entry.bytes_sent += at.bytes_sent;
        entry.bytes_received += at.bytes_received;
        entry.messages_sent += at.messages_sent;
        entry.messages_received += at.messages_received;
        entry.rings_full += at.rings_full;
        entry.wake_ups += at.wake_ups;
        entry.sent_gbit_per_second += gbit_per_second(more.bytes_sent, seconds);
        entry.received_gbit_per_second += gbit_per_second(more.bytes_received, seconds);
        entry.messages_per_second += per_second(more.messages_sent + more.messages_received, seconds);
        entry.rings_full_per_second += per_second(more.rings_full, seconds);
        entry.wake_ups_per_second += per_second(more.wake_ups, seconds);
    }
    all.into_values().collect()
}

fn connection(
    now: &Sample,
    names: &ConnectionReport,
    at: &[FlowCounters; 2],
    more: &[FlowCounters; 2],
    seconds: f64,
) -> ConnectionView {
    let container = |side: &Option<(u16, SocketAddr)>| {
        let client = side.and_then(|(id, _)| now.names.clients.iter().find(|c| c.client == id));
        client.map(container_of).unwrap_or_default()
    };
    ConnectionView {
        connection: names.connection,
        path: names.path,
        from: names.from.map(|(_, at)| at),
        from_container: container(&names.from),
        to: names.to.map(|(_, at)| at),
        to_container: container(&names.to),
        bytes: [at[0].bytes, at[1].bytes],
        messages: [at[0].messages, at[1].messages],
        rings_full: at[0].rings_full + at[1].rings_full,
        wake_ups: at[0].wake_ups + at[1].wake_ups,
        gbit_per_second: [0, 1].map(|side| gbit_per_second(more[side].bytes, seconds)),
        messages_per_second: per_second(more[0].messages + more[1].messages, seconds),
        rings_full_per_second: per_second(more[0].rings_full + more[1].rings_full, seconds),
        wake_ups_per_second: per_second(more[0].wake_ups + more[1].wake_ups, seconds),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use pd_driver::admin::{BackendReport, Report, ServiceCounts, ServiceReport};
    use pd_driver::policy::Balance;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn client(number: u16, serial: u64, container: Option<&str>) -> ClientReport {
        ClientReport {
            client: number,
            serial,
            pid: 1000 + u32::from(number),
            uid: 0,
            container: container.map(str::to_owned),
            network: None,
            image: None,
            pod: None,
            engine_container: None,
            tenant: container.map(|_| "default".to_owned()),
            channels: 1,
            regions: 1,
            region_bytes: 4 << 20,
            ring_bytes: 1 << 20,
            sockets: 1,
            listening: Vec::new(),
            kernel_connections_by_reason: BTreeMap::new(),
        }
    }

    fn service(n: u64) -> ServiceReport {
        let counts = ServiceCounts { connections_made: n, bytes_sent: 100 * n, ..ServiceCounts::default() };
        let backend = BackendReport {
            address: SocketAddr::from(([10, 88, 0, 2], 7000)),
            weight: 1,
            drain: false,
            on_fabric: true,
            no_listener: false,
            backlog_full: false,
            probe: None,
            counts,
        };
        let drained = BackendReport {
            address: SocketAddr::from(([10, 88, 0, 3], 7000)),
            drain: true,
            counts: ServiceCounts::default(),
            ..backend.clone()
        };
        ServiceReport {
            address: SocketAddr::from(([10, 96, 0, 1], 80)),
            balance: Balance::Maglev,
            affinity_seconds: None,
            counts,
            backends: vec![backend, drained],
        }
    }

    /// Makes a sample of a driver with two containers, a lone client, and two connections, that has moved `n` units.
    pub fn sample(start: Instant, millis: u64, n: u64) -> Sample {
        let at = |port: u16| SocketAddr::from(([10, 88, 0, 2], port));
        let names = Report {
            memory_used_bytes: 0,
            memory_budget_bytes: 0,
            rings_waiting: 0,
            clients: vec![client(0, 1, Some("a")), client(1, 2, Some("b")), client(2, 3, None)],
            connections: [(0, 4, 0, 1), (1, 5, 2, 1)]
                .map(|(connection, serial, from, to)| ConnectionReport {
                    connection,
                    serial,
                    from: Some((from, at(40_000 + from))),
                    to: Some((to, at(7000))),
                    path: BytesPath::Offloaded,
                    bytes: [0, 0],
                    messages: [0, 0],
                    asked: None,
                })
                .into(),
            kernel_connections_by_reason: BTreeMap::from([("urgent_bytes".to_owned(), 3)]),
            attaches_refused_by_reason: BTreeMap::from([("host_process".to_owned(), n)]),
            policy_on_kernel: Default::default(),
            services: vec![service(n)],
            sidecars: Vec::new(),
            metrics: BTreeMap::new(),
            taken_over: None,
            cores_scarce: false,
        };
        let flow = |serial, bytes, messages| FlowCounters {
            serial,
            bytes,
            messages,
            wake_ups: n,
            ..Default::default()
        };
        let moved = |sent, received| ClientCounters {
            bytes_sent: sent,
            bytes_received: received,
            messages_sent: n,
            rings_full: n / 2,
            ..ClientCounters::default()
        };
        Sample {
            at: start + Duration::from_millis(millis),
            header: pd_abi::counters::Header {
                started_ns: 77,
                movers: 1,
                memory_budget_bytes: 1 << 30,
                ..Default::default()
            },
            pid: Some(4242),
            cpu: Some(Duration::from_millis(millis / 4)),
            totals: AgentCounters {
                clients_attached: 4,
                clients_left: 1,
                connections_made: 2,
                bytes_delivered: 1500 * n,
                messages_completed: 3 * n,
                ..AgentCounters::default()
            },
            gauges: pd_abi::counters::Gauges { memory_used_bytes: 12 << 20, ..Default::default() },
            clients: vec![moved(1000 * n, 0), moved(0, 1500 * n), moved(500 * n, 0)],
            flows: vec![[flow(4, 1000 * n, n), flow(4, 0, 0)], [flow(5, 500 * n, 2 * n), flow(5, 0, 0)]],
            names: Arc::new(names),
            names_before: None,
            pipes: Arc::new(super::super::traffic::tests::report(n)),
        }
    }

    /// Makes a view of two looks, half a second apart. Names were read a second apart.
    pub fn view() -> View {
        let start = Instant::now();
        let before = sample(start, 1000, 1_000_000);
        let mut now = sample(start, 1500, 2_000_000);
        now.names_before = Some((Arc::clone(&before.names), 1.0));
        View::between(Some(&before), &now)
    }

    #[test]
    fn rates_of_services_are_those_between_two_reports() {
        let view = view();
        let service = &view.services[0];
        assert_eq!((service.backends_up, service.backends), (1, 2));
        assert_eq!(service.down, "1 drained");
        assert_eq!((service.connections_made, service.connections_made_per_second), (2_000_000, 1e6));
        assert!((service.sent_gbit_per_second - 100e6 * 8e-9).abs() < 1e-9);

        let start = Instant::now();
        let (before, mut now) = (sample(start, 0, 9), sample(start, 1000, 5));
        let rates = |view: View| view.services[0].connections_made_per_second;
        assert_eq!(rates(View::between(Some(&before), &now)), 0.0, "the same report as before");
        now.names_before = Some((Arc::clone(&before.names), 1.0));
        assert_eq!(rates(View::between(Some(&before), &now)), 0.0, "it has become less");
        now.names_before = Some((Arc::clone(&sample(start, 0, 1).names), 2.0));
        assert_eq!(rates(View::between(Some(&before), &now)), 2.0);
        assert_eq!(rates(View::between(None, &now)), 0.0, "the first look");
        let mut other = sample(start, 0, 1);
        Arc::get_mut(&mut other.names).unwrap().services[0].address.set_port(1);
        now.names_before = Some((other.names, 1.0));
        assert_eq!(rates(View::between(Some(&before), &now)), 0.0, "another service");
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let view = view();
        assert!((view.interval_seconds - 0.5).abs() < 1e-9);
        let near =
            |got: f64, want: f64| assert!((got - want).abs() < 1e-6 * want.max(1.0), "{got} is not {want}");
        near(view.driver.gbit_per_second, 1500e6 * 8e-9 / 0.5);
        near(view.driver.per_second["messages_completed"], 6e6);
        near(view.driver.cpu_percent.unwrap(), 25.0);
        assert_eq!((view.driver.clients, view.driver.connections), (3, 2));
        assert_eq!(view.driver.counters["bytes_delivered"], 3_000_000_000);
        let names: Vec<_> = view.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "pid 1002"]);
        let b = &view.containers[1];
        assert_eq!((b.clients, b.connections, b.bytes_received, b.bytes_sent), (1, 2, 3_000_000_000, 0));
        near(b.received_gbit_per_second, 24.0);
        near(b.rings_full_per_second, 1e6);
        let first = &view.connections[0];
        assert_eq!(
            (first.path, first.from_container.as_str(), first.to_container.as_str()),
            (pd_driver::policy::Path::Offloaded, "a", "b")
        );
        near(first.gbit_per_second[0], 16.0);
        near(first.gbit_per_second[1], 0.0);
        near(first.messages_per_second, 2e6);
        near(first.wake_ups_per_second, 4e6);
    }

    #[test]
    fn the_first_look_at_a_driver_or_at_anything_in_it_has_no_rates() {
        let start = Instant::now();
        let (before, mut now) = (sample(start, 0, 5), sample(start, 1000, 9));
        let first = View::between(None, &now);
        assert_eq!((first.interval_seconds, first.driver.cpu_percent), (0.0, None));
        assert_eq!(first.connections[0].gbit_per_second, [0.0, 0.0]);

        // Same place, another connection.
        let mut names = sample(start, 1000, 9);
        let report = Arc::get_mut(&mut names.names).unwrap();
        report.connections[0].serial = 99;
        now.names = names.names;
        let view = View::between(Some(&before), &now);
        assert_eq!(
            (view.connections[0].messages_per_second, view.connections[1].messages_per_second),
            (0.0, 8.0)
        );

        now.header.started_ns += 1;
        assert_eq!(View::between(Some(&before), &now).interval_seconds, 0.0, "another driver");
    }

    #[test]
    fn what_has_become_less_is_no_rate() {
        let start = Instant::now();
        let view = View::between(Some(&sample(start, 0, 9)), &sample(start, 1000, 5));
        assert_eq!(view.driver.gbit_per_second, 0.0);
        assert!(view.driver.per_second.values().all(|&rate| rate == 0.0));
    }
}
