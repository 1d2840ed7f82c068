//! Forks that the C library tells nobody of: `_Fork`, `clone`, and system calls.
use super::hooks;
use crate::call::set_errno;
use crate::{real, start, table};
use libc::{c_int, c_long, c_void, pid_t};

/// With these a child works in the memory, or on the descriptors, of its parent.
const SHARES: u64 = (libc::CLONE_VM | libc::CLONE_FILES) as u64;

/// Main function of a child.
type Run = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

hooks! {
    fn _Fork() -> pid_t {
        by(|| real::_Fork().into()) as pid_t
    }

    // Of the C library's ellipsis it passes three words on, too.
    fn clone(
        run: Option<Run>, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut pid_t, thread: *mut c_void, child: *mut pid_t,
    ) -> c_int {
        let made = run.filter(|_| is_fork(flags as u64) && flags & libc::CLONE_SETTLS == 0 && !stack.is_null());
        let Some(run) = made else {
            start::leaving();
            return real::clone(run, stack, flags, argument, parent, thread, child);
        };
        // The child has a copy of this stack, which is large enough for what is done first. That of the program may not be.
        #[cfg(target_arch = "x86_64")]
        let last = [child as usize, 0];
        #[cfg(target_arch = "aarch64")]
        let last = [0, child as usize];
        let arguments = [flags as usize, 0, parent as usize, last[0], last[1], 0];
        let result = by(|| real::system_call(libc::SYS_clone, arguments) as c_long);
        if result == 0 {
            libc::_exit(run(argument));
        }
        if result < 0 {
            set_errno(-result as c_int);
            return -1;
        }
        result as c_int
    }
}

/// Tells whether a child that is made with these flags has memory and descriptors of its own.
fn is_fork(flags: u64) -> bool {
    flags & SHARES == 0
}

/// Makes a process by a call whose result is 0 in the child, and does in both what `fork` would have been told of.
fn by(make: impl FnOnce() -> c_long) -> c_long {
    start::leaving();
    // A child of `vfork` must not change its parent's table.
    if table::is_borrowed() {
        return make();
    }
    start::about_to_fork();
    let result = make();
    start::after_fork(result == 0);
    result
}

/// Makes a process by a system call, if the call is one that makes processes.
///
/// # Safety
/// As for the call.
pub(super) unsafe fn by_system_call(number: c_long, arguments: [usize; 6]) -> Option<isize> {
    let [first, second, ..] = arguments;
    let makes = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        // One with a stack of its own does not come back here.
        libc::SYS_clone => second == 0 && is_fork(first as u64),
        libc::SYS_clone3 => {
            const STACK_AT: usize = 5;
            let is_known = crate::reach::is_readable(first as *const u64, (STACK_AT + 1) * size_of::<u64>());
            // SAFETY: so much is readable.
            is_known
                && unsafe { *(first as *const u64).add(STACK_AT) == 0 && is_fork(*(first as *const u64)) }
        }
        _ => false,
    };
    // SAFETY: the caller's promise.
    makes.then(|| by(|| unsafe { real::system_call(number, arguments) } as c_long) as isize)
}
