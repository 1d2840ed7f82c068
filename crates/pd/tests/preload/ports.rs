//! Local ports of connections with twins.

use super::{programs, Site, With, PORT};

/// A twin's port is its own, whoever it is connected to. Who has more connections than ports gets the others from the kernel,
/// which shares ports between peers.
#[test]
fn connections_that_find_no_port_of_their_own_are_the_kernels() {
    const OTHER: &str = "7301";
    let mut site = Site::new(86);
    // To have few ports.
    site.privileged = true;
    let [server, client] =
        ["echo.py", "ports.py"].map(|name| programs().join(name).to_str().unwrap().to_owned());
    let _server = site.serve(With::Library, &["python3", &server, "server", PORT, OTHER]);
    let client = ["python3", &client, "10.97.86.2", PORT, OTHER];
    let kernel = site.answer(With::Nothing, &client);
    assert_eq!((kernel.lines().count(), site.connections()), (20, 0));
    assert_eq!(site.answer(With::Library, &client), kernel);
    // Half of the ports; the others are left to the kernel's connections.
    assert_eq!(site.connections(), 8);
}
