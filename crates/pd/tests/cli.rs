//! The command line: errors name the fault and the remedy.

use std::process::{Command, Output};

fn pd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pd")).args(args).output().unwrap()
}

fn refused(args: &[&str], parts: &[&str]) {
    let output = pd(args);
    assert!(!output.status.success(), "{args:?}");
    let message = String::from_utf8_lossy(&output.stderr);
    for part in parts {
        assert!(message.contains(part), "'{part}' is missing in: {message}");
    }
}

#[test]
fn bad_options_are_named() {
    refused(&["--no-such"], &["--no-such"]);
    refused(&["fly"], &["fly"]);
    refused(&["run", "--name", "x"], &["COMMAND"]);
    refused(&["run", "--name", "x", "--ip", "10.0.0", "--", "true"], &["'10.0.0'", "10.88.0.2/24"]);
    refused(&["demo", "--rounds", "1001"], &["--rounds", "0..=1000"]);
    refused(&["demo", "--message-bytes", "1"], &["--message-bytes 1 ", "64 to 16MiB"]);
    refused(&["demo", "--window-bytes", "8M"], &["--window-bytes 8MiB", "4MiB"]);
    refused(&["demo", "--read-bytes", "100000"], &["--read-bytes 100000", "multiple"]);
    refused(&["demo", "--schemes", "tcp-sendfile", "--parts", "bulk"], &["--schemes", "add tcp"]);
    refused(&["demo", "--file", "/no/such/file", "--schemes", "tcp"], &["/no/such/file"]);
    refused(&["demo", "--out", "/no/such/dir/demo.json"], &["/no/such/dir/demo.json"]);
}

#[test]
fn help_says_where_run_looks_for_the_driver() {
    let help = String::from_utf8(pd(&["run", "--help"]).stdout).unwrap();
    assert!(help.contains("/run/pipedevice/driver.sock") && help.contains("admin.sock"), "{help}");
}

#[test]
fn a_configuration_is_checked_and_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("driver.toml");
    let path = file.to_str().unwrap();
    refused(&["driver", "--config", path], &[path, "No such file"]);
    std::fs::write(&file, "[driver]\nmovers = 99\n").unwrap();
    refused(&["driver", "--config", path], &[path, "driver.movers = 99", "1 to 64"]);
    std::fs::write(&file, "[driver]\nmovers = 3\n").unwrap();
    let output = pd(&["driver", "--config", path, "--check"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("movers = 3"));
}

#[test]
fn doctor_prints_json_with_a_remedy_for_every_complaint() {
    let output = pd(&["doctor", "--json", "--admin-socket", "/no/such/socket"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 8);
    for check in checks {
        assert!(
            check["verdict"] == "ok" || check["remedy"].as_str().is_some_and(|r| !r.is_empty()),
            "{check}"
        );
    }
    let failed = checks.iter().any(|check| check["verdict"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(failed)));
}

#[test]
fn the_version_is_printed() {
    let output = pd(&["--version"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("pd {}\n", env!("CARGO_PKG_VERSION")));
}
