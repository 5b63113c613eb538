//! The settings of a region.

use crate::budget::{ResidentBudget, check_limit};
use crate::error::RegionError;
use crate::region_budget::LIMIT_MIN_BYTES;
use pagefold_codec::CodecSpec;
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::WritebackConfig;

/// The largest range, bytes.
const LEN_MAX_BYTES: u64 = 16 << 40;

/// The thread that serves a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Service {
    /// The thread that touched the page, in a signal handler. This is the fastest way and needs no privilege. A system
    /// call whose buffer has a page that is not resident fails with EFAULT: pin the buffer, see
    /// [`Region::pin`](crate::Region::pin). All threads that use the region must leave SIGBUS unblocked and have 32 KiB
    /// of stack left.
    #[default]
    FaultingThread,
    /// Threads of the region. They serve every fault, those of system calls too. This is slower, more so if the
    /// serving thread runs on another CPU, and needs the right to handle kernel faults.
    HandlerThreads,
}

/// How a page leaves the range without a moment in which a write could be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// [`Eviction::Mixed`] where the kernel can move pages (Linux 6.8), else [`Eviction::Protect`].
    #[default]
    Auto,
    /// The kernel moves the page's memory to the staging area, in one step. Scattered pages that are loaded to be read
    /// are write-protected until the first write: while they are, they are dropped and not moved. If the owner promises
    /// that no system call uses memory that is not pinned ([`RegionConfig::system_calls`]), scattered pages leave as with
    /// [`Eviction::Protect`]: each move interrupts all CPUs that run the program, while one protection and one drop serve
    /// many pages.
    Mixed,
    /// The page is write-protected, copied to the staging area, and dropped. The kernel does not say whether a system
    /// call is still going to write to the page, so memory that system calls use must be pinned, whatever the
    /// [`Service`]: see [`Region::needs_pins`](crate::Region::needs_pins).
    Protect,
}

/// The settings of a region.
pub struct RegionConfig {
    /// The size of the range in bytes, rounded up to whole pages.
    pub len_bytes: u64,
    /// The size up to which [`Region::resize`](crate::Region::resize) can change the range, in bytes; `None` for
    /// `len_bytes`, and not less than that. It takes address space, and no memory.
    pub max_len_bytes: Option<u64>,
    /// The most memory that the region may take besides that of folded pages, bytes: resident pages, the staging area,
    /// copies of resident pages that the store keeps, tables. At least [`RegionConfig::LIMIT_MIN_BYTES`]. The region
    /// exceeds it only if no page can be folded: all are pinned, or the pool refuses them.
    pub limit_bytes: u64,
    /// The limit that the region shares with others; `limit_bytes` is then the most of it that this region may have.
    pub budget: Option<ResidentBudget>,
    /// The thread that serves faults.
    pub service: Service,
    /// How pages leave the range.
    pub eviction: Eviction,
    /// The codec of folded pages.
    pub codec: CodecSpec,
    /// Whether pages that repeat one word are kept as that word.
    pub same_filled: bool,
    /// The most memory that folded pages may take, in percent of the machine's memory (zswap's name and default).
    pub max_pool_percent: u8,
    /// After the pool reached that limit, the pool refuses pages until its use falls to this percentage of it (zswap's
    /// name and default).
    pub accept_threshold_percent: u8,
    /// A limit in bytes that replaces the percentage.
    pub max_pool_bytes: Option<u64>,
    /// The backing to which folded pages are written back when the pool fills.
    pub backing: Option<WritebackConfig>,
    /// Number of threads that move pages out and fold them. The default is one per CPU, four at most.
    pub fold_threads: usize,
    /// Number of threads that serve faults with [`Service::HandlerThreads`]. The default is one per CPU, at least two and
    /// eight at most. If there is one for each CPU that the thread which makes the region may use, each of them stays on
    /// its CPU, and serves the faults there.
    pub handler_threads: usize,
    /// Whether these threads serve the faults of system calls too, which needs the right to handle kernel faults.
    /// Without it, a system call whose buffer has a page that is not resident fails with EFAULT.
    pub kernel_faults: bool,
    /// Whether system calls may use memory of the region that is not pinned. The default is yes. No is a promise of the
    /// owner, by which scattered pages can leave the range at less cost. If it is broken, a read that is done by a
    /// device (direct I/O, fixed buffers of io_uring) can return success and leave old bytes.
    pub system_calls: bool,
    /// Whether other pages are brought in with a touched page: its neighbours when accesses are sequential or strided, the
    /// pages of the next rows when accesses go over parts of rows, and those of the next elements when accesses take elements
    /// of several arrays by one list of indices.
    pub neighbours: bool,
    /// Whether the kernel may fill parts of the range by itself, as it does for ordinary memory, as long as what is
    /// resident is far below the limit. Such parts cost no faults of the region. The default is yes.
    pub register_late: bool,
    /// Whether it may use huge pages there. The default is yes.
    pub huge_pages: bool,
}

