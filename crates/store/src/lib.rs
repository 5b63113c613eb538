//! The pagefold engine: compressed pages by index, in memory.
//!
//! A [`Store`] is a table of slots, a codec with its streams, and a pool. It decides
//! what each page becomes (empty, same-filled, folded or raw), keeps the limit and
//! the counters, and answers reads and writes of any byte range. It is cut so that
//! the states of a slot change in one module (`slot`), and nothing else knows how a
//! slot is locked.
//!
//! It knows no device, protocol or file, and starts no threads of its own but the
//! one that refills a reserve, when a reserve is asked for.
//!
//! ```
//! use pagefold_store::{Store, StoreConfig};
//!
//! let store = Store::new(StoreConfig::new(1 << 30))?; // 1 GiB, lz4; costs nothing yet
//! store.write(8192, "fold me ".repeat(512).as_bytes())?; // one page, same-filled
//! store.write(12288 + 100, b"some bytes inside a page")?;
//! let mut text = [0; 24];
//! store.read(12288 + 100, &mut text)?;
//! assert_eq!(&text, b"some bytes inside a page");
//! let stats = store.stats();
//! println!("{} bytes in {}", stats.mm.orig_data_size, stats.mm.mem_used_total);
//! assert_eq!(stats.mm.same_pages, 1);
//! # Ok::<(), pagefold_store::StoreError>(())
//! ```

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod slot;
mod sync;

// What loom checks of automatic parking stands alone.
#[cfg(loom)]
#[path = "parking/policy/throttle.rs"]
pub mod throttle;

#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
pub mod parking;
#[cfg(not(loom))]
pub use engine::*;

/// What of parking the model checker looks at: the segments' counts, by themselves.
#[cfg(loom)]
#[allow(dead_code, reason = "what is not modelled is not used")]
mod parking {
    pub(crate) mod log {
        pub(crate) mod format;
        pub(crate) mod segments;
    }
}
