//! What a store is made with.

use pagefold_codec::CodecSpec;
use pagefold_page::PageCount;
use pagefold_pool::FRAME_LEN;

/// The most memory that a store's objects may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemLimit {
    /// Half of the machine's memory.
    Half,
    /// None: only the system's memory ends it.
    Off,
    /// This many bytes.
    Bytes(u64),
}

impl MemLimit {
    /// The least limit with which a store takes any page: one that does not compress may need two frames.
    pub const LEAST_BYTES: u64 = 2 * FRAME_LEN as u64;

    /// The limit in bytes; `u64::MAX` where there is none.
    pub fn bytes(self) -> u64 {
        match self {
            MemLimit::Half => match pagefold_sys::mem::total_bytes() {
                0 => u64::MAX,
                total => total / 2,
            },
            MemLimit::Off => u64::MAX,
            MemLimit::Bytes(bytes) => bytes,
        }
    }
}

/// What a store is made with.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The size in bytes; a last part of a page is allowed.
    pub len_bytes: u64,
    /// The codec and its parameters.
    pub codec: CodecSpec,
    /// The most memory that objects may take. [`MemLimit::Half`] unless set.
    pub mem_limit: MemLimit,
    /// Whether pages that repeat one word are kept as that word.
    pub same_filled: bool,
    /// Bytes of touched memory kept ready, refilled in the background; writes then take memory from
    /// nowhere else. For devices that are swapped to.
    pub reserve_bytes: Option<u64>,
    /// Streams to have; the machine's CPUs unless set.
    pub cpu_count: usize,
}

impl StoreConfig {
    /// A store of this many bytes with lz4 and the default limit.
    pub fn new(len_bytes: u64) -> Self {
        StoreConfig {
            len_bytes,
            codec: CodecSpec::named("lz4"),
            mem_limit: MemLimit::Half,
            same_filled: true,
            reserve_bytes: None,
            cpu_count: pagefold_sys::cpu::count(),
        }
    }

    pub(crate) fn page_count(&self) -> PageCount {
        PageCount::covering(self.len_bytes)
    }

    /// Address space to reserve for frames, bytes: what every page stored raw would take, and room for
    /// slots and partly filled frames; but no more than the machine could ever back.
    pub(crate) fn arena_len_bytes(&self) -> u64 {
        let objects = self.page_count().0.saturating_mul(4096 + 8 + 16);
        let slack = 16 << 20;
        let machine = pagefold_sys::mem::total_bytes().max(1 << 30).saturating_mul(8);
        objects.saturating_add(slack).min(machine)
    }
}
