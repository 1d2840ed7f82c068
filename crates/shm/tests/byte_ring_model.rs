//! Cursors of the ring of bytes against a model: honest use, and indices forged by either side.
use pd_shm::byte_ring::{check_producer, Broken, Consumer, Producer, Ring};
use pd_shm::memfd::{create, Pages};
use pd_shm::{Own, Region};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u64),
    Publish,
    SeeWritten,
    Take(u64),
    GiveBack,
    SeeFreed,
    /// An index that the reader wrote, and one that the writer wrote.
    ForgeFreed(u64),
    ForgeWritten(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = || prop_oneof![0u64..300, any::<u64>(), (0u64..300).prop_map(|back| u64::MAX - back)];
    let step = prop_oneof![
        3 => (0u64..100).prop_map(Step::Write),
        3 => Just(Step::Publish),
        3 => Just(Step::SeeWritten),
        3 => (0u64..100).prop_map(Step::Take),
        2 => Just(Step::GiveBack),
        2 => Just(Step::SeeFreed),
        1 => index().prop_map(Step::ForgeFreed),
        1 => index().prop_map(Step::ForgeWritten),
    ];
    prop::collection::vec(step, 1..300)
}

/// All positions in one place, as numbers that never wrap.
#[derive(Default)]
struct Model {
    written: u64,
    published: u64,
    known: u64,
    read: u64,
    given_back: u64,
    freed: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cursors_follow_the_model(size in 0u32..9, steps in steps()) {
        let bytes = 1 << size;
        let (mut producer, mut consumer, mut model) = (Producer::new(bytes), Consumer::new(bytes), Model::default());
        for step in steps {
            match step {
                Step::Write(wanted) => {
                    prop_assert_eq!(producer.room(), bytes - (model.written - model.freed));
                    let some = wanted.min(producer.room());
                    producer.write(some);
                    model.written += some;
                }
                Step::Publish => {
                    model.published = model.written;
                    prop_assert_eq!(producer.publish(), model.published);
                }
                Step::SeeWritten => {
                    prop_assert_eq!(consumer.see(model.published), Ok(model.published - model.known));
                    model.known = model.published;
                }
                Step::Take(wanted) => {
                    let some = wanted.min(consumer.unread());
                    consumer.take(some);
                    model.read += some;
                }
                Step::GiveBack => {
                    let is_news = model.read != model.given_back;
                    prop_assert_eq!(consumer.give_back(model.read), is_news.then_some(model.read));
                    model.given_back = model.read;
                }
                Step::SeeFreed => {
                    prop_assert_eq!(producer.see(model.given_back), Ok(model.given_back - model.freed));
                    model.freed = model.given_back;
                }
                // A value that can be is believed, and then the other side is held to it: the model ends there.
                Step::ForgeFreed(index) => {
                    let is_possible = (model.freed..=model.published).contains(&index);
                    let mut fooled = producer;
                    prop_assert_eq!(fooled.see(index).is_ok(), is_possible);
                    prop_assert_eq!(fooled.freed(), if is_possible { index } else { model.freed });
                    prop_assert!(fooled.room() <= bytes);
                }
                Step::ForgeWritten(index) => {
                    let is_possible = (model.known..=model.given_back + bytes).contains(&index);
                    let mut fooled = consumer;
                    prop_assert_eq!(fooled.see(index).is_ok(), is_possible);
                    prop_assert_eq!(fooled.known(), if is_possible { index } else { model.known });
                    prop_assert!(fooled.unread() <= bytes);
                    let is_within = (model.known..=model.known + 7).contains(&index);
                    prop_assert_eq!(consumer.clone().see_within(index, model.known + 7).is_ok(), is_within);
                }
            }
            prop_assert_eq!((producer.written(), producer.published()), (model.written, model.published));
            prop_assert_eq!((consumer.known(), consumer.read()), (model.known, model.read));
            prop_assert_eq!((producer.freed(), consumer.freed()), (model.freed, model.given_back));
            prop_assert_eq!(consumer.unread(), model.known - model.read);
        }
    }

    /// Positions run freely: those of a side may begin anywhere.
    #[test]
    fn bounds_hold_where_positions_wrap(start: u64, held in 0u64..=64, by: u64) {
        let (freed, known) = (start, start.wrapping_add(held));
        let checked = check_producer(known.wrapping_add(by), known, freed, 64);
        prop_assert_eq!(checked, if by <= 64 - held { Ok(by) } else { Err(Broken) });
        let mut consumer = Consumer::resume(64, start);
        prop_assert_eq!(consumer.see(start.wrapping_add(by)).is_ok(), by <= 64);
    }
}

#[test]
fn a_byte_lies_at_its_position_modulo_the_ring() {
    let fd = create("test", 3 * 4096, Pages::Ordinary).unwrap();
    let ring = Ring::new(Arc::new(Region::<Own>::new(&fd, 3 * 4096).unwrap()), 4096, 8192);
    for (position, place, to_end) in
        [(0, 4096, 8192), (1, 4097, 8191), (8191, 12287, 1), (8192, 4096, 8192), (u64::MAX, 12287, 1)]
    {
        assert_eq!((ring.place(position), ring.to_end(position)), (place, to_end));
    }
    ring.publish(128, 7);
    ring.claim(136, 9);
    assert_eq!((ring.load(128), ring.load(136)), (7, 9));
}
