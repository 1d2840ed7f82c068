//! `pd demo`, short: with kernel TCP alone figures agree with each other, with simulated hardware files are verified, and
//! nothing is left behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn scratch_dirs() -> Vec<String> {
    let entries = std::fs::read_dir("/run/pd").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.starts_with("scratch-")).collect()
}

fn demo(dir: &Path) -> Command {
    let file = dir.join("data");
    std::fs::write(&file, (0..5_000_011u32).map(|n| (n ^ (n >> 9)) as u8).collect::<Vec<u8>>()).unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_pd"));
    demo.args(["demo", "--schemes", "tcp,tcp-sendfile,tcp-tuned", "--rounds", "1", "--smoke", "--json"]);
    demo.arg("--file")
        .arg(&file)
        .arg("--out")
        .arg(dir.join("demo.json"))
        .arg("--plot")
        .arg(dir.join("demo.svg"));
    demo
}

#[test]
fn tcp_is_verified_measured_and_cleaned_up_after() {
    let dir = tempfile::tempdir().unwrap();
    let child = demo(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let container = format!("demo-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verified"].as_array().unwrap().len(), 3);
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 3);
    assert!(
        settings.iter().all(|s| s["has"].as_str().unwrap().starts_with("both ends cubic (")),
        "{settings:?}"
    );
    assert!(report["verified"].as_array().unwrap().iter().all(|v| v["sha256"] == report["sha256"]));
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 5);
    for round in rounds {
        let figure = |name: &str| round[name].as_f64().unwrap();
        assert!(figure("bytes") >= 1e9);
        let expected = figure("bytes") * 8e-9 / figure("seconds");
        assert!((figure("gbit_per_s") - expected).abs() < 1e-6 * expected);
        assert!(figure("cpu_s") > 0.0);
    }
    assert!(std::fs::read_to_string(dir.path().join("demo.svg")).unwrap().starts_with("<svg"));
    assert_clean(&container);
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let container = format!("demo-{}-", child.id());
    std::thread::sleep(Duration::from_millis(1500));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_clean(&container);
}

/// Moves a file from one container to another through the simulated hardware, and checks its waveform.
#[test]
fn simulated_hardware_brings_a_file_unchanged() {
    if pd_harness::engines::by_name("rtl").is_err() && std::env::var_os("PD_RTL_REQUIRED").is_none() {
        eprintln!("SKIPPED: no simulated hardware; make rtl builds it");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, wave) = (dir.path().join("data"), dir.path().join("wave.fst"));
    std::fs::write(&file, (0..300_007u32).map(|n| (n ^ (n >> 7)) as u8).collect::<Vec<u8>>()).unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_pd"));
    demo.args(["demo", "--engine", "rtl", "--json", "--file"]).arg(&file).arg("--trace").arg(&wave);
    demo.arg("--out").arg(dir.path().join("demo.json")).arg("--plot").arg(dir.path().join("demo.svg"));
    let output = demo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verified"].as_array().unwrap().len(), 1);
    assert_eq!(report["verified"][0]["scheme"], "pipedevice-mediated");
    assert_eq!(report["verified"][0]["sha256"], report["sha256"]);
    assert!(report["rounds"].as_array().unwrap().is_empty(), "a simulation is not measured");
    assert!(std::fs::metadata(&wave).unwrap().len() > 100_000, "every signal of some thousand cycles");
}

/// Checks that no container of this demo is left; scratch directories of other demos may exist.
fn assert_clean(container: &str) {
    let id = container.trim_start_matches("demo-").trim_end_matches('-');
    let scratch = format!("scratch-{id}-");
    assert!(scratch_dirs().iter().all(|name| !name.starts_with(&scratch)));
    let records = std::fs::read_dir("/run/pd/containers").unwrap().flatten();
    assert!(records
        .filter_map(|e| e.file_name().into_string().ok())
        .all(|name| !name.starts_with(container)));
}
