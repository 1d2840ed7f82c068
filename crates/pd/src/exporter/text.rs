//! The page: OpenMetrics text. Every name is explained in `docs/metrics.md`.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use pd_abi::counters::ClientCounters;
use pd_abi::KernelReason;
use pd_driver::admin::{BackendReport, ClientReport, PortReport, ProxyReport, SidecarReport, TenantPipes};
use pd_driver::policy::Path;
use pd_driver::Refusal;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::live::Sample;
use crate::services::{is_up, state};

/// The content type of the page in the older form.
pub const CONTENT_TYPE_PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The content type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const KERNEL_CONNECTIONS: (&str, &str) = (
    "pipedevice_kernel_connections",
    "Connections of unmodified programs that went over the kernel, as the programs say, by reason",
);
const ATTACHES_REFUSED: (&str, &str) =
    ("pipedevice_attaches_refused", "Processes that were not let in, by reason");

/// The driver's counters: name in the region, name here (`_total` is added), meaning.
const COUNTERS: [(&str, &str, &str); 33] = [
    ("clients_attached", "pipedevice_clients_attached", "Clients that attached"),
    ("clients_left", "pipedevice_clients_left", "Clients that left, died or were cut off"),
    ("clients_cut_off", "pipedevice_clients_cut_off", "Clients refused or cut off"),
    ("accepts_paused", "pipedevice_accepts_paused", "Times that clients had to wait for want of descriptors"),
    ("connections_made", "pipedevice_connections_made", "Connections made"),
    ("connections_closed", "pipedevice_connections_closed", "Connections over in both directions"),
    ("connections_denied", "pipedevice_connections_denied", "Connections that the policy denied"),
    (
        "connections_over_quota",
        "pipedevice_connections_over_quota",
        "Connections beyond what their tenant may have",
    ),
    ("caps_reached", "pipedevice_caps_reached", "Times that a tenant was refused what it may not hold"),
    ("listeners_refused", "pipedevice_listeners_refused", "Claims to listen that the kernel did not confirm"),
    ("connections_cut", "pipedevice_connections_cut", "Connections that a new policy ended"),
    ("requests_refused", "pipedevice_requests_refused", "Requests answered with an errno"),
    ("sends_dropped", "pipedevice_sends_dropped", "Sends on sockets not connected any more"),
    ("bytes_delivered", "pipedevice_delivered_bytes", "Bytes delivered"),
    ("messages_completed", "pipedevice_messages_completed", "Sends completed"),
    ("rings_full", "pipedevice_rings_full", "Times that a receive ring was full with more to deliver"),
    ("rings_denied", "pipedevice_rings_denied", "Times that a flow had to wait for memory for its ring"),
    (
        "regions_emptied",
        "pipedevice_regions_emptied",
        "Times that memory of an idle receive region was taken back",
    ),
    ("wake_ups", "pipedevice_wake_ups", "Sleeping clients woken"),
    ("mover_sleeps", "pipedevice_mover_sleeps", "Times that a mover slept"),
    ("mover_idle_ns", "pipedevice_mover_idle_ns", "Nanoseconds that movers had nothing to do"),
    ("channels_moved", "pipedevice_channels_moved", "Channels that went from one mover to another"),
    ("moves_put_off", "pipedevice_moves_put_off", "Moves put off because copies did not end"),
    ("commands_redone", "pipedevice_commands_redone", "Commands that an engine failed and cpu did again"),
    (
        "engines_quarantined",
        "pipedevice_engines_quarantined",
        "Engines no longer used because they kept failing",
    ),
    ("connections_direct", "pipedevice_connections_direct", "Connections made on the direct path"),
    (
        "connections_broken",
        "pipedevice_connections_broken",
        "Direct connections ended because a peer's words were impossible",
    ),
    (
        "connections_recalled",
        "pipedevice_connections_recalled",
        "Connections that left the direct path because policy or tenants changed",
    ),
    ("bytes_reported", "pipedevice_reported_bytes", "Bytes that clients say they sent on the direct path"),
    ("messages_reported", "pipedevice_messages_reported", "Sends that clients say these were"),
    ("file_bytes", "pipedevice_file_bytes", "Bytes of files that the driver read for clients"),
    ("files_cold", "pipedevice_files_cold", "Reads of files that had to wait for a disk"),
    ("files_failed", "pipedevice_files_failed", "Connections ended because a file could not be read"),
];

