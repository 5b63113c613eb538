//! All tests of the crate that need no separate process, in one program, because one program builds faster than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod archives;
mod build;
#[path = "../support/built.rs"]
mod built;
mod oracles;
#[path = "../support/random_tree.rs"]
mod random_tree;
mod random_trees;
mod set_id;
#[path = "../../../image/tests/support/source.rs"]
mod source;
#[path = "../../../image/tests/support/mod.rs"]
mod support;
#[path = "../support/tarball.rs"]
mod tarball;
mod usage;
