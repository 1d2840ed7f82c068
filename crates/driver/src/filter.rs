//! The system calls that a running driver may make: a seccomp filter (seccomp(2)).
//!
//! A list of allowed calls. Any other call fails with `ENOSYS`: a library of another version takes that for an old kernel, and falls back to
//! an older call. The kernel logs each refused call. Builds with assertions, and so the tests, end by `SIGSYS` instead, so that no test
//! passes by a call that fails.
//!
//! After the filter is installed the driver makes no files and opens none for writing alone. It makes sockets of `AF_UNIX` and
//! `AF_NETLINK` only, and enters no namespaces but those of networks. It changes entries of its own BPF maps and attaches its own BPF
//! programs, but loads none. It maps no new code, and starts threads but no process and no program.
use crate::bpf::COMMANDS;
use crate::peer::PIDFD_GET_NET_NAMESPACE;
use crate::standing::NS_GET_USERNS;
use rustix::io::{Errno, Result};
use rustix::process::getpid;
use rustix::thread::set_no_new_privs;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_ulong};

/// The extent of a driver's confinement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confined {
    /// The driver's own threads, in a process that does other things as well.
    #[default]
    Threads,
    /// The whole process, which runs nothing else.
    Process,
}

/// Calls that are allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Descriptors.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_pidfd_open,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    // Waking a client of memif; see `pd_pipe`.
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    // Files.
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Threads, time and signals.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Reported as missing by a filter of its own: its flags lie in memory.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getegid,
    libc::SYS_getcpu,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that are allowed with any arguments, and that only this architecture still has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[c_long] = &[];

/// `FIONBIO`, whose type differs among C libraries.
const FIONBIO: u64 = 0x5421;

/// Flags with which a file could be made or emptied, or written alone. The driver opens its own memory for reading and writing.
const OPENS_OTHERWISE: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;

/// A rule for a call: its number, an argument's index, and the condition on that argument.
type Condition = (c_long, u8, SeccompCmpArgLen, SeccompCmpOp, u64);

/// Returns the calls that are allowed with some arguments. If a call has several rules, one has to hold.
fn conditions() -> Vec<Condition> {
    let no_code = MaskedEq(libc::PROT_EXEC as u64);
    let thread = libc::CLONE_THREAD as u64;
    let gate = COMMANDS.map(|command| (libc::SYS_bpf, 0, Dword, Eq, command as u64));
    let conditions = [
        (libc::SYS_clone, 0, Qword, MaskedEq(thread), thread),
        (libc::SYS_ioctl, 1, Dword, Eq, FIONBIO),
        (libc::SYS_ioctl, 1, Dword, Eq, PIDFD_GET_NET_NAMESPACE.into()),
        (libc::SYS_ioctl, 1, Dword, Eq, NS_GET_USERNS.into()),
        // Gives the driver's own memory a name for a moment: an unnamed file, by its descriptor.
        (libc::SYS_linkat, 4, Dword, Eq, libc::AT_SYMLINK_FOLLOW as u64),
        (libc::SYS_mbind, 2, Dword, Eq, libc::MPOL_PREFERRED as u64),
        (libc::SYS_mmap, 2, Dword, no_code.clone(), 0),
        (libc::SYS_mprotect, 2, Dword, no_code, 0),
        (libc::SYS_openat, 2, Dword, MaskedEq(OPENS_OTHERWISE as u64), 0),
        (libc::SYS_prctl, 0, Dword, Eq, libc::PR_SET_NAME as u64),
        // The C library names its heaps.
        (libc::SYS_prctl, 0, Dword, Eq, libc::PR_SET_VMA as u64),
        // Reads limits, and sets none.
        (libc::SYS_prlimit64, 2, Qword, Eq, 0),
        // Only of the calling thread.
        (libc::SYS_sched_setaffinity, 0, Dword, Eq, 0),
        // Only of the calling thread: helpers lower their priority.
        (libc::SYS_setpriority, 1, Dword, Eq, 0),
        (libc::SYS_setns, 1, Dword, Eq, libc::CLONE_NEWNET as u64),
        (libc::SYS_socket, 0, Dword, Eq, libc::AF_NETLINK as u64),
        (libc::SYS_socket, 0, Dword, Eq, libc::AF_UNIX as u64),
        (libc::SYS_socketpair, 0, Dword, Eq, libc::AF_UNIX as u64),
        // A panic that nothing catches.
        (libc::SYS_tgkill, 0, Dword, Eq, getpid().as_raw_nonzero().get() as u64),
        (libc::SYS_unshare, 0, Dword, Eq, libc::CLONE_FILES as u64),
    ];
    #[cfg(target_arch = "x86_64")]
    let old = [(libc::SYS_open, 1, Dword, MaskedEq(OPENS_OTHERWISE as u64), 0)];
    #[cfg(not(target_arch = "x86_64"))]
    let old = [];
    conditions.into_iter().chain(gate).chain(old).collect()
}

