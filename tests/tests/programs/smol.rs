use super::site::{Site, CLIENT, SERVER};
use pd_tests::program_path;

/// The reactor waits by system calls that nothing can replace: with smol at either end, the connection is the kernel's.
#[test]
#[ignore = "needs the feature programs: make test-programs"]
fn a_smol_server_answers_a_smol_client() {
    let site = Site::new(30);
    let program = program_path("examples/smol_echo").to_str().unwrap().to_owned();
    let ways = [(false, false), (true, true), (true, false), (false, true)];
    let answers = ways.map(|(server_has, client_has)| {
        let server = site.serve(SERVER, server_has, 7510, &[&program, "server", "7510"]);
        let answer = site.run(CLIENT, client_has, &[&program, "client", &site.server(), "7510"]);
        server.end();
        answer
    });
    assert_eq!(answers[0].lines().filter(|line| line.ends_with("right: true")).count(), 8);
    answers.iter().for_each(|answer| assert_eq!(answer, &answers[0]));
}
