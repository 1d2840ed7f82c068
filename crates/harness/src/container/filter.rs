//! The system calls that a container's processes may not make: a seccomp filter (seccomp(2)), as container engines have by default.
//!
//! A list of calls that fail with `EPERM`: calls that change or inspect the host, new namespaces, and parts of the kernel that programs
//! work without. Set-id programs keep their rights. Calls of other architectures than the machine's own and its 32-bit one fail with
//! `ENOSYS`.

use libc::{
    c_long, sock_filter, BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
};

/// A filter, ready for the kernel.
pub type Program = Vec<sock_filter>;

/// Refused whatever the arguments are: the number here, and that of the 32-bit calls of x86, 0 if there is none.
const REFUSED: &[(c_long, u32)] = &[
    // The machine.
    (libc::SYS_acct, 51),
    (libc::SYS_clock_settime, 264),
    (libc::SYS_kexec_load, 283),
    (libc::SYS_kexec_file_load, 0),
    (libc::SYS_nfsservctl, 169),
    (libc::SYS_quotactl, 131),
    (libc::SYS_quotactl_fd, 443),
    (libc::SYS_reboot, 88),
    (libc::SYS_settimeofday, 79),
    (libc::SYS_swapoff, 115),
    (libc::SYS_swapon, 87),
    // Loading of code into the kernel, and inspection of it.
    (libc::SYS_bpf, 357),
    (libc::SYS_delete_module, 129),
    (libc::SYS_finit_module, 350),
    (libc::SYS_init_module, 128),
    (libc::SYS_lookup_dcookie, 253),
    (libc::SYS_perf_event_open, 336),
    (libc::SYS_userfaultfd, 374),
    // Keys are no namespace's.
    (libc::SYS_add_key, 286),
    (libc::SYS_keyctl, 288),
    (libc::SYS_request_key, 287),
    // Files past their paths.
    (libc::SYS_name_to_handle_at, 341),
    (libc::SYS_open_by_handle_at, 342),
    // Mounts and namespaces.
    (libc::SYS_fsconfig, 431),
    (libc::SYS_fsmount, 432),
    (libc::SYS_fsopen, 430),
    (libc::SYS_fspick, 433),
    (libc::SYS_mount, 21),
    (libc::SYS_mount_setattr, 442),
    (libc::SYS_move_mount, 429),
    (libc::SYS_open_tree, 428),
    (libc::SYS_pivot_root, 217),
    (libc::SYS_setns, 346),
    (libc::SYS_umount2, 52),
    (libc::SYS_unshare, 310),
    // Rings of requests that no filter sees.
    (libc::SYS_io_uring_enter, 426),
    (libc::SYS_io_uring_register, 427),
    (libc::SYS_io_uring_setup, 425),
];

/// Calls that only one of the two has.
#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[(c_long, u32)] = &[
    (libc::SYS_ioperm, 101),
    (libc::SYS_iopl, 110),
    (libc::SYS_sysfs, 135),
    (libc::SYS_uselib, 86),
    (libc::SYS_ustat, 62),
    // umount, stime, vm86old, vm86, clock_settime64.
    (0, 22),
    (0, 25),
    (0, 113),
    (0, 166),
    (0, 404),
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OLD: &[(c_long, u32)] = &[];

/// Flags of `clone` for namespaces.
const NAMESPACES: u32 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u32;
/// Requests of `ioctl` that type into a terminal, which is the host's as well.
const TYPING: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];
/// A call whose flags lie in memory, which a filter cannot read. C libraries work without it.
const CLONE3: u32 = libc::SYS_clone3 as u32;

// AUDIT_ARCH_*, linux/audit.h.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "x86_64")]
const COMPATIBLE: Option<u32> = Some(0x4000_0003);
#[cfg(not(target_arch = "x86_64"))]
const COMPATIBLE: Option<u32> = None;
/// `clone` and `ioctl` of 32-bit x86.
const COMPATIBLE_JUDGED: Judged = Judged { clone: 120, ioctl: 54 };
/// Numbers from here on are x32's, under the native architecture.
const X32: u32 = 0x4000_0000;

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;

/// Numbers of the calls that are judged by an argument.
struct Judged {
    clone: u32,
    ioctl: u32,
}

const NATIVE_JUDGED: Judged = Judged { clone: libc::SYS_clone as u32, ioctl: libc::SYS_ioctl as u32 };

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips the next `unless` instructions unless the condition holds.
const fn skip(condition: u32, k: u32, unless: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | condition | BPF_K) as u16, jt: 0, jf: unless, k }
}

const fn load(offset: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset)
}

