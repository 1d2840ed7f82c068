//! Sleeps that are no business of the library's, but for connections that it has to settle meanwhile.
use super::hooks;
use crate::claim::watch;
use crate::{hearsay, real};
use libc::{
    c_int, c_uint, c_void, clockid_t, id_t, idtype_t, pid_t, siginfo_t, sigset_t, timespec, useconds_t,
};

/// The calls that may wait for a child: with `WNOHANG` they do not, and programs make them in handlers.
fn before_wait(options: c_int) {
    if options & libc::WNOHANG == 0 {
        watch::before_sleep();
    }
}

hooks! {
    fn sleep(seconds: c_uint) -> c_uint {
        watch::before_sleep();
        hearsay::told_outside(real::sleep(seconds))
    }

    fn usleep(time: useconds_t) -> c_int {
        watch::before_sleep();
        hearsay::told_outside(real::usleep(time))
    }

    fn sched_yield() -> c_int {
        hearsay::told_outside(real::sched_yield())
    }

    fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
        watch::before_sleep();
        hearsay::told_outside(real::nanosleep(time, left))
    }

    fn clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int {
        watch::before_sleep();
        hearsay::told_outside(real::clock_nanosleep(clock, flags, time, left))
    }

    fn pause() -> c_int {
        watch::before_sleep();
        real::pause()
    }

    fn sigsuspend(mask: *const sigset_t) -> c_int {
        watch::before_sleep();
        real::sigsuspend(mask)
    }

    fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int {
        watch::before_sleep();
        hearsay::told(real::sigwait(set, signal))
    }

    fn sigwaitinfo(set: *const sigset_t, information: *mut siginfo_t) -> c_int {
        watch::before_sleep();
        hearsay::told(real::sigwaitinfo(set, information))
    }

    fn sigtimedwait(set: *const sigset_t, information: *mut siginfo_t, time: *const timespec) -> c_int {
        watch::before_sleep();
        hearsay::told(real::sigtimedwait(set, information, time))
    }

    fn wait(status: *mut c_int) -> pid_t {
        watch::before_sleep();
        hearsay::told(real::wait(status))
    }

    fn waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t {
        before_wait(options);
        hearsay::told(real::waitpid(process, status, options))
    }

    fn wait3(status: *mut c_int, options: c_int, usage: *mut c_void) -> pid_t {
        before_wait(options);
        hearsay::told(real::wait3(status, options, usage))
    }

    fn wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut c_void) -> pid_t {
        before_wait(options);
        hearsay::told(real::wait4(process, status, options, usage))
    }

    fn waitid(kind: idtype_t, id: id_t, information: *mut siginfo_t, options: c_int) -> c_int {
        before_wait(options);
        hearsay::told(real::waitid(kind, id, information, options))
    }
}
