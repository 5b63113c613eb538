//! Names the shared library for the dynamic linker.

fn main() {
    // The number changes when programs that were linked with an older library would no longer work.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpagefold.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
