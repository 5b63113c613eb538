//! Tests of the library as C programs see it: they install it in a temporary folder, and compile programs with a C
//! compiler.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod guide;
mod installed;
mod programs;
mod support;
mod symbols;
