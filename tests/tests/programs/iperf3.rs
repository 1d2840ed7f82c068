use super::site::{Site, CLIENT, SERVER};
use serde_json::Value;
use std::time::Duration;

const BYTES: u64 = 96 << 20;

pub fn serve(site: &Site, library: bool) -> super::site::Running {
    site.serve(SERVER, library, 5201, &["iperf3", "--server"])
}

#[test]
#[ignore = "needs iperf3: make test-programs"]
fn iperf3_moves_what_it_is_told_in_both_directions() {
    let site = Site::new(1);
    site.compare(2 * BYTES, |site, library| {
        let server = serve(site, library);
        let mut answer = String::new();
        for options in [&["--parallel", "1"][..], &["--reverse"], &["--parallel", "3"], &["--zerocopy"]] {
            let bytes = BYTES.to_string();
            let address = site.server();
            let command = [&["iperf3", "--json", "--client", &address, "--bytes", &bytes], options].concat();
            let result: Value = serde_json::from_str(&site.run(CLIENT, library, &command)).unwrap();
            let sum = |name: &str| result["end"][name]["bytes"].as_u64().unwrap();
            let (sent, received) = (sum("sum_sent"), sum("sum_received"));
            // A receiver that is stopped leaves bytes under way.
            assert!(sent >= BYTES && received <= sent, "{options:?}: {sent} sent, {received} received");
            assert!(received >= BYTES / 2, "{options:?}: {sent} sent, {received} received");
            answer += &format!("{options:?} {}\n", result["error"]);
        }
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs iperf3: make test-programs"]
fn a_killed_iperf3_leaves_nothing() {
    let site = Site::new(2);
    let address = site.server();
    let command = ["iperf3", "--client", &address, "--time", "60", "--parallel", "2"];
    for victim in ["server", "client"] {
        let before = site.delivered();
        let server = serve(&site, true);
        let mut client = site.start(CLIENT, true, &command);
        site.wait_for_bytes(before, BYTES);
        std::thread::sleep(Duration::from_millis(100));
        if victim == "server" {
            server.kill("iperf3");
            assert!(!client.wait(), "the client has not noticed");
        } else {
            client.kill("iperf3");
            site.wait_for_ends();
            // The server serves the next one.
            site.run(CLIENT, true, &["iperf3", "--client", &address, "--bytes", "10M"]);
        }
        drop((server, client));
        site.expect_nothing_left();
    }
}
