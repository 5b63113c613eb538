//! All tests of the crate that need no process of their own, in one program, which takes less time to build than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod faults;
mod features;
mod hostile;
mod made;
mod metadata;
mod mount;
mod mount_hostile;
mod oracles;
mod reading;
#[path = "../support/mod.rs"]
mod support;
mod tools;
mod tools_hostile;
mod tools_limits;
mod zmap;
