//! All tests of the crate that need no process of their own, in one program, which takes less time to build than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod contract;
mod file;
mod layers;
mod open;
#[path = "../support/mod.rs"]
mod support;