type OfClient = fn(&ClientReport, &ClientCounters) -> u64;

/// Counters of each client, likewise.
const CLIENT_COUNTERS: [(&str, &str, OfClient); 6] = [
    ("pipedevice_client_sent_bytes", "Bytes delivered that the client had sent", |_, c| c.bytes_sent),
    ("pipedevice_client_received_bytes", "Bytes delivered to the client", |_, c| c.bytes_received),
    ("pipedevice_client_sent_messages", "The client's sends completed", |_, c| c.messages_sent),
    ("pipedevice_client_received_messages", "Sends to the client completed", |_, c| c.messages_received),
    ("pipedevice_client_rings_full", "Times that a receive ring of the client was full", |_, c| c.rings_full),
    ("pipedevice_client_wake_ups", "Times that the client was woken", |_, c| c.wake_ups),
];

/// Gauges of each client.
const CLIENT_GAUGES: [(&str, &str, OfClient); 3] = [
    ("pipedevice_client_memory_bytes", "Bytes of the client's regions", |names, _| names.region_bytes),
    ("pipedevice_client_ring_bytes", "Bytes of them that are receive rings in use", |names, _| {
        names.ring_bytes
    }),
    ("pipedevice_client_sockets", "Sockets of the client", |names, _| names.sockets as u64),
];

/// Returns the page for a sample.
pub fn encode(sample: Sample) -> Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(sample)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).context("cannot write the metrics")?;
    Ok(text)
}

/// Returns the page in the older form of Prometheus. A counter's family has the name of its samples, an info is a gauge, and
/// there is no mark at the end.
pub fn plain(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut plain = String::with_capacity(text.len());
    while let Some(line) = lines.next() {
        let family = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        let Some((name, help)) = family else {
            if !line.starts_with("# EOF") {
                plain.push_str(line);
                plain.push('\n');
            }
            continue;
        };
        let kind = lines.next_if(|next| next.starts_with("# TYPE ")).and_then(|line| line.rsplit(' ').next());
        let (end, kind) = match kind {
            Some("counter") => ("_total", "counter"),
            Some("info") => ("_info", "gauge"),
            other => ("", other.unwrap_or("untyped")),
        };
        plain.push_str(&format!("# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}\n"));
    }
    plain
}

#[derive(Debug)]
struct Page(Sample);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Page(sample) = self;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let mut info =
            encoder.encode_descriptor("pipedevice_build", "The driver's version", None, MetricType::Info)?;
        info.encode_info(&version)?;
        let totals: BTreeMap<_, _> = sample.totals.entries().collect();
        for (field, name, help) in COUNTERS {
            counter(&mut encoder, name, help, totals[field] as f64)?;
        }
        if let Some(cpu) = sample.cpu {
            let help = "CPU time of the driver's process in seconds";
            counter(&mut encoder, "process_cpu_seconds", help, cpu.as_secs_f64())?;
        }
        for (name, help, value) in gauges(sample) {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        let paths = [Path::Offloaded, Path::Direct].map(|path| {
            let count = sample.names.connections.iter().filter(|c| c.path == path).count() as u64;
            ([("path", path.to_string())], count)
        });
        let by_path =
            ("pipedevice_connections_by_path", "Open connections by the path that their bytes take");
        family(&mut encoder, by_path, MetricType::Gauge, paths)?;
        services(&mut encoder, sample)?;
        proxies(&mut encoder, sample)?;
        pipes(&mut encoder, sample)?;
        reasons(&mut encoder, sample)?;
        clients(&mut encoder, sample)
    }
}

