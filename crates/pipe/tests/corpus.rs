//! The fuzz target `pipes` with the kept programs and mutations of them, on a stable compiler.
#![cfg(not(loom))]

#[path = "../../shm/tests/oracle/corpus.rs"]
mod corpus;
#[path = "oracle/hostile.rs"]
mod hostile;

#[test]
fn pipes_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/pipes"), hostile::run);
}
