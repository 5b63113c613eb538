//! The errors of a region.

use crate::region_budget::LIMIT_MIN_BYTES;
use pagefold_page::size::Human;
use pagefold_store::StoreError;
use pagefold_sys::SysError;
use pagefold_sys::sigbus::thread::UnfitThread;
use pagefold_sys::uffd::{Feature, OpenError};
use std::io;

/// Why a region was not created or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The machine's page size is not 4096 bytes.
    #[error("this machine's pages have {bytes} bytes: compressed memory works with pages of 4096 bytes only")]
    PageSize {
        /// Bytes of a page.
        bytes: usize,
    },
    /// The range is empty or too large.
    #[error("a region cannot have {}: at least 1 B and at most 16 TiB", Human(*.0))]
    BadLength(u64),
    /// The range cannot grow so far.
    #[error(
        "this region cannot have {}: max_len_bytes of its settings is {}",
        Human(*len_bytes),
        Human(*max_len_bytes)
    )]
    BeyondMax {
        /// The size in the call.
        len_bytes: u64,
        /// The largest size.
        max_len_bytes: u64,
    },
    /// The file of a region is not a regular file.
    #[error("a region can begin with a regular file only")]
    NotAFile,
    /// The limit is too small.
    #[error("a limit of {} is too small: at least {}", Human(*limit_bytes), Human(*min_bytes))]
    LimitTooSmall {
        /// The limit in the call.
        limit_bytes: u64,
        /// The least limit.
        min_bytes: u64,
    },
    /// The shared budget has no room for another region.
    #[error(
        "a budget of {} has room for {regions} regions only: each needs {}",
        Human(*limit_bytes),
        Human(LIMIT_MIN_BYTES)
    )]
    BudgetFull {
        /// The limit of the budget.
        limit_bytes: u64,
        /// Regions that share it.
        regions: usize,
    },
    /// A percentage is out of range.
    #[error("{name} must be 1 to 100, not {percent}")]
    BadPercent {
        /// The setting.
        name: &'static str,
        /// The percentage in the call.
        percent: u8,
    },
    /// A part of the range could not be dropped.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The kernel refuses userfaultfd.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// The kernel lacks the feature that the configured eviction method needs.
    #[error("this kernel's userfaultfd lacks {0:?}: choose Eviction::Auto")]
    NoFeature(Feature),
    /// The calling thread could not serve faults on the region.
    #[error(transparent)]
    UnfitThread(#[from] UnfitThread),
    /// The process has as many regions as the table of the signal handler can hold.
    #[error("a process can have {0} regions at once")]
    TooMany(usize),
    /// The store could not be set up.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SysError),
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
}

/// Why a range of a region was not pinned or dropped. After such an error, none of its pages is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range does not lie in the region.
    #[error("bytes {start}..{end} are no part of the region of {region_len_bytes} bytes")]
    OutOfRange {
        /// First byte of the range.
        start: usize,
        /// First byte behind the range.
        end: usize,
        /// Bytes of the region.
        region_len_bytes: usize,
    },
    /// The slice is memory of something else.
    #[error("the {len_bytes} bytes do not lie in this region")]
    NotInRegion {
        /// Bytes of the slice.
        len_bytes: usize,
    },
    /// The range is larger than the part that may be pinned.
    #[error(
        "{pages} pages cannot be pinned at once: at most {limit_pages}, half of the limit on resident memory"
    )]
    OverLimit {
        /// Pages of the range.
        pages: u64,
        /// Pages that may be pinned: half of the limit.
        limit_pages: u64,
    },
    /// A page has the largest number of pins already.
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
    /// The kernel does not release the memory of a page, which the program has locked or sealed.
    #[error("page {page} cannot be dropped: the kernel refuses to release its memory")]
    NotReleased {
        /// The page.
        page: u64,
    },
    /// The file that a region began with was changed.
    #[error("page {page} cannot be read: the file of the region was changed or is shorter")]
    FileChanged {
        /// The page.
        page: u64,
    },
    /// There is no memory to copy with.
    #[error("there is no memory for copying a part of the region")]
    NoWorkingMemory,
    /// The calling thread blocks SIGBUS, so its accesses to pages that are not pinned end the program.
    #[error("{}", UnfitThread::Blocked)]
    SigbusBlocked,
    /// A page's contents are lost or cannot be read back.
    #[error("page {page} cannot be brought back")]
    Lost {
        /// The page.
        page: u64,
    },
}

impl From<RangeError> for io::Error {
    fn from(error: RangeError) -> Self {
        let kind = match error {
            RangeError::OutOfRange { .. } | RangeError::NotInRegion { .. } | RangeError::OverLimit { .. } => {
                io::ErrorKind::InvalidInput
            }
            RangeError::TooManyPins { .. } | RangeError::Pinned { .. } | RangeError::NotReleased { .. } => {
                io::ErrorKind::ResourceBusy
            }
            RangeError::NoWorkingMemory => io::ErrorKind::OutOfMemory,
            RangeError::SigbusBlocked => io::ErrorKind::Unsupported,
            RangeError::Lost { .. } | RangeError::FileChanged { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
