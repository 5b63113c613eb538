//! All tests of the program but those that boot a machine, in one program, which takes less time to build than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod disk_backing;
mod disk_gone;
mod disk_limits;
mod disk_loop;
mod disk_nbd;
mod disk_output;
mod disk_park;
mod docs;
mod hostile;
mod image_limits;
mod image_mount;
mod image_show;
mod image_tools;
/// Reference images and images made by hand, of the crate that reads them.
#[path = "../../../image/tests/support/mod.rs"]
mod images;
#[path = "../support/mod.rs"]
mod support;
