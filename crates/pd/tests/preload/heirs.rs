//! Connections whose descriptors go from process to process.

use super::{Site, With, PORT};

/// In all ways, whichever process sends, receives, sets options and ends first.
#[test]
fn heirs_of_a_connection_go_on_with_it() {
    let mut site = Site::new(177);
    // Some get namespaces of their own.
    site.privileged = true;
    let program = site.compiled("heirs", &[]);
    let file = site.folder.path().join("heirs.sock");
    let (program, address, file) = (program.as_str(), site.address(2), file.to_str().unwrap());
    let answer = |site: &Site, with: With| {
        let _server = site.serve(with, &[program, "server", PORT, file]);
        site.answer(with, &[program, "client", &address, PORT, file])
    };
    let expected = answer(&site, With::Nothing);
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        let before = site.connections();
        assert_eq!(answer(&site, With::Library), expected, "{preload}");
        assert!(site.connections() > before, "{preload}: none on the fabric");
    }
}
