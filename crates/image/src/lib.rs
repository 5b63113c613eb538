//! Compressed read-only file systems: EROFS images, read in a bounded amount of memory.
//!
//! [`mod@format`] is the layout on disk and nothing else. [`read`] finds things: inodes, names, attributes,
//! and where each byte of a file lies. What it finds is data of a stranger, so every length is checked
//! before it is used and every loop has a bound.
//!
//! It does not write images, and it keeps no globals: many images may be open in one process.

pub mod format;
pub mod read;

mod error;

pub use error::{Address, ImageError, Nid, Space};
