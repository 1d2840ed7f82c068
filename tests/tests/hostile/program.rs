//! A hostile client in C. Its only source on the protocol is the generated `pd_abi.h`. A message that gets through shows that
//! the header is complete. Its further actions are handled like any client's.
use super::stage;
use pd_driver::Violation;
use pd_tests::compiled_program;
use std::process::Command;

#[test]
fn a_client_in_c_is_served_until_it_breaks_the_protocol() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = compiled_program(
        "hostile",
        folder.path(),
        &[concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../crates/abi/include")],
    );

    let scene = stage();
    for (attack, violation) in [
        ("operation", Violation::Operation(255)),
        ("request-ring", Violation::RequestRing),
        ("event-ring", Violation::EventRing),
        ("span", Violation::Span),
        ("region", Violation::Span),
        ("length", Violation::Span),
        ("file", Violation::File),
        ("given-back", Violation::ReceiveRing),
        ("frame", Violation::Frame),
    ] {
        let before = scene.cut_offs();
        let ran = Command::new(&program).arg(scene.driver.socket()).arg(attack).output().expect("client");
        let (said, error) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{attack}: {:?} {error}", ran.status);
        assert_eq!(said.trim_end(), violation.to_string(), "{attack}");
        assert_eq!(scene.cut_offs(), before + 1, "{attack}");
    }
    scene.end();
}
