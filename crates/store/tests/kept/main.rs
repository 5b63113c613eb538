//! Stores whose contents outlive their process: death at each step of an operation, random kills, and changed memory.
//!
//! This program runs itself as the processes that die: see `child`.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod child;
mod faults;
mod image;
mod kills;
#[cfg(target_arch = "x86_64")]
mod step;
#[path = "../support/mod.rs"]
mod support;
mod tamper;
mod verify;

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn death_at_each_step() {
    pagefold_testkit::skipped!("death_at_each_step: the tracer sets registers of x86_64");
}
