//! [`at`], a place where a test can make a server panic. In builds without debug assertions it does nothing.
//!
//! The environment variable `PAGEFOLD_INJECTED_PANIC` names a file. While the file exists and contains the name of a place,
//! each thread that comes to this place panics. With `NAME once` the thread that removes the file panics.

use std::path::PathBuf;

/// Panics if a test has asked for a panic at the place `name`.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn at(_: impl FnOnce() -> String) {}

/// The file with the name of the place, if a test uses one: a confined process has to be able to read it.
pub fn file() -> Option<PathBuf> {
    std::env::var_os("PAGEFOLD_INJECTED_PANIC").filter(|_| cfg!(debug_assertions)).map(PathBuf::from)
}

/// Panics if a test has asked for a panic at the place `name`.
#[cfg(debug_assertions)]
pub fn at(name: impl FnOnce() -> String) {
    static FILE: std::sync::LazyLock<Option<PathBuf>> = std::sync::LazyLock::new(file);
    let Some(file) = &*FILE else { return };
    let Ok(asked) = std::fs::read_to_string(file) else { return };
    let (asked, is_once) =
        asked.trim().strip_suffix(" once").map_or((asked.trim(), false), |name| (name, true));
    let name = name();
    if asked == name && (!is_once || std::fs::remove_file(file).is_ok()) {
        panic!("a test asked for a panic at {name}");
    }
}
