//! Gives a program memory that is larger than the RAM it takes: the pages that are not in use are kept compressed.
//!
//! A [`Region`] is a range of ordinary memory with a limit on its resident pages. The program reads and writes it as
//! any other memory. Threads in the background compress cold pages beyond the limit; an access to such a page waits
//! until the page is back.
//!
//! ```
//! use pagefold_memory::{Region, RegionConfig};
//!
//! // 64 MiB of memory, of which at most 8 MiB are resident.
//! # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
//! let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
//! for (i, page) in region.bytes_mut().chunks_mut(4096).enumerate() {
//!     page[..8].copy_from_slice(&i.to_le_bytes());
//! }
//! assert_eq!(&region.bytes()[4096 * 1000..][..8], &1000_u64.to_le_bytes());
//!
//! let stats = region.stats();
//! assert!(stats.memory.resident_max <= 8 << 20);
//! println!("{} bytes compressed, ratio {:.1}", stats.folded_bytes, stats.ratio());
//! # Ok::<(), pagefold_memory::RegionError>(())
//! ```
//!
//! **System calls** need a pin. With the default [`Service`], a system call on memory of a region fails with EFAULT if
//! a page of its buffer is not resident, or if it writes to a page that was only read since it was loaded.
//! [`Region::read_from`] and [`Region::write_to`] exchange data of any length with files and sockets. For other calls,
//! [`Region::pin_mut`] makes a part resident and lends its bytes until the pin is dropped:
//!
//! ```
//! # use pagefold_memory::{Region, RegionConfig};
//! use std::fs::File;
//! use std::os::unix::fs::FileExt;
//!
//! # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
//! let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
//! let file = File::open("/proc/self/exe")?;
//! let len_bytes = region.read_from(&file, ..)?;
//! assert!(len_bytes > 4096);
//! assert_eq!(&region.bytes()[1..4], b"ELF");
//!
//! // A pin may cover at most half of the limit.
//! file.read_exact_at(&mut region.pin_mut(..4096)?, 0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Threads** share a region as they share a slice. The thread that touches a page brings it back itself, so threads
//! do not wait for one another:
//!
//! ```
//! # use pagefold_memory::{Region, RegionConfig};
//! # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
//! let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
//! std::thread::scope(|scope| {
//!     for part in region.bytes_mut().chunks_mut(16 << 20) {
//!         scope.spawn(|| part.fill(1));
//!     }
//! });
//! assert!(region.bytes().iter().step_by(4096).all(|byte| *byte == 1));
//! # Ok::<(), pagefold_memory::RegionError>(())
//! ```
//!
//! [`Region::parts`] lends the same slice together with the calls for its parts, so that threads that have parts of it
//! can pin and load them at the same time.
//!
//! **A file** can take compressed pages when the memory for these is used up:
//!
//! ```
//! # use pagefold_memory::{Region, RegionConfig};
//! use pagefold_memory::store::backing::{FileBacking, FileOptions};
//! use pagefold_memory::store::writeback::{LayoutKind, WritebackConfig};
//! use std::sync::Arc;
//!
//! # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
//! # let path = std::env::temp_dir().join(format!("pagefold-doc-{}", std::process::id()));
//! let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
//! # std::fs::remove_file(&path)?;
//! file.set_len(64 << 20)?;
//! let backing = Arc::new(FileBacking::new(file, FileOptions::default())?);
//! let region = Region::new(RegionConfig {
//!     max_pool_bytes: Some(16 << 20),
//!     backing: Some(WritebackConfig { backing, layout: LayoutKind::Log }),
//!     ..RegionConfig::new(64 << 20, 8 << 20)
//! })?;
//! # assert!(region.store().writeback().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When to use it
//!
//! It does for one part of one program what the kernel's zswap does for a whole machine, without root and without
//! system settings: for a job whose data is larger than the memory that it may use. Sequential and strided access is
//! fast, because neighbours are brought in together; random access costs a page fault for each page that is not
//! resident.
//!
//! # Limits
//!
//! - Linux on x86-64 with userfaultfd (which Docker's default seccomp profile forbids).
//! - `madvise`, `mprotect`, `mremap` and `mlock` must not be used on a region, nor its memory as a stack. A forked
//!   child does not have the region: an access there ends the child, with a line on standard error.
//! - With [`Service::FaultingThread`], system calls on memory of a region need pins, and futex(2) is one of them: mutexes,
//!   condition variables and semaphores that lie in a region end the program, or spin, when their page is not resident.
//!   No thread that uses a region may block SIGBUS, and each needs 32 KiB of stack: [`Region::new`] and pins check the
//!   calling thread.
//! - The limit counts resident pages, the staging area and tables, not the compressed pages. These have a separate
//!   limit (`max_pool_bytes` of [`RegionConfig`]). A page that the store refuses stays resident, beyond the limit if
//!   necessary.
//! - A fault that finds no memory left waits until evictors free some. If five attempts in a row free none, the waiting
//!   threads may exceed the limit by a page each, or by a bounded number if the store refuses pages.
//! - If a page cannot be brought back, because a backing fails, the program ends with SIGBUS.
//!
//! # How it works
//!
//! | module | what is in it |
//! |---|---|
//! | `page` | the state word of a page and its transitions |
//! | `table` | the words and hashes of all pages of a region |
//! | `region_budget` | the limit on resident memory, and threads that wait for memory |
//! | `budget` | a limit that several regions share, or that follows the pressure on memory |
//! | `source` | the file that a region begins with |
//! | `staging` | frames between the range and the store |
//! | `pager` | how a page becomes resident after a fault |
//! | `readahead` | the neighbouring pages that are brought in with it |
//! | `advice` | the advice of the program on its future accesses |
//! | `fault` | the threads that serve faults |
//! | `evict` | how cold pages are found and leave the range |
//! | `limit` | the limit on the pool |
//! | `hint` | which limit of the process to raise after a failed creation |
//! | `region` | set-up, and the owner's calls |
//! | `owned_pin` | pins that borrow nothing, for callers that use addresses |
//! | `parts` | pins, and calls on parts that several threads have |
//! | `stats` | the statistics |
//! | `store_view`, `writeback_view` | the owner's access to the store of folded pages, and to its backing |
//!
//! Evictors *fold* a page: they move it out of the range, compress it, and keep it in a
//! [`Store`](pagefold_store::Store).
//!
//! *Paths.* A fault: `fault` -> `pager::serve` -> `pager::page_in` (or the staging area) -> `pager::install`. An
//! eviction: `evict` -> `evict::sweep` -> `evict::page_out` -> the queue of `staging` -> `evict::fold` ->
//! `evict::release`.
//!
//! *Threads.* Faults are served by the thread that made the access, in a signal handler, or by the region's
//! `pagefold-fault` threads. `pagefold-fold` threads evict. With a backing, the store's `pagefold-wb` thread writes
//! back by itself, and a `pagefold-pass` thread runs each pass that the owner starts.
//!
//! *Locks.* The page's word is the lock of a page: a thread that changes it to *taken*, *returning* or *loading* owns
//! the page, and other threads wait on the word (futex). A signal handler may interrupt a program anywhere, so the
//! fault path takes no lock but that of the page's slot in the store (it only tries that of `readahead::gathers`), and
//! allocates nothing. Evictors lock a chunk of the table (they only try), then take page words, then call the store, whose
//! locks are ordered inside it. A thread that registers, drops or pins what the kernel fills by itself holds the lock of
//! `pager::unregistered` and takes page words. The others (the queue of staging, scratch memory of copies, the split of
//! a shared limit, the report of a pass) are held for one operation.
//!
//! The crate contains no codec. Its system calls that need `unsafe` are functions of `sys`; it makes safe ones
//! (`poll`, `eventfd`) itself.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod sync;

