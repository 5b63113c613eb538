//! All tests of the crate that need no separate process, in one program, which builds faster than many programs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod conformance;
mod late_writes;
mod loop_export;
mod loop_uring;
mod nbd_clients;
mod nbd_deferred;
mod nbd_hostile;
mod nbd_protocol;
mod nbd_server;
mod nbd_tls;
#[path = "../support/mod.rs"]
mod support;