fn services(encoder: &mut DescriptorEncoder<'_>, sample: &Sample) -> fmt::Result {
    for (name, help, of, kind) in OF_BACKENDS {
        let each = sample.names.services.iter().flat_map(|service| {
            let labels = move |backend: &BackendReport| {
                [("service", service.address.to_string()), ("backend", backend.address.to_string())]
            };
            service.backends.iter().map(move |backend| (labels(backend), of(backend)))
        });
        family(encoder, (name, help), kind, each)?;
    }
    let down = sample.names.services.iter().flat_map(|service| {
        service.backends.iter().filter(|backend| !is_up(backend)).map(move |backend| {
            let addresses = [service.address, backend.address].map(|address| address.to_string());
            let [service, backend_name] = addresses;
            let reason = state(backend).replace(' ', "_");
            ([("service", service), ("backend", backend_name), ("reason", reason)], 1)
        })
    });
    let name =
        ("pipedevice_service_backend_down", "1 for each backend that gets no new connections, by reason");
    family(encoder, name, MetricType::Gauge, down)?;
    Ok(())
}

fn proxies(encoder: &mut DescriptorEncoder<'_>, sample: &Sample) -> fmt::Result {
    for (name, help, of, kind) in OF_PROXIES {
        let each = sample.names.sidecars.iter().flat_map(|chain| {
            let labels =
                move |proxy: &ProxyReport| [("rule", chain.rule.to_string()), ("proxy", proxy.proxy.clone())];
            chain.proxies.iter().map(move |proxy| (labels(proxy), of(proxy)))
        });
        family(encoder, (name, help), kind, each)?;
    }
    for (name, help, of) in OF_CHAINS {
        let each = sample.names.sidecars.iter().map(|chain| ([("rule", chain.rule.to_string())], of(chain)));
        family(encoder, (name, help), MetricType::Counter, each)?;
    }
    Ok(())
}

fn pipes(encoder: &mut DescriptorEncoder<'_>, sample: &Sample) -> fmt::Result {
    for (name, help, of, kind) in OF_PORTS {
        let labels = |port: &PortReport| [("port", port.name.clone()), ("kind", port.kind.clone())];
        let each = sample.pipes.ports.iter().map(|port| (labels(port), of(port)));
        family(encoder, (name, help), kind, each)?;
    }
    for (name, help, of, kind) in OF_TENANTS {
        let each = sample.pipes.tenants.iter().map(|tenant| ([("tenant", tenant.name.clone())], of(tenant)));
        family(encoder, (name, help), kind, each)?;
    }
    Ok(())
}

fn reasons(encoder: &mut DescriptorEncoder<'_>, sample: &Sample) -> fmt::Result {
    let by_reason = |counts: &BTreeMap<String, u64>, label: &'static str| {
        ([("reason", label)], counts.get(label).copied().unwrap_or(0))
    };
    let reasons =
        KernelReason::ALL.map(|reason| by_reason(&sample.names.kernel_connections_by_reason, reason.label()));
    family(encoder, KERNEL_CONNECTIONS, MetricType::Counter, reasons)?;
    let refusals = Refusal::ALL.iter();
    let refusals =
        refusals.map(|refusal| by_reason(&sample.names.attaches_refused_by_reason, refusal.label()));
    family(encoder, ATTACHES_REFUSED, MetricType::Counter, refusals)?;
    Ok(())
}

fn clients(encoder: &mut DescriptorEncoder<'_>, sample: &Sample) -> fmt::Result {
    let counters = CLIENT_COUNTERS.map(|(name, help, of)| (name, help, of, MetricType::Counter));
    let gauges = CLIENT_GAUGES.map(|(name, help, of)| (name, help, of, MetricType::Gauge));
    for (name, help, of, kind) in counters.into_iter().chain(gauges) {
        let each = sample.names.clients.iter().zip(&sample.clients).map(|(names, counters)| {
            let labels = [
                ("client", names.client.to_string()),
                ("container", names.container.clone().unwrap_or_default()),
                ("tenant", names.tenant.clone().unwrap_or_default()),
            ];
            (labels, of(names, counters))
        });
        family(encoder, (name, help), kind, each)?;
    }
    Ok(())
}

