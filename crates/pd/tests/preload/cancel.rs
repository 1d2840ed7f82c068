//! Threads that are cancelled while they use connections.

use super::endings::compare_in_every_way;
use super::Site;

#[test]
fn a_thread_is_cancelled_in_a_call_as_on_the_kernel() {
    let site = Site::new(244);
    compare_in_every_way(&site, "cancelled", &[], 200);
}

#[test]
fn a_thread_is_cancelled_at_any_moment() {
    let site = Site::new(245);
    compare_in_every_way(&site, "cancelled", &["500"], 2);
}
