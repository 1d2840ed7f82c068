//! The fuzz targets `captures`, `pipes` and `memif` with their stored programs and mutations of them, on a stable compiler.
#![allow(clippy::duplicate_mod, reason = "each oracle brings the reader of its program along")]
#[path = "oracle/captures.rs"]
mod captures;
#[path = "../../shm/tests/oracle/corpus.rs"]
mod corpus;
#[path = "oracle/hostile.rs"]
mod hostile;
#[path = "oracle/memif.rs"]
mod memif;

#[test]
fn pipes_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/pipes"), hostile::run);
}

#[test]
fn clients_of_memif_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/memif"), memif::run);
}

#[test]
fn captures_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/captures"), captures::run);
}
