//! Swap in a virtual machine that is short of memory and has no other swap than a disk of pagefold.
//!
//! The machine is a QEMU guest of 320 MiB, so that the shortage does not affect the host; see `tests/guest/README.md`.
//! The program `hog` uses 232 MiB, which is more than is free before the disk is created. The calculation of what must
//! fit:
//!
//! - free when the disk is created: 219 MiB; server, reserve and buffers: 40 MiB; the kernel keeps 15 MiB free;
//! - of the hog's pages 25 % are random, 55 % compress to 0.27, 10 % repeat a word, and 10 % are zero,
//!   which the kernel detects and does not write. A written page takes 0.44 pages on average;
//! - the kernel does not discard swap slots that it has freed, so in time every slot of the device has contents: 160
//!   MiB of them take 70 MiB, below the limit of 88M set here;
//! - so about 110 MiB of the hog stay resident, and 120 MiB are in swap at any time.
//!
//! The hog touches its pages in order, so the kernel swaps nearly all of them in again, and an emulated machine needs
//! some milliseconds for each: the time of the test grows with the hog.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::guest::{Guest, Missing, Setup, example, prepare_or_skip};
use std::process::Command;
use std::sync::MutexGuard;
use std::time::Duration;

fn guest(test: &str) -> Option<(Guest, MutexGuard<'static, ()>)> {
    prepare_or_skip(test, || {
        let (programs, foreign) = (vec![example("hog")?], Vec::new());
        Ok(Setup { init: "init", modules: &["loop", "fuse"], programs, foreign, memory_mib: 320 })
    })
}

#[test]
fn guest_swap() {
    let Some((guest, _guard)) = guest("guest_swap") else { return };
    let console =
        guest.run("pf.size=160M pf.limit=88M pf.hog=232 pf.passes=1 pf.time_s=780", Duration::from_secs(840));
    console.expect_ok();
    // More was swapped out than the memory could hold, and the hog compared every page.
    assert!(console.number("pswpout") > (48 << 20) >> 12, "hardly anything was swapped:\n{}", console.tail());
    assert_eq!(console.number("failed_reads"), 0, "{}", console.tail());
    assert_eq!(console.number("failed_writes"), 0, "{}", console.tail());
}

/// The memory limit of the disk is far too low for the pages that are swapped out. Pages whose write fails stay in
/// memory.
#[test]
fn guest_swap_refused() {
    let Some((guest, _guard)) = guest("guest_swap_refused") else { return };
    let parameters = "pf.limit=16M pf.hog=160 pf.passes=1 pf.reclaim=64M pf.time_s=600";
    let console = guest.run(parameters, Duration::from_secs(660));
    console.expect_ok();
    assert!(console.number("failed_writes") > 0, "nothing was refused:\n{}", console.tail());
    assert!(console.number("pswpin") > 0, "nothing was swapped in:\n{}", console.tail());
}

/// The server of the disk is killed while the machine swaps, and the next one needs memory just then.
#[test]
fn guest_swap_killed() {
    let Some((guest, _guard)) = guest("guest_swap_killed") else { return };
    let parameters =
        "pf.size=160M pf.limit=88M pf.hog=160 pf.passes=6 pf.reclaim=48M pf.kills=3 pf.time_s=780";
    let console = guest.run(parameters, Duration::from_secs(840));
    console.expect_ok();
    assert!(console.number("pswpin") > 0, "nothing was swapped in:\n{}", console.tail());
    assert_eq!(console.number("restarts"), 3, "{}", console.tail());
    assert_eq!(console.number("failed_reads"), 0, "{}", console.tail());
}

/// The tests above rely on it: the hog detects a single wrong bit.
#[test]
fn hog_notices_a_wrong_byte() {
    let hog = match example("hog") {
        Ok(hog) => hog,
        Err(Missing(why)) => return pagefold_testkit::skipped!("hog_notices_a_wrong_byte: {why}"),
    };
    let run = |spoil: &[&str]| {
        let output = Command::new(&hog).args(["8", "2"]).args(spoil).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(run(&[]).0, Some(0));
    let (status, said) = run(&["spoil"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("page 2047"), "{said}");
}
