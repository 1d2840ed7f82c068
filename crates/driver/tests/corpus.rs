//! The fuzz target `requests` with the kept programs and mutations of them, on a stable compiler.
#[path = "../../shm/tests/oracle/corpus.rs"]
mod corpus;

#[test]
fn requests_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/requests"), pd_driver::testing::run);
}
