//! All tests of the crate that need no separate process, in one program, because one program builds faster than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod strict;
#[path = "../../../image/tests/support/mod.rs"]
mod support;
mod tools;
mod tools_hostile;
mod tools_limits;
mod work;
