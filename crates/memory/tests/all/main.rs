//! The tests of the crate that can share a process. Tests that count what a process has, fork, or replace its
//! allocator have separate programs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod advice;
mod budget;
mod copy;
mod device_reads;
mod devices;
mod file;
mod gathers;
mod late;
mod limit;
mod madvise;
mod mappings;
mod parts;
mod pin;
mod refusal;
mod resize;
mod rewritten;
mod rows;
mod signals;
mod smoke;
mod sparse;
#[path = "../support/mod.rs"]
mod support;
mod unwritten;

/// Runs a part of a test in a separate process (see `support`).
#[test]
fn child() {
    let Some(part) = support::part() else { return };
    let run = [
        budget::run_part,
        file::run_part,
        madvise::run_part,
        mappings::run_part,
        refusal::run_part,
        signals::run_part,
    ];
    assert!(run.iter().any(|run| run(&part)), "there is no part {part}");
    std::process::exit(0);
}
