//! The functions by which panics and cancelled threads unwind. They are in libgcc_s, which few programs have: loading it takes longer than loading this
//! library, and an image may lack it. So this library has functions of their names, which load it when one is called, as the C library does in
//! `pthread_cancel`. Nobody else's calls come here: the names are hidden.
#![cfg(target_arch = "x86_64")]
use crate::real;
use libc::c_void;
use std::ffi::CStr;

macro_rules! functions {
    ($($number:literal $name:literal)*) => {
        const NAMES: &[&CStr] = &[$(match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name has one zero byte, its last"),
        }),*];

        // A function is a jump through its slot: the unwinder begins with the frame of who has called it. A slot begins with a stub, which has the function
        // found. No function has more than three arguments.
        std::arch::global_asm!(
            ".pushsection .text",
            $(concat!(".globl ", $name), concat!(".hidden ", $name), concat!(".type ", $name, ", @function"),
            concat!($name, ": jmp qword ptr [rip + pd_unwind_slots + 8 * ", $number, "]"),
            concat!(".size ", $name, ", . - ", $name),
            concat!("pd_unwind_", $number, ": mov eax, ", $number), "jmp pd_unwind_first",)*
            "pd_unwind_first:",
            "push rdi", "push rsi", "push rdx",
            "mov edi, eax",
            "call {find}",
            "pop rdx", "pop rsi", "pop rdi",
            "jmp rax",
            ".popsection",
            ".pushsection .data",
            ".p2align 3",
            ".globl pd_unwind_slots",
            ".hidden pd_unwind_slots",
            "pd_unwind_slots:",
            $(concat!(".quad pd_unwind_", $number),)*
            ".popsection",
            find = sym find,
        );
    };
}

functions! {
    0 "_Unwind_Backtrace"
    1 "_Unwind_DeleteException"
    2 "_Unwind_GetDataRelBase"
    3 "_Unwind_GetIP"
    4 "_Unwind_GetIPInfo"
    5 "_Unwind_GetLanguageSpecificData"
    6 "_Unwind_GetRegionStart"
    7 "_Unwind_GetTextRelBase"
    8 "_Unwind_RaiseException"
    9 "_Unwind_Resume"
    10 "_Unwind_SetGR"
    11 "_Unwind_SetIP"
}

/// `_URC_END_OF_STACK`: nobody catches it. A panic then ends the program.
extern "C" fn missing() -> usize {
    5
}

/// Finds the function with this number, for its slot.
unsafe extern "C" fn find(number: usize) -> *const c_void {
    let found = real::of_libgcc(NAMES[number]).unwrap_or(missing as *const c_void);
    extern "C" {
        static mut pd_unwind_slots: [*const c_void; NAMES.len()];
    }
    // SAFETY: whoever else finds it stores the same.
    unsafe { (&raw mut pd_unwind_slots[number]).write_volatile(found) };
    found
}
