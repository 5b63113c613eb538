//! What can go wrong with a region.

use pagefold_page::size::Human;
use pagefold_store::StoreError;
use pagefold_sys::SysError;
use pagefold_sys::uffd::{Feature, OpenError};

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The machine's pages are of another size.
    #[error("this machine's pages have {bytes} bytes: compressed memory works with pages of 4096 bytes only")]
    PageSize {
        /// Bytes of a page.
        bytes: usize,
    },
    /// The range is empty or too large.
    #[error("a region cannot have {}: at least 1 B and at most 16 TiB", Human(*.0))]
    BadLength(u64),
    /// The limit is too small to work with.
    #[error("a limit of {} is too small: at least {}", Human(*limit_bytes), Human(*min_bytes))]
    LimitTooSmall {
        /// What was asked for.
        limit_bytes: u64,
        /// The least.
        min_bytes: u64,
    },
    /// A share in percent is out of range.
    #[error("{name} must be 1 to 100, not {percent}")]
    BadPercent {
        /// The setting.
        name: &'static str,
        /// What was asked for.
        percent: u8,
    },
    /// Faults of the range cannot be had.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// The kernel lacks what was asked for by name.
    #[error("this kernel's userfaultfd lacks {0:?}: leave the eviction method to be chosen")]
    NoFeature(Feature),
    /// As many regions exist as can.
    #[error("a process can have {0} regions at once")]
    TooMany(usize),
    /// The store cannot be set up.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SysError),
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a range of a region was not pinned or dropped. Nothing of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It does not lie in the region.
    #[error("bytes {offset}+{len_bytes} lie outside the region of {region_len_bytes} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len_bytes: usize,
        /// Bytes the region has.
        region_len_bytes: usize,
    },
    /// It is more than may be resident.
    #[error("{pages} pages cannot be pinned within a limit of {limit_pages} pages")]
    OverLimit {
        /// Pages asked for.
        pages: u64,
        /// Pages that may be resident.
        limit_pages: u64,
    },
    /// A page has as many pins as it can.
    #[error("page {page} is pinned too often at once")]
    TooManyPins {
        /// The page.
        page: u64,
    },
    /// A page is pinned and cannot be dropped.
    #[error("page {page} is pinned and cannot be dropped")]
    Pinned {
        /// The page.
        page: u64,
    },
    /// A page's contents are lost or cannot be read back.
    #[error("page {page} cannot be brought back")]
    Lost {
        /// The page.
        page: u64,
    },
}
