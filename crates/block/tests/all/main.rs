//! All tests of the crate that need no process of their own, in one program, which takes less time to build than many.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod loop_door;
mod nbd_clients;
mod nbd_hostile;
mod nbd_protocol;
mod nbd_server;
mod nbd_tls;
#[path = "../support/mod.rs"]
mod support;
