//! The structures on disk: little-endian fields, sizes and bits.
//!
//! `docs/formats/erofs.md` describes the same fields. Each structure is parsed from an array of its length, and
//! accepts any bytes; [`crate::read`] checks the values.

pub mod chunk;
pub mod config;
pub mod device;
pub mod dirent;
pub mod features;
pub mod inode;
pub mod le;
pub mod superblock;
pub mod xattr;
pub mod zmap;