impl RegionConfig {
    /// The least limit, bytes: 64 pages.
    pub const LIMIT_MIN_BYTES: u64 = LIMIT_MIN_BYTES;

    /// A range of `len_bytes` of which at most `limit_bytes` are resident, with lz4 and defaults for the rest.
    pub fn new(len_bytes: u64, limit_bytes: u64) -> Self {
        let cpus = pagefold_sys::cpu::count();
        RegionConfig {
            len_bytes,
            limit_bytes,
            max_len_bytes: None,
            budget: None,
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
            kernel_faults: true,
            system_calls: true,
            neighbours: true,
            register_late: true,
            huge_pages: true,
        }
    }

    /// A range of `len_bytes` that shares the limit of a budget with other regions, with defaults for the rest. It may
    /// have all of the limit. If the limit follows the pressure, so does the pool: all memory of the machine may be
    /// that of folded pages.
    pub fn in_budget(len_bytes: u64, budget: &ResidentBudget) -> Self {
        let defaults = Self::new(len_bytes, u64::MAX);
        let max_pool_percent = if budget.follows_pressure() { 100 } else { defaults.max_pool_percent };
        RegionConfig { budget: Some(budget.clone()), max_pool_percent, ..defaults }
    }

    /// Lowers the part of a shared limit that the region may have to what it can use: its pages, the staging area and
    /// tables, and no more than the machine has. The working memory of the region grows with it.
    pub(crate) fn bound_limit(&mut self) {
        if self.budget.is_some() {
            let len_bytes = self.reserved_bytes();
            let usable = (len_bytes + len_bytes / 2).max(Self::LIMIT_MIN_BYTES);
            self.limit_bytes = self.limit_bytes.min(usable).min(pagefold_sys::mem::total_bytes());
        }
    }

    /// Returns the bytes of address space to reserve.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.max_len_bytes.unwrap_or(self.len_bytes).max(self.len_bytes)
    }

    pub(crate) fn max_pool_bytes(&self) -> u64 {
        let share = pagefold_sys::mem::total_bytes() / 100 * u64::from(self.max_pool_percent.min(100));
        self.max_pool_bytes.unwrap_or(share)
    }
}

/// Refuses machines whose page size is not 4096 bytes.
fn check_page_size(bytes: usize) -> Result<(), RegionError> {
    match bytes {
        PAGE_SIZE => Ok(()),
        _ => Err(RegionError::PageSize { bytes }),
    }
}

/// Refuses settings that no region can have.
pub(crate) fn check(config: &RegionConfig) -> Result<(), RegionError> {
    check_page_size(pagefold_sys::mem::page_size())?;
    check_len(config.len_bytes)?;
    check_len(config.reserved_bytes())?;
    if let Some(max_len_bytes) = config.max_len_bytes.filter(|max| *max < config.len_bytes) {
        return Err(RegionError::BeyondMax { len_bytes: config.len_bytes, max_len_bytes });
    }
    check_limit(config.limit_bytes)?;
    check_percent("max_pool_percent", config.max_pool_percent)?;
    check_percent("accept_threshold_percent", config.accept_threshold_percent)
}

pub(crate) fn check_len(len_bytes: u64) -> Result<(), RegionError> {
    match len_bytes {
        1..=LEN_MAX_BYTES => Ok(()),
        _ => Err(RegionError::BadLength(len_bytes)),
    }
}

pub(crate) fn check_percent(name: &'static str, percent: u8) -> Result<(), RegionError> {
    match percent {
        1..=100 => Ok(()),
        _ => Err(RegionError::BadPercent { name, percent }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    #[test]
    fn other_page_sizes_are_refused_by_name() {
        assert!(check_page_size(4096).is_ok());
        let error = check_page_size(16384).unwrap_err().to_string();
        assert!(error.contains("16384") && error.contains("4096"), "{error}");
    }

    #[test]
    fn bad_settings_are_refused_with_the_valid_values() {
        let error = |config| Region::new(config).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error(RegionConfig::new(0, 1 << 20)).contains("0 B"));
        assert!(error(RegionConfig::new(1 << 20, 4096)).contains("256 KiB"));
        let config = RegionConfig { max_len_bytes: Some(17 << 40), ..RegionConfig::new(1 << 20, 1 << 20) };
        assert!(error(config).contains("17 TiB"));
        let config = RegionConfig { max_len_bytes: Some(1 << 20), ..RegionConfig::new(2 << 20, 1 << 20) };
        let text = error(config);
        assert!(text.contains("2 MiB") && text.contains("max_len_bytes") && text.contains("1 MiB"), "{text}");
        let config = RegionConfig { accept_threshold_percent: 0, ..RegionConfig::new(1 << 20, 1 << 20) };
        assert!(error(config).contains("accept_threshold_percent"));
    }
}