fn gauges(sample: &Sample) -> [(&'static str, &'static str, f64); 8] {
    let totals = &sample.totals;
    let clients = totals.clients_attached.saturating_sub(totals.clients_left);
    let connections = totals.connections_made.saturating_sub(totals.connections_closed);
    [
        (
            "process_start_time_seconds",
            "When the driver started, since 1970",
            sample.header.started_ns as f64 * 1e-9,
        ),
        ("pipedevice_movers", "Movers", f64::from(sample.header.movers)),
        ("pipedevice_movers_working", "Movers that have a thread", sample.gauges.movers_working as f64),
        ("pipedevice_clients", "Clients attached", clients as f64),
        ("pipedevice_connections", "Connections", connections as f64),
        ("pipedevice_memory_used_bytes", "Bytes of all regions", sample.gauges.memory_used_bytes as f64),
        (
            "pipedevice_memory_budget_bytes",
            "Bytes that they may have",
            sample.header.memory_budget_bytes as f64,
        ),
        (
            "pipedevice_rings_waiting",
            "Flows that wait for memory for their ring",
            sample.gauges.rings_waiting as f64,
        ),
    ]
}

type OfBackend = fn(&BackendReport) -> u64;

/// Metrics of each backend of each service.
const OF_BACKENDS: [(&str, &str, OfBackend, MetricType); 6] = [
    (
        "pipedevice_service_connections_made",
        "Connections made to the backend through the service",
        |backend| backend.counts.connections_made,
        MetricType::Counter,
    ),
    (
        "pipedevice_service_connections_failed",
        "Connects on the kernel to the backend through the service that came to nothing",
        |backend| backend.counts.connections_failed,
        MetricType::Counter,
    ),
    (
        "pipedevice_service_sent_bytes",
        "Bytes to the backend, of connections through the service that are over",
        |backend| backend.counts.bytes_sent,
        MetricType::Counter,
    ),
    (
        "pipedevice_service_received_bytes",
        "Bytes from the backend, of connections through the service that are over",
        |backend| backend.counts.bytes_received,
        MetricType::Counter,
    ),
    (
        "pipedevice_service_connections",
        "Open connections to the backend through the service",
        |backend| backend.counts.connections_open,
        MetricType::Gauge,
    ),
    (
        "pipedevice_service_backend_up",
        "1 if the backend gets new connections on the kernel, else 0",
        |backend| {
            u64::from(
                !(backend.drain || backend.no_listener || backend.backlog_full || backend.probe.is_some()),
            )
        },
        MetricType::Gauge,
    ),
];

type OfProxy = fn(&ProxyReport) -> u64;

/// Metrics of each proxy of each rule.
const OF_PROXIES: [(&str, &str, OfProxy, MetricType); 6] = [
    (
        "pipedevice_sidecar_connections_made",
        "Connections that the rule led to the proxy",
        |proxy| proxy.counts.connections_made,
        MetricType::Counter,
    ),
    (
        "pipedevice_sidecar_connections_failed",
        "Connects to the proxy that came to nothing, or found it without a listener",
        |proxy| proxy.counts.connections_failed,
        MetricType::Counter,
    ),
    (
        "pipedevice_sidecar_sent_bytes",
        "Bytes to the proxy, of connections that are over",
        |proxy| proxy.counts.bytes_sent,
        MetricType::Counter,
    ),
    (
        "pipedevice_sidecar_received_bytes",
        "Bytes from the proxy, of connections that are over",
        |proxy| proxy.counts.bytes_received,
        MetricType::Counter,
    ),
    (
        "pipedevice_sidecar_connections",
        "Open connections that the rule led to the proxy",
        |proxy| proxy.counts.connections_open,
        MetricType::Gauge,
    ),
    (
        "pipedevice_sidecar_up",
        "1 if the proxy has a listener on the kernel, else 0",
        |proxy| u64::from(proxy.on_kernel),
        MetricType::Gauge,
    ),
];

type OfChain = fn(&SidecarReport) -> u64;

/// Metrics of each rule with proxies.
const OF_CHAINS: [(&str, &str, OfChain); 2] = [
    (
        "pipedevice_sidecar_connections_refused",
        "Connects that were refused for want of one of the rule's proxies",
        |chain| chain.counts.connections_failed,
    ),
    (
        "pipedevice_sidecar_connections_bypassed",
        "Connects that went on without one of the rule's proxies",
        |chain| chain.connections_bypassed,
    ),
];

type OfPort = fn(&PortReport) -> u64;

