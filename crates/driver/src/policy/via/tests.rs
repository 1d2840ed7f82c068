use super::*;
use crate::policy::DEFAULT_TENANT;
use proptest::prelude::*;

const TENANTS: &str = r#"
[[tenant]]
name = "red"
containers = ["client"]
[[tenant]]
name = "blue"
containers = ["server"]
[[tenant]]
name = "grey"
containers = ["p1", "p2", "p3"]
"#;

fn rule(keys: &str) -> String {
    format!("[[rule]]\n{keys}\naction = \"allow\"\n")
}

fn parse(rules: &str) -> Result<Policy, String> {
    Policy::parse(&format!("{TENANTS}{rules}")).map_err(|error| error.to_string())
}

#[test]
fn proxies_are_read_and_said() {
    for text in [
        "container:proxy",
        "container:proxy:15001",
        "10.88.0.9:15001",
        "10.88.0.9",
        "[fd88::9]:80",
        "fd88::9",
    ] {
        assert_eq!(text.parse::<Hop>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "proxy",
        "container:",
        "container:p:0",
        "container:p:x",
        "container:a/b",
        "10.88.0.9:0",
        "127.0.0.1:80",
        "0.0.0.0",
    ] {
        assert!(text.parse::<Hop>().unwrap_err().contains("write \"container:proxy\""), "{text}");
    }
    let policy = parse(&rule(
        "from = \"red\"\nvia = [\"container:p1\", \"container:p2:80\"]\non_failure = \"bypass\"",
    ))
    .unwrap();
    assert!(
        policy.rules[0].to_string().ends_with("via container:p1, container:p2:80, on failure bypass"),
        "{}",
        policy.rules[0]
    );
}

#[test]
fn what_cannot_be_kept_is_refused_with_line_and_remedy() {
    let two = |first: &str, second: &str| {
        rule(&format!("from = \"red\"\nvia = {first}")) + &rule(&format!("from = \"blue\"\nvia = {second}"))
    };
    let service =
        "[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.88.0.2:80\", \"10.88.0.3:80\"]\n";
    for (rules, line, words) in [
        (rule("via = []"), 12, "an empty list"),
        (
            rule("via = \"container:p1\"").replace("allow", "deny"),
            11,
            "is denied has no via; take the key out",
        ),
        (rule("on_failure = \"close\""), 11, "without via means nothing; add via"),
        (
            rule("via = [\"container:p1\", \"container:p1:80\"]"),
            11,
            "a loop of via: container:p1:80 comes twice",
        ),
        (rule("via = \"container:other\""), 11, "an unknown proxy; add containers = [\"other\"]"),
        (rule("via = \"10.88.0.9:80\""), 11, "add address = \"0.0.0.0/0\""),
        (rule("address = \"::/0\"\nvia = \"10.88.0.9:80\""), 11, "takes IPv4 alone"),
        (rule("address = \"0.0.0.0/0\"\nvia = \"10.96.0.1:80\"") + service, 11, "is a service"),
        (
            two("[\"container:p1\", \"container:p2\"]", "[\"container:p2\", \"container:p1\"]"),
            15,
            "a loop of via: it leads from container:p2",
        ),
        (
            two("[\"container:p1\", \"container:p2\"]", "[\"container:p1\"]"),
            15,
            "give the two rules the same order",
        ),
        (
            rule("address = \"10.88.0.2\"\nvia = [\"container:p1\", \"container:p2\"]")
                + &rule("address = \"10.88.0.3\"\nvia = [\"container:p2\", \"container:p1\"]")
                + service,
            15,
            "a loop of via",
        ),
    ] {
        let why = parse(&rules).unwrap_err();
        assert!(
            why.contains(words)
                && (why.starts_with(&format!("line {line}: ")) || why.contains(&format!("line {line},"))),
            "{rules}: {why}"
        );
    }
    // Destinations that no connection can have in common.
    for keys in [
        ["address = \"10.88.0.2\"", "address = \"10.88.0.3\""],
        ["port = 80", "port = 81"],
        ["to = \"red\"", "to = \"blue\""],
    ] {
        let chains = ["[\"container:p1\", \"container:p2\"]", "[\"container:p2\", \"container:p1\"]"];
        let rules: String =
            keys.iter().zip(chains).map(|(keys, via)| rule(&format!("{keys}\nvia = {via}"))).collect();
        parse(&rules).unwrap();
    }
}

fn attempt<'a>(from: &'a str, to: &'a str, last: u8) -> Attempt<'a> {
    Attempt { from, to, address: [10, 88, 0, last].into(), port: 80 }
}

#[test]
fn a_chain_is_passed_in_its_order_once() {
    let rules = rule("from = \"red\"\nto = \"blue\"\nvia = [\"container:p1\", \"container:p2\"]");
    let policy = Policy::parse(&format!("default = \"deny\"\n{TENANTS}{rules}")).unwrap();
    let leg = |from: &str, own: Option<&str>| {
        let is_own = |hop: &Hop| own.is_some_and(|own| hop.at == At::Container(own.to_owned()));
        let decision = policy.decide_leg(None, &attempt(from, "blue", 2), is_own);
        (decision.action, decision.leg)
    };
    assert_eq!(leg("red", None), (Action::Allow, Some((0, 0))));
    // Proxies may connect where they are led, and nowhere else.
    assert_eq!(leg("grey", Some("p1")), (Action::Allow, Some((0, 1))));
    assert_eq!(leg("grey", Some("p2")), (Action::Allow, None));
    assert_eq!(leg("grey", Some("p3")), (Action::Deny, None));
    assert_eq!(policy.decide_leg(None, &attempt("grey", "red", 2), |_| true).action, Action::Deny);
    // A rule before it that denies comes first.
    let denies = "[[rule]]\nfrom = \"grey\"\naction = \"deny\"\n";
    let policy = parse(&(denies.to_owned() + &rules)).unwrap();
    let decision = policy.decide_leg(None, &attempt("grey", "blue", 2), |_| true);
    assert_eq!((decision.action, decision.rule), (Action::Deny, Some(0)));
}

#[test]
fn a_rule_that_names_the_service_leads_before_one_for_its_backend() {
    let rules = rule("from = \"red\"\naddress = \"10.96.0.1\"\nvia = \"container:p1\"")
        + &rule("from = \"red\"\nto = \"blue\"\nvia = \"container:p2\"");
    let policy = parse(&rules).unwrap();
    let asked = Attempt { address: [10, 96, 0, 1].into(), ..attempt("red", "blue", 2) };
    let of = |asked| policy.decide_leg(asked, &attempt("red", "blue", 2), |_| false).leg;
    assert_eq!((of(Some(&asked)), of(None)), (Some((0, 0)), Some((1, 0))));
}

/// Generates unchecked rules: any proxies in any order, for a few tenants and addresses.
fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
    let names =
        || prop::sample::subsequence(vec!["red".to_owned(), "blue".to_owned(), "grey".to_owned()], 0..=2);
    let nets = prop::sample::subsequence(vec!["10.88.0.2/32", "10.88.0.3/32", "10.88.0.0/24"], 0..=2);
    let hops = prop::collection::vec(0u8..5, 0..5);
    let rule = (names(), names(), nets, hops, any::<bool>()).prop_map(|(from, to, nets, hops, denies)| {
        let hops: Vec<_> =
            hops.into_iter().map(|n| Hop { at: At::Container(format!("p{n}")), port: None }).collect();
        Rule {
            from,
            to,
            addresses: nets.into_iter().map(|net| net.parse().unwrap()).collect(),
            action: if denies && hops.is_empty() { Action::Deny } else { Action::Allow },
            via: (!hops.is_empty()).then_some(Via { hops, on_failure: OnFailure::Close }),
            ..Rule::default()
        }
    });
    prop::collection::vec(rule, 0..12)
}

