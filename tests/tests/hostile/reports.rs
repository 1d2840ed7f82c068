//! Lists for administrators beside a client with very many objects.
use super::stage;
use pd_driver::admin::{Answer, Ask};
use pd_tests::Raw;

const CONNECTIONS: usize = 10_000;

/// The lists are longer than a step of the conductor makes them.
#[test]
fn lists_of_very_many_connections_have_all_of_them() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let (listener, own) = raw.listen(0, 16);
    for _ in 0..CONNECTIONS {
        raw.connect(0, own);
        raw.accept(0, listener);
    }
    let report = scene.driver.report();
    assert_eq!(report.connections.len(), CONNECTIONS + 1);
    let client = report.clients.iter().find(|client| client.sockets > CONNECTIONS).expect("the client");
    assert_eq!((client.sockets, client.listening.len()), (2 * CONNECTIONS + 1, 1));
    assert!(matches!(scene.driver.tell(&Ask::Kernel), Answer::Kernel(_)));
    assert!(scene.driver.policy().tenants.iter().any(|tenant| tenant.account.bytes_sent > 0));
    scene.bystander.check(&scene.driver);
    drop(raw);
    scene.end();
}
