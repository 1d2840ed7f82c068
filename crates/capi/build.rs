//! Names the shared library. rustc exports exactly the `pd_*` symbols, but leaves them without a
//! version; the library that gets installed is linked from `libpd.a` with `libpd.map`, which gives
//! them one.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpd.so.0");
}
