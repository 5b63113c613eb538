//! The tests of `zram-shell` and `zram-tree`, and of the kernel's zram as their reference.
//!
//! They are a separate program, because a shell gets a copy of all mounts. Where mounts are not shared, as in many
//! containers, a file system that a test in another thread unmounts meanwhile would stay mounted until the shell ends.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod clients;
#[path = "../all/guides/check.rs"]
mod guides;
mod kernel;
mod shell;
#[path = "../support/mod.rs"]
mod support;

#[test]
fn the_guide_works() {
    if let Some(why) = support::no_loop() {
        return pagefold_testkit::skipped!("the_guide_works: {why}");
    }
    guides::check_document("docs/zram.md");
}
