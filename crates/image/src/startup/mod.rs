//! Start-up lists: what a program reads of an image when it starts, in the order of first use.
//!
//! | module | contents |
//! |---|---|
//! | `list` | the list and its text, which `docs/formats/list.md` documents; the one definition of escaping |
//! | `record` | a [`Recorder`] notes what a [mount](crate::mount) reads, and makes a list |
//! | `plan` | the stored bytes of an entry, and pieces of neighbouring ranges |
//! | `prefetch` | fetches what is in a list before readers want it |
//!
//! Entries have paths, offsets and lengths in files, and no addresses: so a list fits an image that was built again, with
//! other contents of other files, another compression or another order.
//!
//! Nothing here decodes: a prefetch brings stored bytes to where the source of the image keeps them, the page cache of a
//! file or the memory of a remote source. Lists are untrusted: their length is limited, and entries that do not fit the
//! image are counted and skipped.

pub mod list;
mod plan;
mod prefetch;
mod record;

pub use list::{StartEntry, StartList};
pub use prefetch::{PrefetchCounters, PrefetchStats, prefetch};
pub use record::{Record, Recorder};
