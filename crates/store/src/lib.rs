//! Stores pages of 4 KiB compressed in memory, and writes cold ones back to a file: the engine of pagefold.
//!
//! A [`Store`] is an array of bytes that starts as zeroes, takes almost no memory for what was not written, and
//! compresses what was. Threads share it.
//!
//! ```
//! use pagefold_store::{Store, StoreConfig};
//!
//! let store = Store::new(StoreConfig::new(1 << 30))?; // 1 GiB, lz4; costs nothing yet
//! store.write(8192, "fold me ".repeat(512).as_bytes())?; // one page
//! store.write(12288 + 100, b"some bytes inside a page")?;
//! let mut text = [0; 24];
//! store.read(12288 + 100, &mut text)?;
//! assert_eq!(&text, b"some bytes inside a page");
//! store.discard(8192, 4096)?; // reads as zeroes again
//! # Ok::<(), pagefold_store::StoreError>(())
//! ```
//!
//! **Settings** are fields of [`StoreConfig`]: the codec with its level, and the most memory for compressed pages. A
//! write that finds no memory fails with [`StoreError::NoMemory`] and leaves the old contents. **Counters** have zram's
//! names:
//!
//! ```
//! use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};
//!
//! let store = Store::new(StoreConfig {
//!     codec: CodecSpec { level: Some(3), ..CodecSpec::named("zstd") },
//!     mem_limit: MemLimit::Bytes(64 << 20),
//!     ..StoreConfig::new(1 << 30)
//! })?;
//! for page in 0..1000 {
//!     store.write(page * 4096, format!("page {page} ").repeat(600)[..4096].as_bytes())?;
//! }
//! let stats = store.stats();
//! println!("{} bytes in {}", stats.mm.orig_data_size, stats.mm.mem_used_total);
//! println!("{}", stats.mm); // in the format of zram's mm_stat
//! assert!(stats.mm.orig_data_size > 10 * stats.mm.mem_used_total);
//! # Ok::<(), pagefold_store::StoreError>(())
//! ```
//!
//! **A backing**, a file or a block device, takes cold pages. A [`WritebackThread`] writes them back before the memory
//! is used up; [`Store::write_back`] does so on request. Reading brings pages back:
//!
//! ```
//! use pagefold_store::backing::{FileBacking, FileOptions};
//! use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig};
//! use pagefold_store::{MemLimit, Store, StoreConfig, WritebackThread};
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("cold.backing");
//! let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
//! file.set_len(256 << 20)?;
//! let mut store = Store::new(StoreConfig { mem_limit: MemLimit::Bytes(16 << 20), ..StoreConfig::new(1 << 30) })?;
//! store.attach(WritebackConfig {
//!     backing: Arc::new(FileBacking::new(file, FileOptions::default())?),
//!     layout: LayoutKind::Log, // compressed, packed, in sequential writes
//! })?;
//! let store = Arc::new(store);
//! let _thread = WritebackThread::start(store.clone())?; // until it is dropped
//!
//! store.write(0, "a page ".repeat(600)[..4096].as_bytes())?;
//! let report = store.write_back(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(report.written_back_pages, 1);
//! let mut page = [0; 4096];
//! store.read(0, &mut page)?;
//! assert!(page.starts_with(b"a page a page"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! Caches, block devices and memory whose contents compress. Contents are volatile, those on the backing too: they
//! survive the process if the store is [in shared memory](Store::new_kept), and never the machine. The crate knows no device, protocol or file; `pagefold-block` exports a store as a block
//! device, and `pagefold-memory` makes it memory of a program.
//!
//! # Limits and failures
//!
//! A write that finds no memory below the limit waits until writeback has freed some. If writeback cannot free any, or
//! no writeback thread runs, the pool is compacted; if that is not enough, the write overwrites the page's old bytes, and
//! fails with [`StoreError::NoMemory`] if it needs more memory than these. A write that fails leaves the page's old contents. A page leaves memory only after its
//! record has been written to the backing; if that write fails, the page stays in memory. Pages on the backing have
//! checksums and are not encrypted.
//!
//! # How it works
//!
//! A store consists of a table of slots, its codecs with one stream per CPU each, a pool of compressed objects and,
//! optionally, a backing. It stores each page as empty, same-filled, compressed ("folded"), raw or written back.
//!
//! | folder | contains |
//! |---|---|
//! | `slot` | the state of one page, and its lock |
//! | `kept` | the memory of a store that outlives its process, and what describes it |
//! | `pages` | the slots and objects in memory |
//! | `layout` | where written-back pages lie on the backing, and which places are free |
//! | `policy` | when automatic writeback writes which pages; the throttle of writers at the limit |
//! | `writeback` | passes, the cleaner of the log, reading back, the ring |
//! | `recompress` | compressing pages in memory again, with a denser codec |
//! | `engine` | the public `Store` |
//!
//! Arrows point down only:
//!
//! ```text
//! engine            the public Store: byte ranges, writing, reading and loading a page, passes on request, the two threads
//!   |    \
//!   |  recompress     uses pages and slot, and writeback's words for pages
//!   |     |
//! writeback |       passes, cleaner, maintenance, fetching records; the ring
//!   |  \    |
//!   |  policy       when and what to write back; writers at the limit wait in its throttle
//!   |    |
//! layout | pages    places on the backing; slots and objects in memory (neither uses the other)
//!   \    |  /
//!  kept, slot       where memory that outlives the process lies;
//!                   states of one page, and their lock          (error, report, sync: plain types that all use)
//! ```
//!
//! *Paths.* A write goes through `engine/io.rs` (cuts the range into pages), `engine/fold.rs` (compresses the page and
//! publishes it in its slot) and `pages/mod.rs`; at the limit it waits in `policy/throttle.rs`. A read goes through
//! `engine/io.rs`, `engine/read.rs` and, for a written-back page, `writeback/fetch.rs`.
//!
//! *Threads.* Reads and writes run in the threads of the callers. The crate starts threads only on request: the two
//! threads of the pool's reserve, if one is configured; the thread of automatic writeback, if the caller starts a
//! [`WritebackThread`], and that of automatic recompression, if it starts a [`RecompressThread`]; and the further
//! workers of a pass of [`Store::recompress`], which end with it.
//!
//! *Locks*, in their order (`ARCHITECTURE.md` has those of all crates). A pass of writeback or the cleaner holds the lock of
//! passes in `writeback`, so one runs at a time, and the cleaner takes that of read-ahead under it; passes of recompression
//! need no such lock, and may run beside it and beside each other. A page is compressed, and its object put into the pool,
//! with the lock of a CPU's stream. The pool takes the lock of a size class. Under it, it tries a slot's lock and releases
//! it again, or takes the lock of its frame source. The holder of a slot's lock takes no other lock, never waits for I/O
//! and runs no codec. The remaining locks (the free lists of `layout`, the cache of read-ahead, the throttle and the
//! condition of `policy`, the report of a pass of recompression) are held for a few instructions, and no other lock is
//! taken under them.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

// The model checks in `tests/loom` use slots by themselves.
#[cfg(loom)]
pub mod slot;
#[cfg(not(loom))]
mod slot;
mod sync;

// loom checks the throttle without the rest of automatic writeback.
#[cfg(loom)]
#[path = "policy/throttle.rs"]
pub mod throttle;

#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod kept;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod policy;
#[cfg(not(loom))]
pub mod recompress;
#[cfg(not(loom))]
mod report;
#[cfg(not(loom))]
pub mod writeback;
#[cfg(not(loom))]
pub use engine::*;
// The crates whose types the interface has.
#[cfg(not(loom))]
pub use pagefold_backing as backing;
#[cfg(not(loom))]
pub use pagefold_page as page;

/// The segments' reference counts, which loom checks without the rest of the log.
#[cfg(loom)]
#[allow(dead_code, reason = "the models use only a part")]
mod layout {
    pub(crate) mod format;
    pub(crate) mod segments;
}