const fn fails_with(errno: i32) -> sock_filter {
    statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Filter of calls for a known architecture.
fn judge(refused: impl Iterator<Item = u32>, judged: &Judged) -> Program {
    let mut program = vec![load(NUMBER)];
    for number in refused {
        program.extend([skip(BPF_JEQ, number, 1), fails_with(libc::EPERM)]);
    }
    program.extend([skip(BPF_JEQ, CLONE3, 1), fails_with(libc::ENOSYS)]);
    let allowed = statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW);
    let refused = fails_with(libc::EPERM);
    program.extend([
        skip(BPF_JEQ, judged.clone, 4),
        load(FIRST_ARGUMENT),
        skip(BPF_JSET, NAMESPACES, 1),
        refused,
        allowed,
    ]);
    program.extend([skip(BPF_JEQ, judged.ioctl, 1 + 2 * TYPING.len() as u8), load(SECOND_ARGUMENT)]);
    program.extend(TYPING.iter().flat_map(|&request| [skip(BPF_JEQ, request, 1), refused]));
    program.push(allowed);
    program
}

/// Returns the filter of unprivileged containers.
pub fn program() -> Program {
    let refused = || REFUSED.iter().chain(REFUSED_OLD);
    let native = refused().filter(|(number, _)| *number != 0).map(|(number, _)| *number as u32);
    let mut own = judge(native, &NATIVE_JUDGED);
    if cfg!(target_arch = "x86_64") {
        own.splice(1..1, [skip(BPF_JGE, X32, 1), fails_with(libc::ENOSYS)]);
    }
    let mut program = vec![load(ARCHITECTURE), skip(BPF_JEQ, NATIVE, own.len() as u8)];
    program.extend(own);
    if let Some(architecture) = COMPATIBLE {
        let compatible =
            judge(refused().map(|(_, number)| *number).filter(|number| *number != 0), &COMPATIBLE_JUDGED);
        program.push(skip(BPF_JEQ, architecture, compatible.len() as u8));
        program.extend(compatible);
    }
    program.push(fails_with(libc::ENOSYS));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the program's verdict on a call: `None` if it is allowed, otherwise its error.
    fn verdict(architecture: u32, number: u32, arguments: [u32; 2]) -> Option<u32> {
        let program = program();
        let (mut at, mut value) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            let holds = match code {
                _ if code == BPF_LD | BPF_W | BPF_ABS => {
                    value = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        FIRST_ARGUMENT => arguments[0],
                        SECOND_ARGUMENT => arguments[1],
                        other => panic!("offset {other}"),
                    };
                    continue;
                }
                _ if code == BPF_RET | BPF_K => {
                    return (step.k != libc::SECCOMP_RET_ALLOW).then_some(step.k & 0xffff);
                }
                _ if code == BPF_JMP | BPF_JEQ | BPF_K => value == step.k,
                _ if code == BPF_JMP | BPF_JGE | BPF_K => value >= step.k,
                _ if code == BPF_JMP | BPF_JSET | BPF_K => value & step.k != 0,
                other => panic!("instruction {other:#x}"),
            };
            at += usize::from(if holds { step.jt } else { step.jf });
        }
    }

    #[test]
    fn each_call_has_the_verdict_of_the_list() {
        let (refused, missing) = (Some(libc::EPERM as u32), Some(libc::ENOSYS as u32));
        for architecture in [Some(NATIVE), COMPATIBLE].into_iter().flatten() {
            let native = architecture == NATIVE;
            let Judged { clone, ioctl } = if native { NATIVE_JUDGED } else { COMPATIBLE_JUDGED };
            let listed = |number: u32| {
                REFUSED.iter().chain(REFUSED_OLD).any(|(own, other)| {
                    let one = if native { *own as u32 } else { *other };
                    one != 0 && one == number
                })
            };
            for number in 0..600 {
                let expected = match number {
                    CLONE3 => missing,
                    _ if listed(number) => refused,
                    _ => None,
                };
                assert_eq!(verdict(architecture, number, [0; 2]), expected, "{architecture:#x} {number}");
            }
            for (request, expected) in [(0x5412, refused), (0x541c, refused), (0x5413, None)] {
                assert_eq!(verdict(architecture, ioctl, [0, request]), expected, "{request:#x}");
            }
            for bit in 0..32 {
                let expected = (NAMESPACES & 1 << bit != 0).then_some(libc::EPERM as u32);
                assert_eq!(verdict(architecture, clone, [1 << bit, 0]), expected, "{bit}");
            }
        }
        assert_eq!(verdict(0x8000_0015, 1, [0; 2]), missing, "another architecture");
        #[cfg(target_arch = "x86_64")]
        assert_eq!(verdict(NATIVE, X32 + 1, [0; 2]), missing, "x32");
    }
}
