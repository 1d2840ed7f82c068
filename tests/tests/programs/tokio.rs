use super::pair::Pair;
use super::site::Site;
use pd_tests::program_path;

fn pair() -> Pair {
    Pair::new(7501, "tokio_web", &[program_path("examples/tokio_web").to_str().unwrap()])
}

#[test]
#[ignore = "needs the feature programs: make test-programs"]
fn a_tokio_server_answers_a_tokio_client() {
    pair().answers(&Site::new(20), 20 << 20);
}

#[test]
#[ignore = "needs the feature programs: make test-programs"]
fn a_killed_tokio_leaves_nothing() {
    pair().killed_leaves_nothing(&Site::new(21));
}
