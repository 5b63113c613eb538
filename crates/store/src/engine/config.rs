//! The configuration of a store.

use crate::pages::FURTHER_CODECS_MAX;
use pagefold_codec::CodecSpec;
use pagefold_page::PageCount;
use pagefold_pool::FRAME_LEN;

/// The most memory that a store's objects may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemLimit {
    /// Half of the machine's memory.
    Half,
    /// No limit: only the system's memory bounds the store.
    Off,
    /// This many bytes.
    Bytes(u64),
}

impl MemLimit {
    /// The lowest limit at which a store can store any page: an incompressible page may need two frames.
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

/// The configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The size in bytes; need not be a multiple of the page size.
    pub len_bytes: u64,
    /// The primary codec, which compresses pages when they are written, and its parameters.
    pub codec: CodecSpec,
    /// The codecs that recompression uses, by priority: that of priority 1 first.
    pub further_codecs: [Option<CodecSpec>; FURTHER_CODECS_MAX],
    /// The most memory that objects may take. [`MemLimit::Half`] unless set.
    pub mem_limit: MemLimit,
    /// Whether pages that repeat one word are kept as that word.
    pub same_filled: bool,
    /// Whether the time of each page's last access is kept, which idle marks by age and recompression by age need. A
    /// store with a backing keeps it in any case.
    pub access_times: bool,
    /// Size of the reserve, bytes: touched and locked frames that a background thread refills. Writes then take
    /// frames only from the reserve, which a device used as swap needs. `None`: no reserve.
    pub reserve_bytes: Option<u64>,
    /// Number of compression streams; the number of the machine's CPUs unless set.
    pub cpu_count: usize,
}

impl StoreConfig {
    /// A store of this many bytes with lz4 and the default limit.
    pub fn new(len_bytes: u64) -> Self {
        StoreConfig {
            len_bytes,
            codec: CodecSpec::named("lz4"),
            further_codecs: [const { None }; FURTHER_CODECS_MAX],
            mem_limit: MemLimit::Half,
            same_filled: true,
            access_times: false,
            reserve_bytes: None,
            cpu_count: pagefold_sys::cpu::count(),
        }
    }

    pub(crate) fn page_count(&self) -> PageCount {
        PageCount::covering(self.len_bytes)
    }

    /// Address space to reserve for frames, bytes: enough for every page stored raw plus slots and partly filled
    /// frames, but at most eight times the machine's memory.
    pub(crate) fn arena_len_bytes(&self) -> u64 {
        let objects = self.page_count().0.saturating_mul(4096 + 8 + 16);
        let slack = 16 << 20;
        let machine = pagefold_sys::mem::total_bytes().max(1 << 30).saturating_mul(8);
        objects.saturating_add(slack).min(machine)
    }
}
