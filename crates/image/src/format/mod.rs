//! The layout on disk and nothing else: little-endian structures, their sizes, and their bits.
//!
//! `docs/formats/erofs.md` describes the same fields. Each structure parses from bytes that the caller
//! has bounds-checked, and judges nothing: whether a value makes sense is for [`crate::read`] to say.

pub mod zmap;
