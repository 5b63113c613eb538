//! The kernel's NBD driver as a client of a disk of pagefold, in a virtual machine, because few kernels have the
//! driver.
//!
//! The machine is a QEMU guest that runs pagefold, Debian's nbd-client and the steps of `tests/guest/nbd-init`, a
//! shell script; see `tests/guest/README.md`. The script checks all contents and ends with a result. This file says
//! which steps belong together and how long they may take.
//!
//! The tests do not measure, and do not use TLS, which the driver does not have.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::guest::{Missing, Setup, example, packaged, prepare_or_skip, program};
use std::time::Duration;

/// The programs of this machine that the steps use.
const PROGRAMS: [&str; 6] = ["fio", "mkfs.ext4", "e2fsck", "fstrim", "blkdiscard", "ss"];

fn setup() -> Result<Setup, Missing> {
    let mut programs: Vec<_> = PROGRAMS.into_iter().map(program).collect::<Result<_, _>>()?;
    programs.push(example("nbd_reconnect")?);
    Ok(Setup {
        init: "nbd-init",
        // tcp_diag cuts connections.
        modules: &["nbd", "tcp_diag"],
        programs,
        foreign: vec![packaged("bookworm", "nbd-client")?],
        memory_mib: 768,
    })
}

/// Runs steps of the script in a guest, which has `time_s` seconds for them.
fn run(test: &str, steps: &str, time_s: u64) {
    let Some((guest, _guard)) = prepare_or_skip(test, setup) else { return };
    let parameters = format!("pf.steps={steps} pf.time_s={time_s}");
    let console = guest.run(&parameters, Duration::from_secs(time_s + 60));
    console.expect_ok();
    for step in steps.split(',') {
        assert!(console.0.contains(&format!("STEP {step} ")), "{step} did not run:\n{}", console.tail());
    }
}

/// A file system, and blocks that the driver and a client in user space write and read, with discards and zeroes.
#[test]
fn guest_nbd() {
    run("guest_nbd", "files,blocks", 600);
}

/// Connections that are cut, and a server that is stopped, killed or replaced, while the driver uses the disk.
#[test]
fn guest_nbd_reconnect() {
    if std::env::var_os("PAGEFOLD_LONG").is_none() {
        return pagefold_testkit::skipped!("guest_nbd_reconnect: takes five minutes; set PAGEFOLD_LONG=1");
    }
    run("guest_nbd_reconnect", "cut_some,cut_all,stopped,killed,replaced", 900);
}
