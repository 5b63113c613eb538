//! The stores that are measured: pagefold's, and the interface that it has in common with the kernel's zram.

use crate::report::Report;
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};

/// The codec of all measurements, also of the kernel's zram.
pub const CODEC: &str = "lz4";

/// Memory that a store uses for its pages.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes of the pages before compression.
    pub original: u64,
    /// Memory used for the compressed objects as zram's `mem_used_total` defines it: without slots.
    pub used: u64,
    /// `used` and everything else that grows with the number of pages: slots, lists, free frames kept ready.
    /// The kernel's slots take 16 bytes for each page of the device.
    pub with_slots: u64,
}

/// A store of pages to measure: pagefold's or the kernel's. It does all work in the calling thread, so that on an idle
/// machine its CPU time equals the elapsed time; on a busy machine the CPU time excludes other processes.
pub trait Subject {
    /// Stores bytes at a byte offset, both multiples of a page.
    fn store(&self, at: u64, bytes: &[u8]) -> anyhow::Result<()>;

    /// Loads bytes from a byte offset. `bytes` is aligned to a page.
    fn load(&self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()>;

    /// The memory used now.
    fn memory(&self) -> anyhow::Result<Memory>;
}

impl Subject for Store {
    fn store(&self, at: u64, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.write(at, bytes)?)
    }

    fn load(&self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.read(at, bytes)?)
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        let stats = self.stats();
        let with_slots = stats.memory.total();
        Ok(Memory { original: stats.mm.orig_data_size, used: stats.mm.mem_used_total, with_slots })
    }
}

/// Makes an empty store of `len_bytes` bytes without a memory limit.
pub fn new_store(len_bytes: u64) -> anyhow::Result<Store> {
    store_with([None, None, None], len_bytes)
}

/// The same, with further codecs.
pub fn store_with(further_codecs: [Option<CodecSpec>; 3], len_bytes: u64) -> anyhow::Result<Store> {
    Ok(Store::new(StoreConfig { further_codecs, ..config(len_bytes) })?)
}

/// The configuration of a store of `len_bytes` bytes without a memory limit.
pub fn config(len_bytes: u64) -> StoreConfig {
    StoreConfig { codec: CodecSpec::named(CODEC), mem_limit: MemLimit::Off, ..StoreConfig::new(len_bytes) }
}

/// Rounds that do not count, and that do. The first stores every page once and so touches all memory; later ones overwrite.
pub fn rounds(report: &Report) -> [usize; 2] {
    report.pick([2, 9], [1, 1])
}
