//! Compressed read-only file systems: EROFS images, read in a bounded amount of memory.
//!
//! [`Image`] opens what lies on any [`Backing`](pagefold_backing::Backing) and hands out [`Node`]s: files, directories, links.
//! Below it, [`mod@format`] is the layout on disk and nothing else, and [`read`] finds things in it: inodes, names, attributes, and
//! where each byte of a file lies. What they find is data of a stranger, so every length is checked before it is used and
//! every loop has a bound. `clusters` reads what is compressed: one decoding for all who want it, in memory of one budget, for
//! which readers wait and read-ahead does not.
//!
//! [`walk`] goes over all of a tree whatever is wrong with it; [`check`], [`extract`] and [`tar`] are made of it, and say what they
//! find wrong as a list of [`Finding`]s.
//!
//! It does not write images, and it keeps no globals: many images may be open in one process.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod account;
pub mod check;
mod clusters;
mod core;
mod error;
pub mod extract;
mod finding;
pub mod format;
mod image;
pub mod mount;
mod node;
mod pieces;
mod queue;
pub mod read;
mod resolve;
mod runs;
mod source;
mod streams;
pub mod survey;
pub mod tar;
pub mod walk;

pub use clusters::{BUCKETS, ReadStats};
pub use error::{Address, ImageError, Nid, Space};
pub use finding::{Finding, Findings, Severity, with_causes};
pub use image::{Image, ImageStats, Options, ReadAhead};
pub use node::{DirEntry, Entries, Extents, MAX_LINK_BYTES, Node};
pub use resolve::{Located, MAX_LINKS};
