//! A standard output that cannot be written: a full disk.
//!
//! The macros that print panic there. The program says why, as for any other error, and unwinds, so that nothing is left behind.

use std::any::Any;
use std::io::Write;
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook, UnwindSafe};
use std::process::ExitCode;

/// Beginning of the text with which the macros panic.
const PANIC: &str = "failed printing to std";

fn reason(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().filter(|text| text.starts_with(PANIC)).map(String::as_str)
}

/// Runs a program. Returns 1 where its output could not be written.
pub fn or_failed(run: impl FnOnce() -> ExitCode + UnwindSafe) -> ExitCode {
    let usual = take_hook();
    set_hook(Box::new(move |panic| {
        match reason(panic.payload()) {
            // Another panic would end the process here.
            Some(why) => drop(writeln!(std::io::stderr(), "pd: {why}")),
            None => usual(panic),
        }
    }));
    match catch_unwind(run) {
        Ok(status) => status,
        Err(payload) if reason(&*payload).is_some() => ExitCode::from(1),
        Err(payload) => resume_unwind(payload),
    }
}
