//! Rules that lead through proxies, and these, as tables.

use comfy_table::{presets, Table};
use pd_driver::admin::{ProxyReport, ServiceCounts, SidecarReport};

/// Describes whether a proxy gets connections, and by which path.
pub fn state(proxy: &ProxyReport) -> &'static str {
    match (proxy.addresses.is_empty(), proxy.on_kernel, proxy.on_fabric) {
        (true, ..) => "not there",
        (_, true, true) => "up",
        (_, true, false) => "up on the kernel",
        (_, false, true) => "up on the fabric alone",
        (_, false, false) => "no listener",
    }
}

/// Makes a row for each rule, and one for each of its proxies below.
pub fn table(sidecars: &[SidecarReport]) -> Table {
    let mut table = Table::new();
    let header = ["RULE", "VIA", "STATE", "OPEN", "MADE", "FAILED", "BYPASSED", "BYTES SENT", "RECEIVED"];
    table.load_preset(presets::NOTHING).set_header(header);
    for chain in sidecars {
        let mut row = |via: String, state: &str, bypassed: String, counts: &ServiceCounts| {
            let first = [chain.rule.to_string(), via, state.to_owned()];
            let of_connections =
                [counts.connections_open, counts.connections_made, counts.connections_failed];
            let of_bytes = [counts.bytes_sent, counts.bytes_received].map(|n| n.to_string());
            let numbers = of_connections.map(|n| n.to_string());
            table.add_row(first.into_iter().chain(numbers).chain([bypassed]).chain(of_bytes));
        };
        let bypassed = chain.connections_bypassed.to_string();
        row(format!("(on failure {})", chain.on_failure), "", bypassed, &chain.counts);
        for proxy in &chain.proxies {
            row(proxy.proxy.clone(), state(proxy), String::new(), &proxy.counts);
        }
    }
    table
}

/// Makes a sentence for each proxy that gets no connections.
pub fn absent(sidecars: &[SidecarReport]) -> Vec<String> {
    let each = |chain: &SidecarReport| {
        let rule = chain.rule;
        let idle = chain.proxies.iter().filter(|proxy| !proxy.on_kernel && !proxy.on_fabric);
        let lines = idle.map(move |proxy| {
            let (name, state) = (&proxy.proxy, state(proxy));
            let then = match chain.on_failure {
                pd_driver::policy::via::OnFailure::Close => "its connections are refused",
                pd_driver::policy::via::OnFailure::Bypass => "its connections go on without it",
            };
            format!("rule {rule}: proxy {name}: {state}; {then} until it listens")
        });
        lines.collect::<Vec<_>>()
    };
    sidecars.iter().flat_map(each).collect()
}
