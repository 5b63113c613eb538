//! Swap under global shortage: a machine that has to swap to pagefold to go on, and nothing else.
//!
//! The machine is a QEMU guest of 512 MiB, so that it can be starved without starving this one; see
//! `tests/guest/README.md`. The hog takes 768 MiB, 1.5 times its memory. What must fit:
//!
//! - free when the disk is made: 430 MiB; server, reserve and buffers: 30 MiB;
//! - of the hog's pages 25 % are random, 55 % compress to 0.27, 10 % repeat a word, and 10 % are zero,
//!   which the kernel notes and does not write. A page written costs 0.44 pages on average;
//! - so with `x` MiB of the hog resident, `x + 0.40 (768 - x) + 30 <= 430` holds up to 150 MiB:
//!   about 600 MiB are in swap at any time;
//! - the kernel does not tell the disk which swap slots it has freed, so in time every slot of the
//!   device holds something: 768 MiB of them cost 342 MiB, below the limit of 352M set here (half of
//!   the machine's memory, the default, would be too little). What remains is just enough.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::guest::{Guest, Missing};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One guest at a time: each keeps two CPUs busy, and they share the folder that the kernel is fetched to.
static ONE_GUEST: Mutex<()> = Mutex::new(());

/// The guest and its turn, or a line that says why not.
fn guest(test: &str) -> Option<(Guest, MutexGuard<'static, ()>)> {
    let turn = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let guest = match std::env::var_os("PAGEFOLD_FULL") {
        Some(_) => Guest::prepare(),
        None => Err(Missing("takes minutes; set PAGEFOLD_FULL=1".into())),
    };
    guest
        .map_err(|Missing(why)| pagefold_testkit::skipped!("{test}: {}", why.replace('\n', " ")))
        .ok()
        .map(|g| (g, turn))
}

#[test]
fn guest_swap() {
    let Some((guest, _turn)) = guest("guest_swap") else { return };
    let console = guest.run("pf.limit=352M pf.hog=768 pf.passes=1 pf.time_s=840", Duration::from_secs(900));
    console.expect_ok();
    // More than memory could have held went out, and every page was compared with what it should be.
    assert!(
        console.number("pswpout") > (300 << 20) >> 12,
        "hardly anything was swapped:\n{}",
        console.tail()
    );
    assert_eq!(console.number("failed_reads"), 0, "{}", console.tail());
    assert_eq!(console.number("failed_writes"), 0, "{}", console.tail());
}

/// The disk's limit is far too small for what the kernel is made to swap out; refused pages stay where
/// they were.
#[test]
fn guest_swap_refused() {
    let Some((guest, _turn)) = guest("guest_swap_refused") else { return };
    let parameters = "pf.limit=16M pf.hog=160 pf.passes=5 pf.reclaim=64M pf.time_s=240";
    let console = guest.run(parameters, Duration::from_secs(300));
    console.expect_ok();
    assert!(console.number("failed_writes") > 0, "nothing was refused:\n{}", console.tail());
    assert!(console.number("pswpin") > 0, "nothing came back from swap:\n{}", console.tail());
}

/// What the proofs above rest on: the hog sees a single wrong bit.
#[test]
fn hog_notices_a_wrong_byte() {
    let hog = match crate::support::guest::hog() {
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
