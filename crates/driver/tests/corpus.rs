//! The fuzz targets `requests` and `takeover` with the kept programs and mutations of them, on a stable compiler.
#[path = "../../shm/tests/oracle/corpus.rs"]
mod corpus;

#[test]
fn requests_from_the_corpus() {
    corpus::run(include_str!("../../../fuzz/seeds/requests"), pd_driver::testing::run);
}

#[test]
fn states_from_the_corpus() {
    let run = |program: &[u8]| {
        // The oracle leaves open which states a driver goes on with.
        let _goes_on = pd_driver::simulation::shaken::run(program);
    };
    corpus::run(include_str!("../../../fuzz/seeds/takeover"), run);
}
