//! Names the shared library and gives its symbols a version.
use std::env;

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=libpd.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpd.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={root}/libpd.map");
}