/// System calls of the process that probes ([`crate::probe`]): no files, and sockets of TCP.
const ALLOWED_TO_PROBES: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_write,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Returns the calls that the process that probes may make with some arguments.
fn conditions_of_probes() -> Vec<Condition> {
    let no_code = MaskedEq(libc::PROT_EXEC as u64);
    vec![
        // The standard library of builds with assertions asks before it closes.
        (libc::SYS_fcntl, 1, Dword, Eq, libc::F_GETFD as u64),
        (libc::SYS_mmap, 2, Dword, no_code.clone(), 0),
        (libc::SYS_mprotect, 2, Dword, no_code, 0),
        (libc::SYS_setns, 1, Dword, Eq, libc::CLONE_NEWNET as u64),
        (libc::SYS_socket, 0, Dword, Eq, libc::AF_INET as u64),
        (libc::SYS_socket, 0, Dword, Eq, libc::AF_INET6 as u64),
        // A panic.
        (libc::SYS_tgkill, 0, Dword, Eq, getpid().as_raw_nonzero().get() as u64),
    ]
}

/// Returns the action on a call that is not allowed.
fn refusal() -> SeccompAction {
    match cfg!(debug_assertions) {
        true => SeccompAction::Trap,
        false => SeccompAction::Errno(libc::ENOSYS as u32),
    }
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    matched: SeccompAction,
) -> std::result::Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, matched, arch)?.try_into()
}

fn rules<'a>(
    allowed: impl Iterator<Item = &'a c_long>,
    conditions: Vec<Condition>,
) -> std::result::Result<BTreeMap<c_long, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = allowed.map(|&call| (call, Vec::new())).collect();
    for (call, argument, len, operator, value) in conditions {
        let condition = SeccompCondition::new(argument, len, operator, value)?;
        rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
    }
    Ok(rules)
}

/// Returns the filters, in the order in which they are installed.
fn programs(refusal: SeccompAction) -> std::result::Result<[BpfProgram; 2], seccompiler::BackendError> {
    let rules = rules(ALLOWED.iter().chain(ALLOWED_OLD), conditions())?;
    // The C library then makes threads by `clone`, whose flags the filter sees.
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([compile(clone3, SeccompAction::Allow, unknown)?, compile(rules, refusal, SeccompAction::Allow)?])
}

/// Confines the calling thread and those that it makes, or all threads of the process. Cannot be undone.
///
/// # Errors
/// `ENOSYS`, `EINVAL` if the kernel or the architecture knows no filters; `ESRCH` if a thread has other filters.
pub fn install(confined: Confined) -> Result<()> {
    install_refusing(confined, refusal())
}

/// Confines the process that probes. Cannot be undone.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_probes() -> Result<()> {
    confine_for_probes(refusal())
}

/// Confines the calling thread as the process that probes, with another action on calls that are not allowed.
pub(crate) fn confine_for_probes(refusal: SeccompAction) -> Result<()> {
    let compiled = rules(ALLOWED_TO_PROBES.iter(), conditions_of_probes())
        .and_then(|rules| compile(rules, refusal, SeccompAction::Allow));
    let program = compiled.map_err(|_| Errno::INVAL)?;
    set_no_new_privs(true)?;
    set_filter(&program, 0)
}

fn install_refusing(confined: Confined, refusal: SeccompAction) -> Result<()> {
    let programs = programs(refusal).map_err(|_| Errno::INVAL)?;
    set_no_new_privs(true)?;
    let of_all = match confined {
        Confined::Threads => 0,
        Confined::Process => libc::SECCOMP_FILTER_FLAG_TSYNC,
    };
    // Nothing here runs foreign code. Mitigations against speculation would slow down copies before Linux 5.16.
    let fast = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // A missing `clone3` is not worth a log entry.
    for (program, wished) in programs.iter().zip([fast, fast | libc::SECCOMP_FILTER_FLAG_LOG]) {
        match set_filter(program, of_all | wished) {
            // gVisor knows no such flags.
            Err(Errno::INVAL) => set_filter(program, of_all)?,
            set => set?,
        }
    }
    Ok(())
}