/// Metrics of each port.
const OF_PORTS: [(&str, &str, OfPort, MetricType); 9] = [
    (
        "pipedevice_port_received_frames",
        "Frames that pipes received from the port",
        |port| port.frames_received,
        MetricType::Counter,
    ),
    ("pipedevice_port_received_bytes", "Bytes of these", |port| port.bytes_received, MetricType::Counter),
    (
        "pipedevice_port_sent_frames",
        "Frames that pipes sent to the port",
        |port| port.frames_sent,
        MetricType::Counter,
    ),
    ("pipedevice_port_sent_bytes", "Bytes of these", |port| port.bytes_sent, MetricType::Counter),
    (
        "pipedevice_port_unbound_frames",
        "Frames of the port dropped because no pipe is bound to them",
        |port| port.frames_unbound,
        MetricType::Counter,
    ),
    (
        "pipedevice_port_lost_frames",
        "Frames that came by the port and were lost, since a pipe or the kernel's ring was full",
        |port| port.frames_lost,
        MetricType::Counter,
    ),
    (
        "pipedevice_port_unsent_frames",
        "Frames that pipes sent to the port and that could not leave",
        |port| port.frames_unsent,
        MetricType::Counter,
    ),
    (
        "pipedevice_port_wrong_frames",
        "Frames that came back to a generator twice, out of order or changed",
        |port| port.frames_wrong,
        MetricType::Counter,
    ),
    ("pipedevice_port_pipes", "Pipes that belong to the port", |port| port.pipes as u64, MetricType::Gauge),
];

type OfTenant = fn(&TenantPipes) -> u64;

/// Metrics of the pipes of each tenant.
const OF_TENANTS: [(&str, &str, OfTenant, MetricType); 14] = [
    (
        "pipedevice_pipes_opened",
        "Pipes that the tenant opened",
        |tenant| tenant.pipes_opened,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_refused",
        "Pipes that the tenant was refused",
        |tenant| tenant.pipes_refused,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_cut_off",
        "Pipes ended because a client of the tenant broke the protocol",
        |tenant| tenant.pipes_cut_off,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_received_frames",
        "Frames that the tenant's pipes received",
        |tenant| tenant.counts.frames_received,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_received_bytes",
        "Bytes of these",
        |tenant| tenant.counts.bytes_received,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_sent_frames",
        "Frames that the tenant's pipes sent and that were delivered",
        |tenant| tenant.counts.frames_sent,
        MetricType::Counter,
    ),
    ("pipedevice_pipes_sent_bytes", "Bytes of these", |tenant| tenant.counts.bytes_sent, MetricType::Counter),
    (
        "pipedevice_pipes_dropped_frames",
        "Frames that the tenant's programs dropped by verdict",
        |tenant| tenant.counts.frames_dropped,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_refused_frames",
        "Frames of the tenant refused for their source or their verdict",
        |tenant| tenant.counts.frames_refused,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_unbound_frames",
        "Frames of the tenant to which no pipe is bound",
        |tenant| tenant.counts.frames_unbound,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_lost_frames",
        "Frames of ports that lead out for which a ring of the tenant's had no room",
        |tenant| tenant.counts.frames_lost,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_unsent_frames",
        "Frames of the tenant that could not leave by a port that leads out",
        |tenant| tenant.counts.frames_unsent,
        MetricType::Counter,
    ),
    (
        "pipedevice_pipes_notifications",
        "Times that the tenant's programs were told of frames",
        |tenant| tenant.counts.notifications,
        MetricType::Counter,
    ),
    ("pipedevice_pipes", "Pipes that the tenant has", |tenant| tenant.pipes_open, MetricType::Gauge),
];