proptest! {
    /// With any rules, any owners of proxies, and any absent proxies, a connection arrives.
    #[test]
    fn no_set_of_rules_makes_a_loop(
        rules in any_rules(),
        tenants in prop::collection::vec(0usize..4, 5),
        down in any::<u8>(),
        last in 2u8..5,
    ) {
        let names = [DEFAULT_TENANT, "red", "blue", "grey"];
        let policy = Policy { rules, ..Policy::default() };
        for from in names {
            let (mut from, mut own, mut steps) = (from, None, 0);
            loop {
                let decision = policy.decide_leg(None, &attempt(from, "blue", last), |hop| own == Some(&hop.at));
                let Some((rule, first)) = decision.leg else { break };
                prop_assert_eq!(decision.action, Action::Allow);
                let hops = &policy.rules[rule].via.as_ref().unwrap().hops;
                let number = |hop: &Hop| hop.to_string()["container:p".len()..].parse::<usize>().unwrap();
                let Some(next) = hops[first..].iter().find(|hop| down & 1 << number(hop) == 0) else { break };
                prop_assert_ne!(own, Some(&next.at), "a proxy is not led to itself");
                (from, own) = (names[tenants[number(next)]], Some(&next.at));
                steps += 1;
                prop_assert!(steps <= 5, "more steps than proxies");
            }
        }
    }

    /// Rules that pass the check are kept: each connection passes all proxies of its rule, in their order.
    #[test]
    fn rules_that_fit_are_kept(rules in any_rules(), tenants in prop::collection::vec(0usize..4, 5), last in 2u8..5) {
        let mut fitting: Vec<Rule> = Vec::new();
        let all = Tenant { containers: (0..5).map(|n| format!("p{n}")).collect(), ..Tenant::default() };
        for rule in rules.into_iter().filter(|rule| rule.action == Action::Allow) {
            if fits(&rule, &fitting, std::slice::from_ref(&all), &[]).is_ok() {
                fitting.push(rule);
            }
        }
        let names = [DEFAULT_TENANT, "red", "blue", "grey"];
        let policy = Policy { rules: fitting, ..Policy::default() };
        for client in names {
            let expected = policy.decide_leg(None, &attempt(client, "blue", last), |_| false).leg.map(|(rule, _)| rule);
            let expected = expected.map_or(Vec::new(), |rule| policy.rules[rule].via.clone().unwrap().hops);
            let (mut from, mut own, mut passed) = (client, None, Vec::new());
            while let Some((rule, first)) = policy.decide_leg(None, &attempt(from, "blue", last), |hop| own.as_ref() == Some(&hop.at)).leg {
                let next = policy.rules[rule].via.as_ref().unwrap().hops[first].clone();
                let number = next.to_string()["container:p".len()..].parse::<usize>().unwrap();
                (from, own) = (names[tenants[number]], Some(next.at.clone()));
                passed.push(next);
            }
            prop_assert_eq!(passed, expected);
        }
    }
}
