//! Pagefold's engine as a [`Subject`]: called directly in the measuring thread, without an export.

use super::subject::{Memory, Subject};
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};

/// The codec of all measurements, also of the kernel's zram.
pub const CODEC: &str = "lz4";

/// Makes an empty store of `len_bytes` bytes without a memory limit.
pub fn new_store(len_bytes: u64) -> anyhow::Result<Store> {
    let mut config = StoreConfig::new(len_bytes);
    config.codec = CodecSpec::named(CODEC);
    config.mem_limit = MemLimit::Off;
    Ok(Store::new(config)?)
}

/// A store being measured.
pub struct Engine(Store);

impl Engine {
    /// Makes an empty store of `len_bytes` bytes.
    pub fn new(len_bytes: u64) -> anyhow::Result<Self> {
        Ok(Engine(new_store(len_bytes)?))
    }
}

/// The memory that a store uses now.
pub fn memory(store: &Store) -> Memory {
    let stats = store.stats();
    Memory {
        original: stats.mm.orig_data_size,
        stored: stats.mm.compr_data_size,
        used: stats.mm.mem_used_total,
        with_slots: stats.memory.total(),
    }
}

impl Subject for Engine {
    fn name(&self) -> &'static str {
        "pagefold"
    }

    fn store(&mut self, at: u64, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.write(at, bytes)?)
    }

    fn load(&mut self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.0.read(at, bytes)?)
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        Ok(memory(&self.0))
    }
}
