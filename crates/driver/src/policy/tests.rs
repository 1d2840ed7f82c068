use super::*;
use proptest::prelude::*;

const NAMES: [&str; 3] = ["default", "red", "blue"];

fn error(text: &str) -> String {
    Policy::parse(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_allows_everything() {
    let policy = Policy::parse("").unwrap();
    assert_eq!(policy, Policy::default());
    let attempt = Attempt { from: "a", to: "b", address: [10, 0, 0, 1].into(), port: 1 };
    assert_eq!(policy.decide(&attempt), (Action::Allow, None));
}

#[test]
fn every_key_is_read_and_explained() {
    let policy = Policy::parse(
        r#"
        default = "deny"
        path = "offloaded"
        [[tenant]]
        name = "red"
        containers = ["web"]
        cgroups = ["/red.slice"]
        namespaces = ["/run/netns/red"]
        connections_max = 5
        weight = 3
        clients_max = 20
        descriptors_max = 300
        memory_bytes_max = "1MiB"
        reserved = { clients = 2, memory_bytes = "64KiB" }
        rate = { bytes_per_second = "1MiB", burst_bytes = "2MiB", messages_per_second = 1000, burst_messages = 20 }
        connection_rate = { bytes_per_second = 4096 }
        [[tenant]]
        name = "blue"
        [[rule]]
        from = "red"
        to = ["red", "blue"]
        address = ["10.0.0.0/8", "fd00::1"]
        port = [80, "8000-8999"]
        action = "allow"
        path = "direct"
        trust = true
        [[service]]
        address = "[::ffff:10.96.0.1]:80"
        backends = ["10.0.0.2:8080", { address = "10.0.0.3:8080", weight = 4, drain = true }]
        balance = "least_connections"
        affinity_seconds = 60
        health = { interval_ms = 2000, fall = 5 }
        [[service]]
        address = "10.96.0.2:80"
        backends = ["10.0.0.2:8080"]
        "#,
    )
    .unwrap();
    let red = &policy.tenants[0];
    assert_eq!(red.limits.tenant.bytes, Some(Rate { per_second: 1 << 20, burst: 2 << 20, least: 4096 }));
    assert_eq!(red.limits.tenant.messages, Some(Rate { per_second: 1000, burst: 20, least: 1 }));
    assert_eq!(red.limits.connection.bytes, Some(Rate { per_second: 4096, burst: 65536, least: 4096 }));
    let told = policy.to_string();
    for line in [
        "tenant red: container web, cgroup /red.slice, namespace /run/netns/red; at most 5 connections; at most 20 clients; 2 clients reserved; at most 300 descriptors; \
         at most 1048576 bytes of memory; 65536 bytes of memory reserved; weight 3; \
         1048576 bytes/s, burst 2097152; 1000 messages/s, burst 20; 4096 bytes/s a connection, burst 65536",
        "rule 1: allow red to red, blue, address 10.0.0.0/8, fd00::1/128, port 80, 8000-8999, path direct, trusted",
        "otherwise: deny",
        "path without rates: offloaded",
        "service 10.96.0.1:80 is 10.0.0.2:8080, 10.0.0.3:8080 (weight 4) (drained); least_connections; \
         a client keeps its backend for 60 s; looked at every 2000 ms, rise 1, fall 5",
        "service 10.96.0.2:80 is 10.0.0.2:8080; maglev",
    ] {
        assert!(told.lines().any(|l| l == line), "{line:?} is missing in:\n{told}");
    }
    // A drained backend gets nothing.
    assert!(policy.services[0].table.entries().iter().all(|&backend| backend == 0));
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_a_remedy() {
    for (text, parts) in [
        ("\n\nrules = 1", &["line 3", "rules", "expected"][..]),
        ("default = \"perhaps\"", &["line 1", "perhaps", "allow"]),
        ("[[tenant]]\nname = \"a b\"", &["line 1", "a b", "letters"]),
        ("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"", &["line 3", "\"a\"", "already"]),
        ("[[tenant]]\nname = \"a\"\ncgroups = [\"/\"]", &["line 1", "cgroup \"/\"", "/red.slice"]),
        ("[[tenant]]\nname = \"a\"\nnamespaces = [\"x\"]", &["line 1", "\"x\"", "absolute"]),
        (
            "[[tenant]]\nname=\"a\"\ncontainers=[\"c\"]\n[[tenant]]\nname=\"b\"\ncontainers=[\"c\"]",
            &["line 4", "container \"c\"", "take it out"],
        ),
        (
            "[[tenant]]\nname=\"a\"\nrate = { bytes_per_second = 5 }",
            &["line 1", "rate.bytes_per_second = 5", "1024"],
        ),
        ("[[tenant]]\nname=\"a\"\nclients_max = 0", &["line 1", "clients_max = 0", "raise it"]),
        ("[[tenant]]\nname=\"a\"\nreserved = { cats = 1 }", &["line 3", "cats", "expected"]),
        (
            "[[tenant]]\nname=\"a\"\nmemory_bytes_max = \"1MB\"\nreserved = { memory_bytes = \"2MB\" }",
            &["line 1", "reserved.memory_bytes = 2000000", "memory_bytes_max", "lower"],
        ),
        (
            "[[tenant]]\nname=\"default\"\nreserved = { clients = 1 }",
            &["line 1", "reserved.clients", "every user's", "name a tenant"],
        ),
        ("\n[[tenant]]\nname=\"a\"\nweight = 0", &["line 2", "tenant a", "weight = 0", "use 1 to 100"]),
        ("[[tenant]]\nname=\"a\"\nweight = 101", &["line 1", "weight = 101", "leave it out"]),
        ("[[tenant]]\nname=\"a\"\nweight = -1", &["line 1", "weight = -1", "use 1 to 100"]),
        ("[[tenant]]\nname=\"a\"\nrate = { burst_messages = 5 }", &["line 1", "add messages_per_second"]),
        (
            "[[tenant]]\nname=\"a\"\nconnection_rate = { messages_per_second = 1000, burst_messages = 1 }",
            &["line 1", "connection_rate.burst_messages = 1", "use 10 to"],
        ),
        ("[[rule]]\naction = \"allow\"\n[[rule]]\nfrom = \"green\"\naction=\"deny\"", &["line 3", "rule 2", "green", "add [[tenant]]"]),
        ("path = \"kernel\"", &["line 1", "kernel", "offloaded", "direct"]),
        ("[[rule]]\naction = \"deny\"\npath = \"direct\"", &["line 1", "rule 1", "take the key out"]),
        ("[[rule]]\nfrom = \"default\"", &["line 1", "action"]),
        ("[[rule]]\naction = \"deny\"\naddress = \"10.0.0\"", &["line 3", "'10.0.0'", "10.88.0.0/16"]),
        ("[[rule]]\naction = \"deny\"\nport = 70000", &["line 3", "'70000'", "65535"]),
        ("[[rule]]\naction = \"deny\"\nport = \"9-8\"", &["line 3", "'9-8'", "range"]),
        ("[[rule]]\naction = \"deny\"\nto = []", &["line 3", "leave the key out"]),
        ("[[service]]\naddress = \"10.0.0.1:80\"", &["line 1", "10.0.0.1:80", "no backends", "add backends"]),
        ("[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"[fd00::1]:80\"]", &["line 1", "[fd00::1]:80", "family"]),
        ("\n[[service]]\naddress = \"127.0.0.1:80\"\nbackends = [\"10.0.0.1:80\"]", &["line 2", "service", "127.0.0.1:80", "10.88.0.2:80"]),
        ("[[service]]\naddress = \"10.0.0.1:0\"\nbackends = [\"10.0.0.2:80\"]", &["line 1", "port 0", "write the port"]),
        ("[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:0\"]", &["line 1", "backend", "port 0"]),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [{ address = \"10.0.0.2:80\", weight = 0 }]",
            &["line 1", "backend 10.0.0.2:80", "weight = 0", "1 to 1000", "drain = true"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [{ address = \"10.0.0.2:80\", weight = 1001 }]",
            &["line 1", "weight = 1001"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\", \"10.0.0.2:80\"]",
            &["line 1", "twice", "weight"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nbalance = \"random\"",
            &["line 4", "random", "maglev", "least_connections"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\naffinity_seconds = 0",
            &["line 1", "affinity_seconds = 0", "leave it out"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { interval_ms = 5 }",
            &["line 1", "health.interval_ms = 5", "100"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { path = \"/\" }",
            &["line 1", "health.path is about probes", "set probe"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { timeout_ms = 50 }",
            &["line 1", "health.timeout_ms is about probes", "set probe"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { probe = \"tcp\", path = \"/\" }",
            &["line 1", "health.path is for probe = \"http\"", "leave the path out"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { probe = \"http\", path = \"/a b\" }",
            &["line 1", "health.path = \"/a b\"", "write one like"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { probe = \"tcp\", timeout_ms = 600 }",
            &["line 1", "health.timeout_ms = 600", "raise the interval"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2:80\"]\nhealth = { probe = \"udp\" }",
            &["line", "udp", "tcp"],
        ),
        (
            "[[service]]\naddress=\"10.0.0.1:80\"\nbackends=[\"10.0.0.2:1\"]\n[[service]]\naddress=\"10.0.0.1:80\"\nbackends=[\"10.0.0.3:1\"]",
            &["line 4", "there already", "keep one"],
        ),
        (
            "[[service]]\naddress=\"10.0.0.1:80\"\nbackends=[\"10.0.0.2:1\"]\n[[service]]\naddress=\"10.0.0.2:1\"\nbackends=[\"10.0.0.3:1\"]",
            &["line 1", "10.0.0.2:1 is itself a service", "backends"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [\"10.0.0.2\"]",
            &["line 3", "'10.0.0.2' is no address", "10.88.0.2:80"],
        ),
        (
            "[[service]]\naddress = \"10.0.0.1:80\"\nbackends = [{ address = \"10.0.0.2:80\", wait = 2 }]",
            &["line 3", "wait", "weight"],
        ),
        ("[[route]]\nservice = \"10.0.0.1:80\"", &["line 1", "route", "service"]),
    ] {
        let error = error(text);
        for part in parts {
            assert!(error.contains(part), "'{part}' is missing in: {error}");
        }
    }
}

#[test]
fn reserves_that_do_not_fit_are_named() {
    let tenant = |name: &str, more: &str| format!("[[tenant]]\nname = \"{name}\"\nreserved = {{ {more} }}\n");
    let policy = |text: String| Policy::parse(&text).unwrap();
    let total = Amounts { clients: 10, descriptors: 100, lines_bytes: 0, memory_bytes: 1000 };
    let fits =
        tenant("red", "clients = 6, memory_bytes = 1000") + &tenant("blue", "clients = 4, descriptors = 100");
    policy(fits).check_reserves(&total).unwrap();
    for (text, parts) in [
        (
            tenant("red", "clients = 6") + &tenant("blue", "clients = 5"),
            ["tenant blue", "reserved.clients = 5", "reserve 6", "there are 10", "clients_max"],
        ),
        (
            tenant("red", "memory_bytes = 1001"),
            [
                "tenant red",
                "reserved.memory_bytes = 1001",
                "reserve 0",
                "there are 1000",
                "memory.budget_bytes",
            ],
        ),
    ] {
        let error = policy(text).check_reserves(&total).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "'{part}' is missing in: {error}");
        }
    }
}

#[test]
fn control_groups_hold_what_is_below() {
    let is_held = |path| is_below(path, "/red.slice");
    assert!(is_held("/red.slice") && is_held("/red.slice/a/b"));
    assert!(!is_held("/red.slice2") && !is_held("/") && !is_held("/a/red.slice"));
}

/// A rule as written: tenants by number, (address, prefix length), ports first to last.
type Written = (Vec<usize>, Vec<usize>, Option<(u32, u8)>, Option<(u16, u16)>, bool);

fn written() -> impl Strategy<Value = Written> {
    let names = || prop::collection::vec(0..NAMES.len(), 0..3);
    let net = prop::option::of((0u32..16, 24u8..=32).prop_map(|(low, len)| (0x0A00_0000 | low, len)));
    let ports = prop::option::of((1u16..20, 0u16..10).prop_map(|(first, more)| (first, first + more)));
    (names(), names(), net, ports, any::<bool>())
}

fn text(rules: &[Written], deny: bool) -> String {
    let word = |allow| if allow { "allow" } else { "deny" };
    let mut text =
        format!("default = \"{}\"\n[[tenant]]\nname = \"red\"\n[[tenant]]\nname = \"blue\"\n", word(!deny));
    for (from, to, net, ports, allow) in rules {
        text += &format!("[[rule]]\naction = \"{}\"\n", word(*allow));
        for (key, names) in [("from", from), ("to", to)] {
            if !names.is_empty() {
                text += &format!("{key} = {:?}\n", names.iter().map(|&n| NAMES[n]).collect::<Vec<_>>());
            }
        }
        if let Some((address, len)) = net {
            text += &format!("address = \"{}/{len}\"\n", std::net::Ipv4Addr::from_bits(*address));
        }
        if let Some((first, last)) = ports {
            text += &format!("port = \"{first}-{last}\"\n");
        }
    }
    text
}

proptest! {
    /// Compares the policy, read from a file, with arithmetic on the rules' numbers: the first rule whose every condition holds
    /// decides.
    #[test]
    fn the_first_rule_that_matches_decides(
        rules in prop::collection::vec(written(), 0..6),
        deny: bool,
        from in 0..NAMES.len(),
        to in 0..NAMES.len(),
        low in 0u32..16,
        port in 1u16..32,
    ) {
        let policy = Policy::parse(&text(&rules, deny)).unwrap();
        let address = 0x0A00_0000 | low;
        let expected = rules.iter().enumerate().find_map(|(index, (froms, tos, net, ports, allow))| {
            let holds = (froms.is_empty() || froms.contains(&from))
                && (tos.is_empty() || tos.contains(&to))
                && net.is_none_or(|(net, len)| u64::from(net) >> (32 - len) == u64::from(address) >> (32 - len))
                && ports.is_none_or(|(first, last)| first <= port && port <= last);
            holds.then_some((*allow, Some(index)))
        });
        let (allow, index) = expected.unwrap_or((!deny, None));
        let attempt = Attempt {
            from: NAMES[from],
            to: NAMES[to],
            address: std::net::Ipv4Addr::from_bits(address).into(),
            port,
        };
        let action = if allow { Action::Allow } else { Action::Deny };
        prop_assert_eq!(policy.decide(&attempt), (action, index));
    }
}

/// A rule that names the service applies to its address. A rule that denies a backend denies it through the service, too.
#[test]
fn a_service_and_its_backend_may_both_be_denied() {
    let decide = |text: &str| {
        let policy = Policy::parse(text).unwrap();
        let asked = Attempt { from: "default", to: "default", address: [10, 96, 0, 1].into(), port: 80 };
        let reached = Attempt { address: [10, 0, 0, 2].into(), port: 8080, ..asked };
        policy.decide_service(&asked, &reached)
    };
    let rule =
        |address: &str, action: &str| format!("[[rule]]\naddress = \"{address}\"\naction = \"{action}\"\n");
    let [deny, allow] = ["deny", "allow"];
    let (service, backend) = ("10.96.0.1", "10.0.0.2");
    assert_eq!(decide(""), (Action::Allow, None));
    assert_eq!(decide("default = \"deny\""), (Action::Deny, None));
    assert_eq!(decide(&rule(service, deny)), (Action::Deny, Some(0)));
    assert_eq!(decide(&rule(backend, deny)), (Action::Deny, Some(0)));
    assert_eq!(decide(&(rule(service, allow) + &rule(backend, deny))), (Action::Deny, Some(1)));
    assert_eq!(decide(&(rule(backend, allow) + &rule(service, deny))), (Action::Deny, Some(1)));
    let closed = "default = \"deny\"\n".to_owned();
    assert_eq!(decide(&(closed.clone() + &rule(service, allow))), (Action::Allow, Some(0)));
    assert_eq!(decide(&(closed + &rule(backend, allow))), (Action::Allow, Some(0)));
    // A rule's port is the service's for rules on its address, and the backend's otherwise.
    assert_eq!(decide("[[rule]]\nport = 80\naction = \"deny\""), (Action::Allow, None));
    assert_eq!(decide("[[rule]]\nport = 8080\naction = \"deny\""), (Action::Deny, Some(0)));
    let named = "[[rule]]\naddress = \"10.96.0.0/16\"\nport = 80\naction = \"deny\"";
    assert_eq!(decide(named), (Action::Deny, Some(0)));
}

#[test]
fn more_probes_in_a_second_than_may_be_are_refused() {
    let service = |number: u8, interval_ms: u32| {
        let backends: Vec<_> = (0..100).map(|n| format!("\"10.0.{number}.{n}:80\"")).collect();
        format!(
            "[[service]]\naddress = \"10.96.0.{number}:80\"\nbackends = [{}]\nhealth = {{ probe = \"tcp\", interval_ms = {interval_ms} }}\n",
            backends.join(", ")
        )
    };
    let full = service(1, 100);
    let policy = Policy::parse(&full).unwrap();
    assert!(policy.services[0].to_string().ends_with("rise 1, fall 1, probed by connecting within 100 ms"));
    let why = Policy::parse(&(full.clone() + &service(2, 3_600_000))).unwrap_err().to_string();
    for word in ["line 5", "service 10.96.0.2:80", "1001 probes in a second", "raise health.interval_ms"] {
        assert!(why.contains(word), "{why}");
    }
    // A service without probes fits.
    Policy::parse(&(full + "[[service]]\naddress = \"10.96.0.3:80\"\nbackends = [\"10.0.3.1:80\"]\n"))
        .unwrap();
}

#[test]
fn a_rule_on_an_address_of_ipv4_in_ipv6_is_one_on_ipv4() {
    let text = "[[rule]]\naddress = [\"::ffff:10.0.0.1\", \"::ffff:10.1.0.0/112\", \"::ffff:0:0/96\"]\nport = 1\naction = \"deny\"\n\
                [[rule]]\naddress = \"::ffff:10.0.0.0/104\"\nport = 2\naction = \"deny\"";
    let policy = Policy::parse(text).unwrap();
    let nets: Vec<_> =
        policy.rules.iter().flat_map(|rule| &rule.addresses).map(ToString::to_string).collect();
    assert_eq!(nets, ["10.0.0.1/32", "10.1.0.0/16", "0.0.0.0/0", "10.0.0.0/8"]);
    let attempt = |port| Attempt { from: "default", to: "default", address: [10, 0, 0, 1].into(), port };
    assert_eq!(
        [1, 2, 3].map(|port| policy.decide(&attempt(port)).0),
        [Action::Deny, Action::Deny, Action::Allow]
    );
}

#[test]
fn what_a_policy_may_have_is_bounded() {
    let groups: Vec<_> = (0..20_000).map(|number| format!("\"/{number}\"")).collect();
    let tenant =
        format!("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\ncgroups = [{}]", groups.join(", "));
    let rules = "[[rule]]\naction = \"deny\"\n".repeat(65_536);
    for (text, parts) in [(&tenant, ["line 3", "16384"]), (&rules, ["line 131071", "65535 rules"])] {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
