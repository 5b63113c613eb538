//! Archives and stacks of layers drawn at random, compared with what other programs and the kernel make of them.
//!
//! A failure prints the words that replay it. `PAGEFOLD_LONG` makes ten times as many cases.

mod extraction;
mod files;
mod layers;
mod oci;
mod random;
