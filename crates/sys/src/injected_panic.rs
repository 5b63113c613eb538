//! [`at`], a place where a test can make a server panic. In builds without debug assertions it does nothing.
//!
//! The environment variable `PAGEFOLD_INJECTED_PANIC` names a file. While the file exists and contains the name of a place,
//! each thread that comes to this place panics. With `NAME once` only the first thread does, which empties the file.

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
    if asked == name && (!is_once || is_first(file)) {
        panic!("a test asked for a panic at {name}");
    }
}

/// Whether the calling thread is the first that comes to the place in the file. A confined process cannot remove files.
#[cfg(debug_assertions)]
fn is_first(file: &std::path::Path) -> bool {
    static EMPTYING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = EMPTYING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let is_there = std::fs::metadata(file).is_ok_and(|meta| meta.len() > 0);
    is_there && std::fs::OpenOptions::new().write(true).truncate(true).open(file).is_ok()
}
