//! The functions of the C library that the library stands in for, a file for each family. All are
//! `C-unwind`: a cancelled thread unwinds through them while it is in the next function of the name.
mod aio;
mod cancel;
mod descriptor;
mod epoll;
mod fork;
mod limit;
mod move_data;
mod names;
pub(crate) mod poll;
mod print;
mod receive;
mod sandbox;
mod send;
pub(crate) mod signal;
mod sleep;
pub(crate) mod socket;
mod splice;
pub(crate) mod stdio;
mod submit;
mod syscall;

/// The hooks as the loader knows them.
pub(crate) mod table {
    use super::*;
    use libc::c_void;

    include!(concat!(env!("OUT_DIR"), "/hooks.rs"));
}

/// Defines hooks, which the loader exports under their names.
macro_rules! hooks {
    ($($(#[$note:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$note])*
        /// Stands in for the C library's function of this name.
        ///
        /// # Safety
        /// The requirements of the C library's function.
        #[allow(non_snake_case)] // As the C library has it.
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the caller's promises are those of the C library's function.
            unsafe { $body }
        }
    )*};
}
pub(crate) use hooks;
