use super::pair::Pair;
use super::site::{program, Site};

/// The processes of a virtual machine are named after its emulator.
fn pair() -> Pair {
    let without_dumps = ["env", "ERL_CRASH_DUMP=/dev/null"];
    Pair::new(8200, "beam.smp", &[&without_dumps[..], &["escript", &program("echo.erl")]].concat())
}

#[test]
#[ignore = "needs Erlang: make test-programs"]
fn an_erlang_server_answers_an_erlang_client() {
    pair().answers(&Site::new(42), 80 << 20);
}

#[test]
#[ignore = "needs Erlang: make test-programs"]
fn a_killed_erlang_leaves_nothing() {
    pair().killed_leaves_nothing(&Site::new(43));
}
