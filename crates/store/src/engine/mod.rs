//! The public [`Store`]: reads, writes and discards of byte ranges, settings, statistics, passes on request, and the
//! threads of automatic writeback and of automatic recompression.
//!
//! | module | contains |
//! |---|---|
//! | `store`, `config`, `stats` | the parts of a store, its configuration, its counters |
//! | `io` | reads, writes and discards of any byte range, cut into pages |
//! | `fold` | writing one page: compression and publication in the slot |
//! | `overwrite` | writing one page when no frame can be taken, over its old object as a rule |
//! | `read` | reading one page, from memory or from the backing |
//! | `load`, `prefetch` | reading one page from a signal handler, and prefetch hints for it |
//! | `slot_state` | the state of each slot, as zram's `block_state` shows it |
//! | `passes` | writeback and recompression on request |
//! | `save`, `capture` | the contents at one moment, for a save: the save's side and that of writers; `restore` puts them back |
//! | `fetch` | a restore that goes on while the store is used: pages that are still in the saved disk |
//! | `changes` | the pages that have changed since the last save, for an incremental one |
//! | `kept` | a store in memory that outlives its process, and its recovery |
//! | `thread`, `recompress` | the threads of automatic writeback and of automatic recompression |
//!
//! A write runs `io` -> `fold` -> `pages`; a read runs `io` -> `read` -> `pages` or `writeback/fetch`. Everything but
//! `thread` and `recompress` runs in the thread of the caller. These paths lock one slot at a time, and never across
//! compression, decompression or I/O. At the memory limit `fold` waits in the throttle of `policy`, with no lock held.
//!
//! This is the top folder of the crate: it uses all other folders, and none uses it.

mod capture;
mod changes;
mod config;
mod fetch;
mod fold;
mod io;
mod kept;
mod load;
mod overwrite;
mod passes;
mod prefetch;
mod read;
mod recompress;
mod restore;
mod save;
mod slot_state;
mod stats;
mod store;
mod thread;

pub use crate::error::{SaveError, StoreError};
pub use changes::SaveDigest;
pub use config::{MemLimit, StoreConfig};
pub use fetch::{FetchedContents, PageSource, TakeFetched};
pub use kept::Recovered;
pub use load::{LoadError, Loaded, Loader};
pub use recompress::{AutoRecompress, RecompressRule, RecompressThread};
pub use save::{Save, SaveWatch, SavedContents, TakePage};
pub use slot_state::SlotState;
pub use stats::{IoStat, MemoryStats, MmStat, RecompressStats, Stats};
pub use store::Store;
pub use thread::WritebackThread;

pub use crate::pages::FURTHER_CODECS_MAX;
pub use crate::slot::AccessTime;
pub use pagefold_codec::{CodecError, CodecSpec, StreamWaits, fill};
pub use pagefold_pool::{ClassStats, SourceError};
