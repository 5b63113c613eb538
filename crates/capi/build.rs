//! Tells the dynamic linker the name of the shared library, and that it is never unloaded.

fn main() {
    // The number changes when programs that were linked with an older library would no longer work.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpagefold.so.0");
    // Signal handlers, a function for forked children and threads go on after `dlclose`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
