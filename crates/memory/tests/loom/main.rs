//! Every order of the steps of a few threads, with loom: nothing is built without `--cfg loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod memory_left;
mod page;
mod world;
