//! What can go wrong with parking.

use pagefold_backing::BackingError;
use pagefold_page::size::Human;

/// Words that select no pages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// A word that means nothing.
    #[error(
        "'{word}' selects no pages; use type=idle, type=huge, type=huge_idle, type=incompressible, \
         page_index=N or page_indexes=A-B"
    )]
    Unknown {
        /// The word.
        word: String,
    },
    /// No word at all.
    #[error(
        "nothing is selected; use type=idle, type=huge, type=huge_idle, type=incompressible, page_index=N \
         or page_indexes=A-B"
    )]
    Nothing,
    /// A range that ends before it starts.
    #[error("pages {first}-{last} end before they start")]
    Backwards {
        /// Start.
        first: u64,
        /// End.
        last: u64,
    },
    /// A page outside the store.
    #[error("page {index} lies outside the store of {page_count} pages (0 to {})", page_count - 1)]
    OutOfRange {
        /// The page.
        index: u64,
        /// Pages in the store.
        page_count: u64,
    },
}

impl SelectionError {
    /// The error number zram answers with.
    pub fn errno(&self) -> i32 {
        match self {
            SelectionError::Unknown { .. } | SelectionError::Nothing => libc::EINVAL,
            SelectionError::Backwards { .. } | SelectionError::OutOfRange { .. } => libc::ERANGE,
        }
    }
}

/// Why a pass did not begin, or did not do all it was asked for. No page is ever lost by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParkError {
    /// The store has no backing.
    #[error("there is no backing to park pages on")]
    NoBacking,
    /// The selection names pages that are not there.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The write-back budget is used up.
    #[error("the write-back budget is used up; raise writeback_limit, or set writeback_limit_enable=0")]
    Budget,
    /// The backing has no room.
    #[error("the backing, or the file system under it, is full; the pages stay in memory")]
    Full,
    /// A request failed; the pages in it stay in memory.
    #[error("parking: {0}; the pages concerned stay in memory")]
    Io(BackingError),
    /// The pass was told to stop.
    #[error("stopped; pages that were not parked yet stay in memory")]
    Stopped,
}

impl ParkError {
    /// The error number zram answers with.
    pub fn errno(&self) -> i32 {
        match self {
            ParkError::NoBacking => libc::ENODEV,
            ParkError::Selection(e) => e.errno(),
            ParkError::Budget => libc::EIO,
            ParkError::Full => libc::ENOSPC,
            ParkError::Io(e) => e.errno(),
            ParkError::Stopped => libc::EINTR,
        }
    }
}

/// Why a backing cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// It is too small for its layout.
    #[error("the backing has {}; it needs at least {}", Human(*len_bytes), Human(*min_bytes))]
    TooSmall {
        /// What it has.
        len_bytes: u64,
        /// What it needs.
        min_bytes: u64,
    },
    /// It is larger than locations can name.
    #[error("the backing has {}; at most {} can be used in this layout", Human(*len_bytes), Human(*max_bytes))]
    TooLarge {
        /// What it has.
        len_bytes: u64,
        /// What can be used.
        max_bytes: u64,
    },
    /// The store has a backing, on which pages may lie.
    #[error("the store has a backing already; make a new store for another")]
    HasOne,
    /// It cannot be written.
    #[error("preparing the backing: {0}")]
    Io(#[from] BackingError),
    /// The system gives no random bytes for its identity.
    #[error("preparing the backing: {0}")]
    Identity(#[from] pagefold_sys::SysError),
}
