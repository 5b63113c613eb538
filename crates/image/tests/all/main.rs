//! All tests of the crate that need no separate process, in one program, because one program builds faster than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod faults;
mod features;
mod hostile;
mod metadata;
mod mkfs_images;
mod mount;
mod mount_hostile;
mod reading;
#[path = "../support/source.rs"]
mod source;
mod startup;
#[path = "../support/mod.rs"]
mod support;
mod verity;
mod zmap;