// The model check in `tests/loom` uses the words of pages and the budget by themselves.
#[cfg(loom)]
pub mod page;
#[cfg(not(loom))]
mod page;

#[cfg(loom)]
pub mod region_budget;

#[cfg(not(loom))]
mod advice;
#[cfg(not(loom))]
mod budget;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod evict;
#[cfg(not(loom))]
mod fault;
#[cfg(not(loom))]
mod hint;
#[cfg(not(loom))]
mod limit;
#[cfg(not(loom))]
mod owned_pin;
#[cfg(not(loom))]
mod pager;
#[cfg(not(loom))]
mod parts;
#[cfg(not(loom))]
mod readahead;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod region_budget;
#[cfg(not(loom))]
mod source;
#[cfg(not(loom))]
mod staging;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod store_view;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod writeback_view;

// The crates whose types the settings and statistics have.
#[cfg(not(loom))]
pub use pagefold_codec::CodecSpec;
#[cfg(not(loom))]
pub use pagefold_store as store;

#[cfg(not(loom))]
pub use advice::Advice;
#[cfg(not(loom))]
pub use budget::{PressurePolicy, ResidentBudget};
#[cfg(not(loom))]
pub use config::{Eviction, RegionConfig, Service};
#[cfg(not(loom))]
pub use error::{RangeError, RegionError};
#[cfg(not(loom))]
pub use owned_pin::OwnedPin;
#[cfg(not(loom))]
pub use parts::{Parts, PinnedSlice, PinnedSliceMut};
#[cfg(not(loom))]
pub use region::Region;
#[cfg(not(loom))]
pub use stats::{EvictionStats, FaultStats, MemoryStats, PoolStats, Pressure, RegionStats};
#[cfg(not(loom))]
pub use store_view::StoreView;
#[cfg(not(loom))]
pub use writeback_view::WritebackView;
