//! Work under fakeroot and pseudo, which show programs owners and devices that are not there.
//!
//! They replace functions of the C library (LD_PRELOAD), and this program makes system calls itself, so it would read and
//! set the real ones: an image whose files belong to the user, with empty files for devices. Programs like tar see what
//! they show, and an archive carries it: commands refuse to work there, and `mkfs.erofs` has tar read the files. fakeroot-ng
//! and user namespaces are no such case: there the kernel answers.

use pagefold_control::error::{CliError, Result};
use std::env::var_os;

/// The program that shows owners and devices to programs that use the C library, if this process runs under one.
pub fn program() -> Option<&'static str> {
    let is_set = |name| var_os(name).is_some_and(|value| !value.is_empty());
    let is_pseudo = is_set("PSEUDO_PREFIX") && var_os("PSEUDO_DISABLED").is_none_or(|value| value != "1");
    match (is_set("FAKEROOTKEY"), is_pseudo) {
        _ if !is_set("LD_PRELOAD") => None,
        (true, _) => Some("fakeroot"),
        (_, true) => Some("pseudo"),
        _ => None,
    }
}

/// Refuses if owners and devices are only shown to programs that use the C library. `work` says what would go wrong, and
/// `instead` is the command that works.
pub fn refuse(work: &str, instead: &str) -> Result<()> {
    let Some(program) = program() else { return Ok(()) };
    Err(CliError::usage(format!(
        "under {program} this command {work}: run {instead} (or without LD_PRELOAD, if the real ones are right)"
    )))
}
