//! The page, its index, and the units people type and read.
//!
//! Everything in pagefold is counted in pages of 4096 bytes; this crate holds
//! that number, the types that keep an index from being mistaken for a count or
//! a byte offset, and the parsing and printing of human sizes and spans of time. It is a crate of
//! its own because every other crate needs these words and none of them may
//! depend on another for them.
//!
//! It does not know about slots, codecs or devices, and makes no system call.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod duration;
mod index;
pub mod size;
mod span;

pub use index::{PageCount, PageIndex};
pub use span::{Span, Spans, spans};

/// Bytes in a page. The unit of the store, whatever the machine's own page size.
pub const PAGE_SIZE: usize = 4096;
/// `log2(PAGE_SIZE)`.
pub const PAGE_SHIFT: u32 = 12;
/// The contents of one page.
pub type Page = [u8; PAGE_SIZE];

const _: () = assert!(1 << PAGE_SHIFT == PAGE_SIZE);
