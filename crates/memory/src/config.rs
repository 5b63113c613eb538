//! What a region is made with.

use pagefold_codec::CodecSpec;
use pagefold_page::PAGE_SIZE;
use pagefold_store::parking::ParkConfig;

/// Who serves a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Service {
    /// The thread that touched the page, in a signal handler. The fastest. A system call that is given memory
    /// of the region fails with EFAULT if a page of it is not resident: pin what system calls are given, see
    /// [`Region::pin`](crate::Region::pin). Needs no privilege.
    #[default]
    FaultingThread,
    /// Threads of the region. Serves any fault, system calls' too; slower, more so if the thread that serves runs
    /// on another CPU. Needs the right to handle faults of the kernel.
    HandlerThreads,
}

/// How a page is taken from the program without a moment in which a write could be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// [`Eviction::Mixed`] where the kernel can move pages (Linux 6.8), else [`Eviction::Protect`].
    #[default]
    Auto,
    /// [`Eviction::Move`] for pages that lie behind each other, many at once, and [`Eviction::Protect`] for scattered
    /// ones: each move interrupts all CPUs that run the program, protecting and dropping do so once for many pages.
    Mixed,
    /// Its memory is moved to the staging area, in one step. Which pages were written is told by asynchronous
    /// write-protection, where the kernel has it (Linux 6.7): writes count as touches, at little cost.
    Move,
    /// It is write-protected, copied to the staging area, and dropped.
    Protect,
}

/// What a region is made with.
pub struct RegionConfig {
    /// The size of the range in bytes; rounded up to whole pages.
    pub len_bytes: u64,
    /// The most memory that the region may take beside that of folded pages, bytes: resident pages, the staging area,
    /// copies of resident pages that the store keeps, tables. At least [`RegionConfig::LIMIT_MIN_BYTES`]. It is
    /// exceeded only if no page can be folded: all are pinned, or the pool refuses them.
    pub limit_bytes: u64,
    /// Who serves faults.
    pub service: Service,
    /// How pages are taken from the program.
    pub eviction: Eviction,
    /// The codec of folded pages.
    pub codec: CodecSpec,
    /// Whether pages that repeat one word are kept as that word.
    pub same_filled: bool,
    /// The most memory that folded pages may take, percent of the machine's (zswap's name and default).
    pub max_pool_percent: u8,
    /// After that was reached, pages are refused until so many percent of it are in use (zswap's name and default).
    pub accept_threshold_percent: u8,
    /// A limit in bytes that replaces the percentage.
    pub max_pool_bytes: Option<u64>,
    /// Where folded pages are parked when the pool fills, if anywhere.
    pub backing: Option<ParkConfig>,
    /// Threads that move pages out and fold them; one per CPU unless set, four at most.
    pub fold_threads: usize,
    /// Threads that serve faults, with [`Service::HandlerThreads`].
    pub handler_threads: usize,
    /// Whether neighbours of a touched page are brought in with it when access is sequential or strided.
    pub neighbours: bool,
    /// Whether the time of storing and loading each page is measured, which itself takes time.
    pub measure_pages: bool,
}

impl RegionConfig {
    /// The least limit, bytes: 64 pages.
    pub const LIMIT_MIN_BYTES: u64 = 64 * PAGE_SIZE as u64;

    /// A range of `len_bytes` of which at most `limit_bytes` are resident, with lz4 and defaults for the rest.
    pub fn new(len_bytes: u64, limit_bytes: u64) -> Self {
        let cpus = pagefold_sys::cpu::count();
        RegionConfig {
            len_bytes,
            limit_bytes,
            service: Service::default(),
            eviction: Eviction::default(),
            codec: CodecSpec::named("lz4"),
            same_filled: true,
            max_pool_percent: 20,
            accept_threshold_percent: 90,
            max_pool_bytes: None,
            backing: None,
            fold_threads: cpus.min(4),
            handler_threads: cpus.clamp(2, 8),
            neighbours: true,
            measure_pages: false,
        }
    }

    pub(crate) fn max_pool_bytes(&self) -> u64 {
        let share = pagefold_sys::mem::total_bytes() / 100 * u64::from(self.max_pool_percent.min(100));
        self.max_pool_bytes.unwrap_or(share)
    }
}
