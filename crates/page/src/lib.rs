//! Defines the page of 4096 bytes and its index, and reads and prints the sizes and times that people type.
//!
//! ```
//! use pagefold_page::{PAGE_SIZE, PageCount, PageIndex, duration, size, spans};
//!
//! assert_eq!(size::parse("1.5M")?, 3 << 19);
//! assert_eq!(duration::parse_s("10m")?, 600);
//! assert_eq!(PageCount::covering(5000), PageCount(2));
//!
//! // The part of each page in a range of bytes.
//! let parts: Vec<_> = spans(4000, 200).map(|span| (span.index, span.len)).collect();
//! assert_eq!(parts, [(PageIndex(0), PAGE_SIZE - 4000), (PageIndex(1), 104)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It also has small data structures that several crates share: sharded counters, a map of units in use, runs of
//! free units, a token bucket, the [histogram of latencies](latency), an aligned buffer, [dates](DateTime). It is a
//! separate crate because all other crates
//! use these and must not depend on one another for them.
//!
//! It knows nothing of slots, codecs or devices, and makes no system calls. It has no threads and no locks.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod aligned;
mod counters;
mod date;
pub mod duration;
mod index;
pub mod latency;
mod runs;
pub mod size;
mod span;
mod token_bucket;
mod unit_map;

pub use aligned::AlignedBytes;
pub use counters::ShardedCounters;
pub use date::DateTime;
pub use index::{PageCount, PageIndex};
pub use runs::Runs;
pub use span::{Span, Spans, spans};
pub use token_bucket::TokenBucket;
pub use unit_map::UnitMap;

/// Bytes in a page: the unit of the store, whatever the machine's page size is.
pub const PAGE_SIZE: usize = 4096;
/// `log2(PAGE_SIZE)`.
pub const PAGE_SHIFT: u32 = 12;
/// The contents of one page.
pub type Page = [u8; PAGE_SIZE];

const _: () = assert!(1 << PAGE_SHIFT == PAGE_SIZE);
