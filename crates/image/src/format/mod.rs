//! The layout on disk and nothing else: little-endian structures, their sizes, and their bits.
//!
//! `docs/formats/erofs.md` describes the same fields. Each structure parses from bytes that the caller
//! has bounds-checked, and judges nothing: whether a value makes sense is for [`crate::read`] to say.

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
