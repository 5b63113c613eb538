//! All tests of the crate that need no separate process, in one program, which builds faster than many programs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod backing;
#[path = "../../../backing/tests/support/devices.rs"]
mod devices;
