//! Everything around the slots: table, page paths, limits, counters.

mod clock;
mod config;
mod counters;
mod error;
mod fold;
mod io;
mod load;
mod prefetch;
mod stats;
mod store;
mod table;

pub(crate) use clock::Clock;
pub use config::{MemLimit, StoreConfig};
pub use error::StoreError;
pub use load::{LoadError, Loaded, Loader};
pub use stats::{IoStat, MemoryStats, MmStat, Stats};
pub use store::Store;

pub use pagefold_codec::{CodecError, CodecSpec, StreamWaits, fill};
pub use pagefold_pool::{ClassStats, PageSource, SourceError};
