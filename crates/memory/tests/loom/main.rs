//! Model checks with loom: all orders of the steps of a few threads. Nothing is built without `--cfg loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod late;
mod page;
mod region_budget;
mod region_model;
