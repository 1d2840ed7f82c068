//! Where this library's thread-local variables are: in memory that the loader has in every thread from its start.
//!
//! The dynamic linker would allocate those of an object from `dlopen` in each thread's first access, by the program's `malloc`:
//! a signal handler that has interrupted `malloc` cannot bear that. The little memory that it keeps for such objects is for
//! the program's. So the function that it has for finding variables has another of the same name here, which finds them in the
//! loader's memory. Nobody else's calls come here: the name is hidden.
//!
//! The memory begins as zeros. A thread's first access puts the beginnings of all variables there.
#![cfg(target_arch = "x86_64")]
use crate::real::system_call;
use pd_client::core::SET_BYTES;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// In front of the variables: whether they have their beginnings. As much as the largest alignment.
const FLAG_BYTES: usize = 64;

/// Beginnings of the variables: address and bytes.
static IMAGE: AtomicUsize = AtomicUsize::new(0);
static IMAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

// Arguments and result are those of the dynamic linker's function: a pair of the object's number and the variable's offset.
std::arch::global_asm!(
    ".pushsection .text",
    ".p2align 4",
    ".globl __tls_get_addr",
    ".hidden __tls_get_addr",
    ".type __tls_get_addr, @function",
    "__tls_get_addr:",
    "mov rax, qword ptr [rip + pd_local_offset]",
    "add rax, qword ptr fs:[0]",
    "cmp qword ptr [rax], 0",
    "je 2f",
    "3:",
    "add rax, qword ptr [rdi + 8]",
    "add rax, {flag_bytes}",
    "ret",
    "2:",
    "push rdi",
    "mov rdi, rax",
    "call {begin}",
    "pop rdi",
    "jmp 3b",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
    ".pushsection .data",
    ".p2align 3",
    ".globl pd_local_offset",
    ".hidden pd_local_offset",
    "pd_local_offset: .quad 0",
    ".popsection",
    flag_bytes = const FLAG_BYTES,
    begin = sym begin,
);

extern "C" {
    static mut pd_local_offset: isize;
    /// The file header of this object, where it is in memory.
    static __ehdr_start: u8;
}

/// Puts the beginnings of the calling thread's variables behind `block`, which it returns. No handler runs meanwhile, for it could
/// be the first to use them.
///
/// # Safety
/// `block` is the calling thread's, and as large as [`set`] was told.
unsafe extern "C" fn begin(block: *mut u8) -> *mut u8 {
    let (all, mut before) = (u64::MAX, 0u64);
    // SAFETY: sets of the kernel's size, of the calling thread alone; the image is as long as it says, and has room there.
    unsafe {
        let (all, before) = ((&raw const all) as usize, (&raw mut before) as usize);
        let number = libc::SYS_rt_sigprocmask;
        system_call(number, [libc::SIG_SETMASK as usize, all, before, SET_BYTES, 0, 0]);
        // One that ran before may have been the first.
        if block.cast::<u64>().read() == 0 {
            let image = ptr::with_exposed_provenance::<u8>(IMAGE.load(Ordering::Relaxed));
            ptr::copy_nonoverlapping(image, block.add(FLAG_BYTES), IMAGE_BYTES.load(Ordering::Relaxed));
            block.cast::<u64>().write(1);
        }
        system_call(number, [libc::SIG_SETMASK as usize, before, 0, SET_BYTES, 0, 0]);
    }
    block
}

/// Records where the loader's memory is: `offset` is its distance from the address in the thread register, `bytes` its size. To be called
/// before any variable is used. Returns whether the memory is large enough.
pub(crate) fn set(offset: isize, bytes: usize) -> bool {
    // SAFETY: the headers of this object, as the dynamic linker has mapped them.
    let tls = unsafe {
        let header = (&raw const __ehdr_start).cast::<libc::Elf64_Ehdr>();
        let parts = header.cast::<u8>().add((*header).e_phoff as usize).cast::<libc::Elf64_Phdr>();
        (0..usize::from((*header).e_phnum))
            .map(|n| parts.add(n).read())
            .find(|part| part.p_type == libc::PT_TLS)
    };
    let Some(tls) = tls else { return true };
    if tls.p_align as usize > FLAG_BYTES || FLAG_BYTES + tls.p_memsz as usize > bytes {
        return false;
    }
    IMAGE.store((&raw const __ehdr_start).expose_provenance() + tls.p_vaddr as usize, Ordering::Relaxed);
    IMAGE_BYTES.store(tls.p_filesz as usize, Ordering::Relaxed);
    // SAFETY: no other thread uses the library yet.
    unsafe { (&raw mut pd_local_offset).write(offset) };
    true
}
