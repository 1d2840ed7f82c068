use super::pair::Pair;
use super::site::{program, Site};

fn pair() -> Pair {
    Pair::new(8000, "node", &["node", &program("http.js")])
}

#[test]
#[ignore = "needs node: make test-programs"]
fn a_node_server_answers_a_node_client() {
    pair().answers(&Site::new(14), 30 << 20);
}

#[test]
#[ignore = "needs node: make test-programs"]
fn a_killed_node_leaves_nothing() {
    pair().killed_leaves_nothing(&Site::new(15));
}
