//! `pd bench`, short: every scheme moves its bytes and agrees on their checksum, or says why it does
//! not run here; nothing is left behind. No figure is a condition.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Schemes that run on every machine that can run the other tests.
const MUST_RUN: [&str; 9] = [
    "pipedevice",
    "tcp",
    "tcp-loopback",
    "unix",
    "process_vm_readv",
    "shm-ring",
    "memcpy",
    "engine",
    "engine-pipeline",
];

fn bench(dir: &Path, arguments: &[&str]) -> Vec<Value> {
    let file = dir.join("rows.json");
    let output = Command::new(env!("CARGO_BIN_EXE_pd"))
        .arg("bench")
        .args(arguments)
        .args(["--quick", "--smoke", "--rounds", "1", "--round-ms", "20", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Fails for a row that must have figures and has none; prints other skipped ones.
fn check(row: &Value, metric: &str) {
    let scheme = row["scheme"].as_str().unwrap();
    match row["not_run"].as_str() {
        Some(reason) => {
            assert!(!MUST_RUN.contains(&scheme), "{scheme} did not run: {reason}");
            eprintln!("SKIPPED: {scheme}: {reason}");
        }
        None => assert!(row[metric].as_f64().unwrap() > 0.0, "{row}"),
    }
}

#[test]
fn every_scheme_moves_bytes_unchanged_or_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let rows = bench(dir.path(), &["throughput", "--report", report.to_str().unwrap()]);
    for size in [64, 1024, 65536, 1048576] {
        let schemes: Vec<&str> = rows
            .iter()
            .filter(|row| row["message_bytes"] == size)
            .map(|row| row["scheme"].as_str().unwrap())
            .collect();
        assert!(MUST_RUN.iter().all(|scheme| schemes.contains(scheme)), "{size}: {schemes:?}");
    }
    rows.iter().for_each(|row| check(row, "throughput_gbit_per_s"));
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("pipedevice"));
    assert!(report.join("results.json").exists());
}

#[test]
fn who_leaves_out_every_row_is_told_which_there_are() {
    let told = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pd"))
            .args(["bench", "throughput", "--quick", "--rounds", "1", "--round-ms", "20"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = told(&["--schemes", "tcp", "--only", "message_bytes=5"]);
    assert!(text.contains("there are: ") && text.contains("message_bytes 65536"), "{text}");
    assert!(told(&["--schemes", "preload"]).contains("leave out --schemes"));
}

#[test]
fn the_other_benchmarks_have_figures_for_pipedevice_and_tcp() {
    let dir = tempfile::tempdir().unwrap();
    for (name, metric) in [
        ("cpu", "cpu_cores"),
        ("latency", "latency_us_p50"),
        ("setup", "connections_per_s"),
        ("fairness", "jain_index"),
        ("memory", "memory_bytes"),
    ] {
        let rows = bench(dir.path(), &[name, "--schemes", "pipedevice,tcp"]);
        assert!(rows.iter().any(|row| row["scheme"] == "pipedevice"), "{name}");
        for row in rows {
            assert_eq!(row["bench"], name);
            if name != "cpu" {
                check(&row, metric);
            }
        }
    }
}

#[test]
fn many_connections_parts_of_cpu_time_and_programs_have_figures_or_say_why_not() {
    let dir = tempfile::tempdir().unwrap();
    for (name, only, metric) in [
        ("connections", "connections=128", "throughput_gbit_per_s"),
        ("breakdown", "", "cpu_share_percent"),
        ("programs", "program=iperf3", "throughput_gbit_per_s"),
    ] {
        let only = if only.is_empty() { vec![] } else { vec!["--only", only] };
        let rows = bench(dir.path(), &[&[name, "--schemes", "pipedevice,tcp"], &only[..]].concat());
        for row in rows {
            match (row["not_run"].as_str(), name) {
                (Some(reason), "programs") => eprintln!("SKIPPED: {name}: {reason}"),
                (not_run, _) => assert!(not_run.is_none() && row[metric].is_number(), "{row}"),
            }
        }
    }
}

#[test]
fn frames_come_back_unchanged_over_a_pipe_and_over_a_packetised_interface() {
    let dir = tempfile::tempdir().unwrap();
    let rows = bench(dir.path(), &["pipe"]);
    for scheme in ["packetised", "memif", "pipe", "pipe-each"] {
        let row = rows.iter().find(|row| row["scheme"] == scheme).unwrap();
        for metric in
            ["packets_per_s", "over_packetised", "packets_per_notification", "cpu_share_percent_program"]
        {
            check(row, metric);
        }
    }
    for scheme in ["packetised", "memif", "link-agent", "link"] {
        let row = rows.iter().find(|row| row["app"] == "link" && row["scheme"] == scheme).unwrap();
        check(row, "over_packetised");
    }
    for (by, pipes) in [("flows", 1), ("flows", 16), ("hash", 4)] {
        let row = rows.iter().find(|row| row["by"] == by && row["pipes"] == pipes).unwrap();
        check(row, "packets_per_s");
        check(row, "busiest_over_mean");
    }
    for app in ["maglev", "nitro", "kv", "logmon"] {
        for scheme in ["packetised", "memif", "pipe"] {
            // Rows of a latency have requests under way.
            let own = |row: &&Value| {
                row["app"] == app && row["scheme"] == scheme && row["requests_under_way"].is_null()
            };
            let row = rows.iter().find(own).unwrap();
            check(row, "over_packetised");
            check(row, "program_ns_per_packet");
        }
    }
}

#[test]
fn kernel_tcp_is_what_linux_has_and_what_was_found_best_and_both_ends_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let schemes = ["throughput", "--schemes", "tcp,tcp-tuned,tcp-loopback,pipedevice-default"];
    let rows = bench(dir.path(), &[&schemes[..], &["--only", "message_bytes=65536"]].concat());
    let settings = |scheme: &str| -> String {
        let row = rows.iter().find(|row| row["scheme"] == scheme).unwrap();
        row["settings"].as_str().unwrap_or_default().to_owned()
    };
    assert!(settings("tcp").starts_with("both ends cubic (network namespace: cubic, MTU 1500, "));
    assert!(
        settings("tcp-tuned").starts_with("both ends cubic (network namespace: cubic, MTU 65535, pieces to ")
    );
    assert_eq!(settings("tcp-loopback"), "both ends cubic");
    assert!(settings("pipedevice-default").ends_with(" path"));
}

#[test]
fn a_victim_is_measured_alone_and_beside_an_attacker_of_which_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    for (attack, cases) in [("pipes", [1, 0]), ("twins", [1, 1]), ("bulk", [3, 1])] {
        // Streams with different checksums have no figures.
        let rows = bench(dir.path(), &["isolation", "--only", &format!("attack={attack}")]);
        for (scheme, cases) in ["pipedevice", "pipedevice-direct"].into_iter().zip(cases) {
            // Rows with equal weights need control groups.
            let own =
                |row: &&Value| row["scheme"] == scheme && row["attack"] == attack && row["weights"].is_null();
            let own: Vec<&Value> = rows.iter().filter(own).collect();
            assert_eq!(own.len(), cases, "{attack}");
            for row in own {
                assert_eq!((&row["bench"], &row["not_run"]), (&"isolation".into(), &Value::Null), "{row}");
                let figures =
                    ["kept", "kept_below_share", "longest_gap_ms", "latency_us_p99", "latency_us_p99_alone"];
                assert!(figures.iter().all(|name| row[name].as_f64().unwrap() > 0.0), "{row}");
                assert!(row["attacks_per_s"].is_number(), "{row}");
                let left = ["left_behind_clients", "left_behind_descriptors", "left_behind_bytes"];
                assert!(left.iter().all(|name| row[name] == 0.0), "{row}");
            }
        }
    }
    let rows = bench(dir.path(), &["isolation", "--only", "attack=denied"]);
    assert!(rows.len() == 2 && rows.iter().all(|row| row["ended_ms"].as_f64().unwrap() > 0.0), "{rows:?}");
}

#[test]
fn answers_pass_the_proxy_on_the_kernel_and_on_the_fabric() {
    let dir = tempfile::tempdir().unwrap();
    // An answer that bypassed the proxy, or has other bytes, ends the client: such a row has no figures.
    let rows = bench(
        dir.path(),
        &[
            "sidecar",
            "--schemes",
            "pipedevice-default,tcp",
            "--only",
            "answer_bytes=65536",
            "--only",
            "proxy=haproxy",
        ],
    );
    assert_eq!(rows.len(), 2, "{rows:?}");
    for row in rows {
        match row["not_run"].as_str() {
            Some(reason) if reason.contains("is not installed") => eprintln!("SKIPPED: sidecar: {reason}"),
            not_run => {
                assert_eq!(not_run, None, "{row}");
                let figures = ["requests_per_s", "latency_us_p50", "latency_us_p99", "cpu_us_per_request"];
                assert!(figures.iter().all(|name| row[name].is_number()), "{row}");
            }
        }
    }
}

#[test]
fn candidates_for_tuned_tcp_are_ranked() {
    let dir = tempfile::tempdir().unwrap();
    let rows = bench(dir.path(), &["tune", "--only", "message_bytes=65536"]);
    let linux = rows.iter().find(|row| row["candidate"] == "cubic").unwrap();
    assert_eq!(linux["over_linux"], 1.0);
    let ran = rows.iter().filter(|row| row["not_run"].is_null());
    assert!(ran.clone().count() > 20 && ran.into_iter().all(|row| row["over_linux"].as_f64().unwrap() > 0.0));
}
