//! Processes that a driver did not let in, by reason, for people.

use std::collections::BTreeMap;

use pd_driver::Refusal;

/// Returns a line for each reason: count, text and remedy.
pub fn lines(by_reason: &BTreeMap<String, u64>) -> Vec<String> {
    let line = |(label, count): (&String, &u64)| match Refusal::from_label(label) {
        Some(refusal) => format!("not let in: {count}: {}: {}", refusal.text(), refusal.remedy()),
        None => format!("not let in: {count}: {label}"),
    };
    by_reason.iter().filter(|(_, count)| **count > 0).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_line_with_a_remedy() {
        let of = |label: &str, count| lines(&BTreeMap::from([(label.to_owned(), count)]));
        assert_eq!(of("host_process", 0), [""; 0]);
        assert_eq!(of("of a later version", 2), ["not let in: 2: of a later version"]);
        for refusal in Refusal::ALL {
            let told = of(refusal.label(), 3);
            assert!(
                told[0].starts_with("not let in: 3: ") && told[0].ends_with(refusal.remedy()),
                "{told:?}"
            );
        }
    }
}
