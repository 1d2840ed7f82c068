//! The fuzz targets `frames` and `ring` with the kept programs and mutations of them, on a stable compiler.
#[path = "oracle/corpus.rs"]
mod corpus;
#[path = "oracle/frames.rs"]
mod frames;
#[path = "oracle/ring.rs"]
#[allow(dead_code)]
mod ring;

#[test]
fn frames_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/frames"), frames::run);
}

#[test]
fn rings_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/ring"), ring::run);
}
