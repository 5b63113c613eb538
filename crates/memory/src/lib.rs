//! Compressed memory: a range larger than the memory it uses.
//!
//! A [`Region`] is a range of a program's memory that is resident up to a limit. Cold pages of it are *folded*: moved out
//! in the background, compressed, and kept in a [`Store`](pagefold_store::Store), which may park them on a backing. A
//! page that is touched comes back before the access goes on. This is what the kernel's zswap promises, without a kernel
//! setting, for one range instead of the whole machine.
//!
//! | module | what |
//! |---|---|
//! | `page` | the states of a page and their transitions |
//! | `table` | the pages of a region |
//! | `memory_left` | the limit, and who waits for memory |
//! | `staging` | frames between the range and the store |
//! | `pager` | how a page that was touched comes in |
//! | `ahead` | which neighbours come with it |
//! | `fault` | who serves faults |
//! | `evict` | what is cold, and how it goes out |
//! | `limit` | how full the pool may be |
//! | `meter` | how long storing and loading one page takes |
//! | `region` | the set-up, and what the owner of a region can do |
//! | `store_view`, `writeback_view` | what the owner can do with the store of folded pages, and with its backing |
//!
//! It is cut so that what runs in the thread that touched a page (`pager`, and what it stands on) is apart from what runs
//! in the background (`evict`): the former may interrupt a program anywhere and so takes no locks and no memory. They
//! meet in the page's word, the one place that says to whom a page belongs at a moment.
//!
//! It knows no codec, and does not run other people's programs. The system calls that take `unsafe` are those of `sys`; it
//! makes safe ones itself, to wait for faults and to stop waiting.
//!
//! ```
//! use pagefold_memory::{Region, RegionConfig};
//!
//! // 64 MiB of memory, of which 8 MiB are resident.
//! # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
//! let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
//! for (i, page) in region.bytes_mut().chunks_mut(4096).enumerate() {
//!     page[..8].copy_from_slice(&i.to_le_bytes());
//! }
//! assert!(region.stats().memory.resident_max <= 8 << 20);
//! assert_eq!(&region.bytes()[4096 * 1000..][..8], &1000_u64.to_le_bytes());
//! # Ok::<(), pagefold_memory::RegionError>(())
//! ```

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod sync;

pub mod page;

// What loom checks of waiting for memory stands alone.
#[cfg(loom)]
pub mod memory_left;

#[cfg(not(loom))]
mod ahead;
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
mod limit;
#[cfg(not(loom))]
mod memory_left;
#[cfg(not(loom))]
mod meter;
#[cfg(not(loom))]
mod pager;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod staging;
#[cfg(not(loom))]
mod store_view;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod writeback_view;

#[cfg(not(loom))]
pub use config::{Eviction, RegionConfig, Service};
#[cfg(not(loom))]
pub use counters::{EvictionStats, FaultStats, MemoryStats, PageTimes, PoolStats, RegionStats};
#[cfg(not(loom))]
pub use error::{RangeError, RegionError};
#[cfg(not(loom))]
pub use region::{Pin, Region};
#[cfg(not(loom))]
pub use store_view::StoreView;
#[cfg(not(loom))]
pub use writeback_view::WritebackView;