fn set_filter(program: &BpfProgram, flags: c_ulong) -> Result<()> {
    let len = program.len().try_into().map_err(|_| Errno::INVAL)?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads `len` instructions, which live through the call, and keeps nothing of them.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::from_ref(&filter))
    };
    match result {
        0 => Ok(()),
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        // The number of a thread that cannot be synchronized.
        _ => Err(Errno::SRCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{open, Mode, OFlags};
    use rustix::net::{socket, AddressFamily, SocketType};
    use rustix::thread::{unshare_unsafe, UnshareFlags};
    use std::os::fd::AsFd;

    /// Runs under the filter of builds without assertions.
    fn confined<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        let run = || {
            install_refusing(Confined::Threads, SeccompAction::Errno(libc::ENOSYS as u32)).unwrap();
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    fn call(number: c_long) -> Option<Errno> {
        // SAFETY: whatever it is, it is refused before it looks at its arguments, or finds them to be nothing.
        let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
        (result == -1).then(|| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
    }

    #[test]
    fn what_the_driver_does_not_do_is_refused() {
        let refused = [
            libc::SYS_bpf,
            libc::SYS_delete_module,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fchmodat,
            libc::SYS_fchownat,
            libc::SYS_finit_module,
            libc::SYS_init_module,
            libc::SYS_io_uring_setup,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_linkat,
            libc::SYS_listen,
            libc::SYS_mkdirat,
            libc::SYS_mknodat,
            libc::SYS_mount,
            libc::SYS_open_by_handle_at,
            libc::SYS_openat2,
            libc::SYS_perf_event_open,
            libc::SYS_pidfd_getfd,
            libc::SYS_pidfd_send_signal,
            libc::SYS_pivot_root,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_reboot,
            libc::SYS_renameat2,
            libc::SYS_seccomp,
            libc::SYS_setuid,
            libc::SYS_symlinkat,
            libc::SYS_umount2,
            libc::SYS_userfaultfd,
        ];
        confined(|| {
            for number in refused {
                assert_eq!(call(number), Some(Errno::NOSYS), "{number}");
            }
        });
    }

    #[test]
    fn arguments_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "bytes").unwrap();
        let namespace = std::fs::File::open("/proc/self/ns/mnt").unwrap();
        confined(|| {
            let refused = |result: Result<()>, what| assert_eq!(result, Err(Errno::NOSYS), "{what}");
            for family in [AddressFamily::INET, AddressFamily::INET6, AddressFamily::PACKET] {
                refused(socket(family, SocketType::DGRAM, None).map(drop), "socket");
            }
            assert!(socket(AddressFamily::UNIX, SocketType::STREAM, None).is_ok());
            assert!(socket(AddressFamily::NETLINK, SocketType::RAW, None).is_ok());
            for how in [OFlags::WRONLY, OFlags::CREATE, OFlags::TRUNC] {
                refused(open(&file, how | OFlags::CLOEXEC, Mode::RUSR).map(drop), "open");
            }
            assert!(open(&file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok());
            let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
            refused(rustix::thread::move_into_link_name_space(namespace.as_fd(), kind), "setns");
            refused(rustix::thread::move_into_link_name_space(namespace.as_fd(), None), "setns");
            // SAFETY: it is refused.
            refused(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }, "unshare");
            // Entries of own maps: there are none. Programs: none can be loaded, or opened by number.
            let command = |command: u64| {
                // SAFETY: no attribute is read where it is refused; where it is not, none of no length is.
                let result = unsafe { libc::syscall(libc::SYS_bpf, command, 0, 0) };
                (result == -1).then(|| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
            };
            for (number, name) in
                [(0, "map"), (5, "load"), (6, "pin"), (13, "program"), (14, "map"), (28, "link")]
            {
                assert_eq!(command(number), Some(Errno::NOSYS), "{name}");
            }
            assert_ne!(command(2), Some(Errno::NOSYS));
            assert!(std::process::Command::new("/bin/true").spawn().is_err());
            assert_eq!(std::thread::spawn(|| call(libc::SYS_ptrace)).join().unwrap(), Some(Errno::NOSYS));
        });
    }
}
