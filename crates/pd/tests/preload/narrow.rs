//! Programs that give up rights, and waits with masks of signals.

use super::{Site, With, PORT};

#[test]
fn programs_that_give_up_rights_are_served_whatever_carries_the_bytes() {
    let site = Site::new(161);
    let program = site.compiled("sandbox", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    site.compare(&[program, "server", PORT], &[program, "client", &ip, PORT]);
}

#[test]
fn waits_with_masks_answer_the_same_whatever_carries_the_bytes() {
    let site = Site::new(162);
    let program = site.compiled("masks", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let answers = [With::Nothing, With::Library, With::Mediated].map(|has| {
        let running = site.serve(has, &[program, "server", PORT]);
        let answer = site.answer(has, &[program, "client", &ip, PORT]);
        drop(running);
        answer
    });
    assert!(site.connections() > 0);
    answers.iter().skip(1).for_each(|answer| assert_eq!(answer, &answers[0]));
}
