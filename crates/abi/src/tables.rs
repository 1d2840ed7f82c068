//! The tables of the documents, generated into `docs/reference`: committed, and a test fails when one is stale
//! (`UPDATE=1 cargo test -p pd-abi` writes them anew).
use crate::describe::{
    capitals, check, paragraph, Layout, Numbers, CONSTANTS, COUNTERS, COUNTER_NUMBERS, ENTRIES, KINDS, PAGES,
};
use core::fmt::Write;
use std::string::String;

const GENERATED: &str = "<!-- Generated from the pd-abi crate; do not edit. -->\n";

fn table(out: &mut String, group: &Numbers) {
    write!(out, "\n## {}\n\n| name | number | |\n|---|---:|---|\n", group.title).unwrap();
    for number in group.numbers {
        let name = match group.prefix {
            "" | "LAYOUT_" | "PATH_" | "COUNTERS_" => number.name.into(),
            _ => capitals(number.name),
        };
        writeln!(out, "| `{name}` | {} | {} |", number.value, paragraph(number.text)).unwrap();
    }
}

fn layout(out: &mut String, page: &Layout) {
    write!(out, "\n## {}\n\n{} bytes, written by: {}.\n", page.title, page.bytes, page.writer).unwrap();
    out.push_str("\n| offset | name | type | |\n|---:|---|---|---|\n");
    for word in page.words {
        let kind = word.kind.replace(" as usize", "").replace("Self::", "");
        let name = word.name.to_ascii_lowercase();
        writeln!(out, "| {} | `{name}` | `{kind}` | {} |", word.offset, paragraph(word.text)).unwrap();
    }
}

#[test]
fn committed_tables_of_limits_and_words_are_fresh() {
    let mut out = String::from("# Limits and numbers\n\n");
    out.push_str(GENERATED);
    out.push_str("\nNumbers by which driver and clients agree. What a user notices of them is in [limits.md](../guides/limits.md).\n");
    CONSTANTS.iter().for_each(|group| table(&mut out, group));
    check("../../docs/reference/limits.md", &out);

    let mut out = String::from("# Shared words and entries\n\n");
    out.push_str(GENERATED);
    out.push_str(
        "\nEach word has one writer. The rules of their use are in [words.md](../design/words.md).\n",
    );
    PAGES.iter().chain(ENTRIES).for_each(|page| layout(&mut out, page));
    check("../../docs/reference/words.md", &out);
}

#[test]
fn committed_tables_of_counters_are_fresh() {
    let mut out = String::from("# Counter region\n\n");
    out.push_str(GENERATED);
    out.push_str("\nWhat the driver counts, for those who may use its admin socket: [counters.md](../design/counters.md).\n");
    COUNTER_NUMBERS.iter().for_each(|group| table(&mut out, group));
    COUNTERS.iter().for_each(|page| layout(&mut out, page));
    check("../../docs/reference/counters.md", &out);
}

#[test]
fn committed_tables_of_kinds_are_fresh() {
    let mut out = String::from("# Requests, events, frames\n\n");
    out.push_str(GENERATED);
    out.push_str("\nWhat client and driver, and driver and engine, can say to each other. Their fields are in [words.md](words.md).\n");
    KINDS.iter().for_each(|group| table(&mut out, group));
    check("../../docs/reference/operations.md", &out);
}
