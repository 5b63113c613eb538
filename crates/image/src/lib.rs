//! Reads EROFS images (compressed read-only file systems), which may be untrusted, in a fixed memory budget.
//!
//! [`Image`] opens a file, a block device, or any other [`ByteSource`](pagefold_backing::ByteSource); [`Node`] is a file or
//! directory in it:
//!
//! ```
//! use pagefold_image::{Image, Options};
//! use std::path::Path;
//!
//! # std::env::set_current_dir("tests/fixtures")?;
//! let image = Image::open_file(Path::new("app.erofs"), Options::default())?;
//! let file = image.find(b"/etc/os-release")?;
//! let mut contents = vec![0; file.len_bytes() as usize];
//! file.read_at(0, &mut contents)?;
//! assert!(contents.starts_with(b"NAME="));
//!
//! for entry in image.find(b"/usr/bin")?.entries()? {
//!     let entry = entry?;
//!     println!("{} {}", entry.nid.0, String::from_utf8_lossy(&entry.name));
//! }
//! let program = image.resolve(b"/bin/hello")?; // follows symbolic links, inside the image only
//! assert_eq!(program.nid(), image.find(b"/usr/bin/hello")?.nid());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **A walk** visits a whole tree, past damaged parts, which it reports as [`Finding`]s:
//!
//! ```
//! use pagefold_image::walk::{Limits, Visit, Visitor, walk};
//! use pagefold_image::{Finding, Image, Options};
//! use std::ops::ControlFlow;
//!
//! #[derive(Default)]
//! struct Total {
//!     bytes: u64,
//!     faults: Vec<Finding>,
//! }
//!
//! impl Visitor for Total {
//!     fn enter(&mut self, _directory: &Visit<'_>) -> ControlFlow<(), bool> {
//!         ControlFlow::Continue(true) // its entries too
//!     }
//!
//!     fn leave(&mut self, _directory: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
//!         ControlFlow::Continue(())
//!     }
//!
//!     fn file(&mut self, file: &Visit<'_>) -> ControlFlow<()> {
//!         self.bytes += file.node.len_bytes();
//!         ControlFlow::Continue(())
//!     }
//!
//!     fn finding(&mut self, finding: Finding) {
//!         self.faults.push(finding);
//!     }
//! }
//!
//! # std::env::set_current_dir("tests/fixtures")?;
//! let image = Image::open_file("app.erofs".as_ref(), Options::default())?;
//! let mut total = Total::default();
//! walk(&image, &Limits::default(), &mut total)?;
//! assert!(total.bytes > 100_000 && total.faults.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`extract`] and [`tar`] write the tree, [`tree_stats`] counts it, [`usage`] has the uses of its stored bytes,
//! [`kernel_needs`] says what Linux needs to mount it, and [`mount`] makes it a file system by FUSE. The crate
//! `pagefold-image-check` decodes everything and judges all [`rules`] of the format, and `pagefold-image-build` builds
//! images.
//!
//! **A memory budget** covers everything that reading needs: compressed and decompressed data, decompressors, cache. If
//! the budget is too small for any read, opening fails; otherwise reads wait for memory, and are slower but never
//! wrong:
//!
//! ```
//! use pagefold_image::{Image, Options};
//!
//! # std::env::set_current_dir("tests/fixtures")?;
//! let options = Options { memory_bytes: 4 << 20, ..Options::default() };
//! let image = Image::open_file("app.erofs".as_ref(), options)?;
//! let mut page = [0; 4096];
//! image.find(b"/usr/share/doc/app/README")?.read_at(100_000, &mut page)?;
//! let stats = image.stats();
//! assert!(stats.budget.peak_bytes <= 4 << 20);
//! println!("{} bytes of cache, {} clusters decoded", stats.cached_bytes, stats.reads.clusters);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! Programs that read images on machines whose kernel has no EROFS, that must not let the kernel parse an untrusted
//! image, or that have little memory. It reads everything that mkfs.erofs 1.9 writes: LZ4, MicroLZMA, DEFLATE and ZSTD,
//! all index forms, tail packing, fragments, deduplication, several devices, extended attributes.
//!
//! # Limits
//!
//! - Images have no checksums of contents: damage is found if it contradicts the format or does not decode.
//! - At the limit of the budget, the cache is evicted first; then read-ahead skips clusters, and readers wait for
//!   memory.
//! - Every length is checked before it is used, and every loop has a bound, so that a hostile image costs limited time
//!   and memory: [`ImageError::TooMuchWork`] ends what an image of its size cannot need. See also [`walk::Limits`].
//!
//! # How it works
//!
//! [`mod@format`] declares the structures on disk. [`read`] parses them: inodes, directories, attributes, and the
//! mapping of a file's bytes to stored ones.
//!
//! *A read* of file contents: [`Node::read_at`] (`image/node.rs`) -> `streams` detects sequential reads ->
//! `core/contents.rs` walks the extents of the range (`read::{flat, chunk, zmap}`, metadata through the cache by
//! `core/metadata.rs`) -> plain bytes come from `source`, compressed ones from `clusters`: the cache, single-flight
//! decoding, and three ways to decode.
//!
//! *Threads.* Reads run in the caller's thread. An image has read-ahead threads (`clusters/prefetch.rs`), a [`mount`]
//! has threads that serve FUSE requests, and the tools have workers. *Locks:* those that a read takes are leaves, held
//! for a few operations on a list or table and never while a thread decodes, does I/O or waits for memory; `clusters`
//! and `mount` list them. Only the account of a tool charges the budget under its lock, which may evict from the cache.
//!
//! *Tools on images*, here and in other crates, are made of [`walk`], of [`runs`] and [`pieces`], which cut files, of
//! [`queue`], which distributes work to threads, and of [`work`] and [`account`], which bound the time and the memory that
//! an untrusted image can cost. The crate has no global state: many images may be open in one process.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod account;
pub mod budget;
pub mod byte_runs;
mod clusters;
mod core;
mod counters;
mod error;
pub mod extract;
mod finding;
pub mod format;
mod image;
pub mod kernel_needs;
pub mod mount;
pub mod pieces;
pub mod queue;
pub mod read;
mod resolve;
pub mod rules;
pub mod runs;
mod search;
mod slot_cache;
mod source;
pub mod startup;
mod streams;
pub mod tar;
pub mod tree_stats;
pub mod usage;
pub mod verity;
pub mod walk;
pub mod work;

// Its types are media of images.
pub use pagefold_backing as backing;

pub use clusters::ReadStats;
pub use error::{Address, ImageError, Nid, Result, Space};
pub use finding::{Finding, Findings, with_causes};
pub use image::{
    DirEntry, Entries, Extents, Image, ImageStats, MAX_LINK_BYTES, Node, Options, ReadAhead, ShortDevice,
};
pub use resolve::{Located, MAX_LINKS};
pub use rules::Severity;
pub use search::find_image;
