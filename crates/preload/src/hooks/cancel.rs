//! Cancelling a thread, which may sleep in the library.
use super::hooks;
use crate::call::aside;
use crate::{closed, real};
use libc::{c_int, pthread_t};
use pd_client::core::{begin_cancel, interrupt, is_attached, number_of};

hooks! {
    fn pthread_cancel(thread: pthread_t) -> c_int {
        if !is_attached() || closed::is_closed() {
            return real::pthread_cancel(thread);
        }
        // Afterwards another thread may join it.
        let Some(number) = number_of(thread) else { return real::pthread_cancel(thread) };
        aside(|| begin_cancel(number));
        let result = real::pthread_cancel(thread);
        if result == 0 {
            aside(|| interrupt(number));
        }
        result
    }
}