fn counter(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: f64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

/// Encodes one metric: a value for each set of labels.
fn family<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    (name, help): (&str, &str),
    kind: MetricType,
    each: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in each {
        let mut one = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => one.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            _ => one.encode_gauge(&value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::sample_for_tests;
    use std::collections::HashSet;
    use std::time::Instant;

    /// Checks the text as a scraper would, and returns its samples. Every family is declared before its samples
    /// and once, names keep to the conventions, values are numbers, and the end is marked.
    fn check(text: &str) -> BTreeMap<String, f64> {
        let body = text.strip_suffix("# EOF\n").expect("the end is marked");
        let (mut types, mut helps, mut samples) = (BTreeMap::new(), HashSet::new(), BTreeMap::new());
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help text");
                assert!(!help.is_empty() && helps.insert(name.to_owned()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(["counter", "gauge", "info"].contains(&kind), "{line}");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let name = series.split('{').next().unwrap();
                assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
                let family =
                    ["_total", "_info"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                match types.get(family).map(String::as_str) {
                    Some("counter") => assert!(name.ends_with("_total"), "{line}"),
                    Some("gauge") => assert!(!name.ends_with("_total"), "{line}"),
                    Some(_) => {}
                    None => panic!("not declared: {line}"),
                }
                assert!(helps.contains(family), "{line}");
                let value = value.parse::<f64>().expect("a number");
                assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
            }
        }
        samples
    }

    #[test]
    fn the_page_is_what_a_scraper_understands_and_says_what_was_counted() {
        let samples = check(&encode(sample_for_tests(Instant::now(), 2000, 4)).unwrap());
        let value = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name} in {samples:#?}"));
        assert_eq!(value("pipedevice_delivered_bytes_total"), 6000.0);
        assert_eq!(value("pipedevice_clients"), 3.0);
        assert_eq!(value("pipedevice_memory_used_bytes"), f64::from(12 << 20));
        assert_eq!(value("process_cpu_seconds_total"), 0.5);
        assert_eq!(value(r#"pipedevice_attaches_refused_total{reason="host_process"}"#), 4.0);
        let backend = r#"{service="10.96.0.1:80",backend="10.88.0.2:7000"}"#;
        assert_eq!(value(&format!("pipedevice_service_connections_made_total{backend}")), 4.0);
        assert_eq!(value(&format!("pipedevice_service_backend_up{backend}")), 1.0);
        assert_eq!(value(r#"pipedevice_port_received_bytes_total{port="wan",kind="gen"}"#), 400.0);
        assert_eq!(value(r#"pipedevice_pipes_refused_frames_total{tenant="red"}"#), 2.0);
        assert_eq!(value(r#"pipedevice_pipes{tenant="red"}"#), 2.0);
        let a = r#"{client="0",container="a",tenant="default"}"#;
        assert_eq!(value(&format!("pipedevice_client_sent_bytes_total{a}")), 4000.0);
        assert_eq!(value(&format!("pipedevice_client_memory_bytes{a}")), f64::from(4 << 20));
        assert_eq!(value(r#"pipedevice_client_sent_bytes_total{client="2",container="",tenant=""}"#), 2000.0);
    }

    /// As in `promtool check metrics`: every sample's own name is declared, with a kind that the form has.
    #[test]
    fn the_older_form_declares_each_sample_by_its_name() {
        let text = encode(sample_for_tests(Instant::now(), 2000, 4)).unwrap();
        let older = plain(&text);
        let mut declared = BTreeMap::new();
        for line in older.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(declared.insert(name.to_owned(), kind).is_none(), "{line}");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(declared.contains_key(name), "{line}");
            }
        }
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&older), samples(&text));
        assert!(!older.contains("EOF"));
    }

    #[test]
    fn names_of_containers_cannot_break_the_page() {
        let mut sample = sample_for_tests(Instant::now(), 0, 1);
        let names = std::sync::Arc::get_mut(&mut sample.names).unwrap();
        names.clients[0].tenant = Some("a\"} 1\n# EOF\n\\".to_owned());
        let text = encode(sample).unwrap();
        check(&text);
        assert!(text.contains(r#"tenant="a\"} 1\n# EOF\n\\""#), "{text}");
    }

    #[test]
    fn every_counter_is_on_the_page_and_every_name_in_the_documentation() {
        let known: Vec<_> = COUNTERS.iter().map(|(field, ..)| *field).collect();
        for (field, _) in pd_abi::counters::AgentCounters::default().entries() {
            assert!(known.contains(&field), "{field}");
        }
        let docs = include_str!("../../../../docs/metrics.md");
        for series in check(&encode(sample_for_tests(Instant::now(), 0, 1)).unwrap()).keys() {
            let name = series.split('{').next().unwrap();
            assert!(docs.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
        }
    }
}
