//! The C header, generated: `crates/abi/include/pd_abi.h` is this text, committed, and a test fails when it is stale
//! (`UPDATE=1 cargo test -p pd-abi` writes it anew). A client can be written from it alone: `tests/programs/hostile.c` is.
use crate::describe::{
    capitals, check, paragraph, Layout, CONSTANTS, COUNTERS, COUNTER_NUMBERS, ENTRIES, KINDS, PAGES,
};
use core::fmt::Write;
use std::string::String;

fn header() -> String {
    let mut out = String::from(
        "/* The PipeDevice ABI. Generated from the pd-abi crate; do not edit.\n \
         * SPDX-License-Identifier: Apache-2.0\n *\n \
         * Numbers are little endian. Offsets of words are bytes from the start of their page or line. */\n\
         #ifndef PD_ABI_H\n#define PD_ABI_H\n\n#include <stdint.h>\n",
    );
    for group in CONSTANTS.iter().chain(KINDS).chain(COUNTER_NUMBERS) {
        write!(out, "\n/* {}. */\n", plain(group.title)).unwrap();
        for number in group.numbers {
            comment(&mut out, "", number.text);
            writeln!(out, "#define PD_ABI_{}{} {}ull", group.prefix, capitals(number.name), number.value)
                .unwrap();
        }
    }
    for page in PAGES {
        write!(out, "\n/* {}, written by: {}. {} bytes. */\n", page.title, page.writer, page.bytes).unwrap();
        for word in page.words {
            comment(&mut out, &std::format!("{}: ", word.kind.replace(" as usize", "")), word.text);
            writeln!(out, "#define PD_ABI_{}{} {}ull", page.prefix, word.name, word.offset).unwrap();
        }
    }
    for entry in ENTRIES.iter().chain(COUNTERS) {
        structure(&mut out, entry);
    }
    out.push_str("\n#endif\n");
    out
}

fn structure(out: &mut String, entry: &Layout) {
    let (name, bytes) = (entry.prefix, entry.bytes);
    write!(out, "\n/* {}, written by: {}. */\n", entry.title, entry.writer).unwrap();
    writeln!(out, "#define PD_ABI_{}_BYTES {bytes}ull", capitals(name)).unwrap();
    writeln!(out, "struct pd_abi_{name} {{").unwrap();
    for field in entry.words {
        out.push_str("    ");
        comment(out, "", field.text);
        // `errno` is a macro of C.
        let name = if field.name == "errno" { "error" } else { field.name };
        let element = field.kind.trim_start_matches('[').split(';').next().unwrap();
        write!(out, "    uint{}_t {name}", &element[1..]).unwrap();
        if field.kind.starts_with('[') {
            write!(out, "[{}]", field.bytes / field.align).unwrap();
        }
        out.push_str(";\n");
    }
    out.push_str("};\n");
    writeln!(out, "_Static_assert(sizeof(struct pd_abi_{name}) == {bytes}, \"{name} has {bytes} bytes\");")
        .unwrap();
}

fn plain(text: &str) -> String {
    text.replace('`', "")
}

fn comment(out: &mut String, before: &str, text: &[&str]) {
    writeln!(out, "/* {before}{} */", plain(&paragraph(text))).unwrap();
}

#[test]
fn committed_header_is_fresh() {
    check("include/pd_abi.h", &header());
}
