//! Reactive notifications: the agent announces, the program answers, and both sleep.
use super::*;

const ORDERS: [&str; 4] = [
    "acquire of what is given back",
    "release of what is given back",
    "acquire of the announcement",
    "release of the announcement",
];

/// Announced bytes are written, and not overwritten before they are given back.
#[test]
fn bytes_belong_to_one_side_at_a_time() {
    check("notify::bytes_belong_to_one_side_at_a_time", 4, &ORDERS, |weak| {
        const BYTES: u64 = 3;
        let words = Words::new(1, weak);
        let agent = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut announcer = Announcer::new(1, 1);
                while announcer.announced() < BYTES {
                    announcer.look(&*words).unwrap();
                    if announcer.room(announcer.given_back()) > 0 && announcer.tail() < BYTES {
                        words.append(&mut announcer);
                    }
                    if announcer.announce(&*words).is_none() {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut reader = Reader::new(1);
        while reader.read() < BYTES {
            if reader.refresh(&*words) == 0 {
                thread::yield_now();
                continue;
            }
            words.read(&reader);
            reader.consume(1);
            reader.give_back(&*words);
        }
        agent.join().unwrap();
    });
}

const SLEEPS: [&str; 6] = [
    "fence of the program",
    "fence of the agent",
    "look of the agent",
    "sleep: fence of the sleeper",
    "sleep: fence of the waker",
    "answer before the sleep",
];

/// Both sides sleep. A byte appended while a notification is outstanding is announced when that one is answered, even though the
/// program gives nothing back. No side sleeps for ever.
#[test]
fn no_notification_is_lost() {
    check("notify::no_notification_is_lost", 3, &SLEEPS, |weak| {
        const BYTES: u64 = 2;
        let words = Words::new(BYTES as usize, weak);
        let agent = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let (mut announcer, mut waker) = (Announcer::new(BYTES, 1), Waker::default());
                let mut notifications = 0;
                let mut turn = |announcer: &mut Announcer| {
                    let mut busy = announcer.look(&*words).unwrap();
                    if announcer.tail() < BYTES {
                        words.append(announcer);
                        busy = true;
                    }
                    if let Some(position) = announcer.announce(&*words) {
                        notifications += 1;
                        waker.wake(&words.sleep, position);
                        busy = true;
                    }
                    busy
                };
                let mut sleep = 0;
                while announcer.announced() < BYTES {
                    if turn(&mut announcer) {
                        continue;
                    }
                    // Models `Agent::wait`.
                    sleep += 1;
                    words.need_wakeup.store(sleep, Relaxed);
                    weak.fence("fence of the agent");
                    if weak.leaves_out("look of the agent") || !turn(&mut announcer) {
                        words.doorbell.wait();
                    }
                    words.need_wakeup.store(0, Relaxed);
                }
                assert!(notifications <= 2, "one for each answer");
            })
        };
        // A piece that is never complete: only the answer gives bytes back.
        let (mut reader, mut rung) = (Reader::new(u64::MAX), 0);
        while reader.read() < BYTES {
            if reader.refresh(&*words) == 0 {
                // Models `Pipe::wait`.
                let known = reader.read();
                if !weak.leaves_out("answer before the sleep") {
                    reader.answer(0, &*words);
                }
                words.ring(&mut rung);
                wait::sleep(&words.sleep, known + 1, &mut Spin::new(Duration::ZERO), Duration::MAX, || {
                    words.load_producer() != known
                });
                continue;
            }
            reader.consume(reader.unread());
        }
        agent.join().unwrap();
    });
}
