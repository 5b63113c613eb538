//! The errors of a store and of its writeback.

use pagefold_backing::BackingError;
use pagefold_codec::CodecError;
use pagefold_page::PageIndex;
use pagefold_page::size::Human;
use pagefold_pool::SourceError;

/// A failed operation on a store, with the page or the range concerned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The range does not lie inside the store. Nothing was done.
    #[error("bytes {offset}+{len_bytes} lie outside the store of {store_len_bytes} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request, bytes.
        len_bytes: u64,
        /// Size of the store, bytes.
        store_len_bytes: u64,
    },
    /// A store must have at least one byte, and at most 2^50.
    #[error("a store cannot have {0} bytes: at least 1 and at most 1 PiB")]
    BadLength(u64),
    /// There is no memory for the page. The page keeps its old contents.
    #[error("page {index} was not stored: {source}")]
    NoMemory {
        /// The page.
        index: PageIndex,
        /// The reason.
        source: SourceError,
    },
    /// The stored bytes do not decode. The contents are lost; the page can be written again.
    #[error("page {index} cannot be read: {source}")]
    Corrupt {
        /// The page.
        index: PageIndex,
        /// The codec's error.
        source: CodecError,
    },
    /// The codec failed to compress the page. The page keeps its old contents.
    #[error("page {index} was not stored: {source}")]
    Compress {
        /// The page.
        index: PageIndex,
        /// The codec's error.
        source: CodecError,
    },
    /// A written-back page could not be read back. It stays on the backing, and a later read may succeed.
    #[error("page {index} cannot be read back from byte {offset} of the backing: {source}")]
    ReadBack {
        /// The page.
        index: PageIndex,
        /// Where its record begins, bytes.
        offset: u64,
        /// The medium's error.
        source: BackingError,
    },
    /// The record of a written-back page does not verify. The contents are lost; the page can be written again.
    #[error("page {index} is lost: its record at byte {offset} of the backing is corrupt")]
    CorruptRecord {
        /// The page.
        index: PageIndex,
        /// Where its record begins, bytes.
        offset: u64,
    },
    /// The backing cannot be used.
    #[error(transparent)]
    Attach(AttachError),
    /// The codec cannot be set up.
    #[error(transparent)]
    Codec(CodecError),
    /// A process has died and left the page inconsistent, or it was restored as lost. The contents are lost; the page can be written again.
    #[error("page {index} is lost: a former process left it inconsistent, or it was saved as lost")]
    Lost {
        /// The page.
        index: PageIndex,
    },
    /// A page that is still in the saved disk, from which the store is being restored, cannot be read there. It stays
    /// there, and a later read may succeed; the page can be written.
    #[error("page {index} cannot be read from the saved disk: {reason}")]
    Fetch {
        /// The page.
        index: PageIndex,
        /// The reason, with the place.
        reason: String,
    },
    /// The memory of a store whose process has died cannot be used.
    #[error("the memory of the former process cannot be used: {0}")]
    Unrecoverable(String),
    /// The store's memory cannot be set up.
    #[error("setting up the store's memory: {0}")]
    SetUp(SourceError),
}

/// The reason why a save of a store failed. The store is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Another save runs.
    #[error("the disk is being saved already")]
    Busy,
    /// A restore is in progress, so that the store does not have all pages.
    #[error("the disk is being restored")]
    Restoring,
    /// There is no memory for the save.
    #[error("setting up the save: {0}")]
    SetUp(SourceError),
    /// The target did not take a page.
    #[error(transparent)]
    Target(std::io::Error),
    /// A page could not be read.
    #[error(transparent)]
    Page(StoreError),
    /// The target took so little for so long that a write gave the save up.
    #[error(
        "the save was given up: in 30 s its target took fewer than 4096 pages, while writes to the disk waited for it"
    )]
    Stalled,
    /// It was given up by [`SaveWatch::give_up`](crate::SaveWatch::give_up).
    #[error("the save was given up")]
    GivenUp,
}

/// A selection of pages that cannot be parsed or does not fit the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// An unknown word.
    #[error(
        "'{word}' selects no pages; use type=idle, type=huge, type=huge_idle, type=incompressible, \
         page_index=N or page_indexes=A-B"
    )]
    Unknown {
        /// The word.
        word: String,
    },
    /// The selection contains no word.
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
    /// The error number that zram returns in this case.
    pub fn errno(&self) -> i32 {
        match self {
            SelectionError::Unknown { .. } | SelectionError::Nothing => libc::EINVAL,
            SelectionError::Backwards { .. } | SelectionError::OutOfRange { .. } => libc::ERANGE,
        }
    }
}

/// The reason why a pass did not begin, or did not write back all pages of its selection. No page is lost by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WritebackError {
    /// The store has no backing.
    #[error("there is no backing to write pages back to")]
    NoBacking,
    /// The selection names pages outside the store.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The write-back budget is used up.
    #[error("the write-back budget is used up; raise writeback_limit, or set writeback_limit_enable=0")]
    Budget,
    /// The backing has no free space.
    #[error("the backing, or the file system under it, is full; the pages stay in memory")]
    Full,
    /// A request failed; the pages in it stay in memory.
    #[error("writeback: {0}; the pages concerned stay in memory")]
    Io(BackingError),
    /// The caller's progress function stopped the pass.
    #[error("stopped; pages that were not written back yet stay in memory")]
    Stopped,
}

impl WritebackError {
    /// The error number that zram returns in this case.
    pub fn errno(&self) -> i32 {
        match self {
            WritebackError::NoBacking => libc::ENODEV,
            WritebackError::Selection(e) => e.errno(),
            WritebackError::Budget => libc::EIO,
            WritebackError::Full => libc::ENOSPC,
            WritebackError::Io(e) => e.errno(),
            WritebackError::Stopped => libc::EINTR,
        }
    }
}

/// The reason why a backing cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// It is too small for its layout.
    #[error("the backing has {}; it needs at least {}", Human(*len_bytes), Human(*min_bytes))]
    TooSmall {
        /// Size of the backing, bytes.
        len_bytes: u64,
        /// The smallest usable size, bytes.
        min_bytes: u64,
    },
    /// It is larger than the locations of its layout can address.
    #[error("the backing has {}; at most {} can be used in this layout", Human(*len_bytes), Human(*max_bytes))]
    TooLarge {
        /// Size of the backing, bytes.
        len_bytes: u64,
        /// The largest usable size, bytes.
        max_bytes: u64,
    },
    /// The store has a backing already, and pages may lie on it.
    #[error("the store has a backing already; make a new store for another")]
    HasOne,
    /// It is not the one of the process that has died.
    #[error("this is not the backing of the former process, or another process has changed its size")]
    OtherBacking,
    /// It cannot be written.
    #[error("preparing the backing: {0}")]
    Io(#[from] BackingError),
    /// The system returned no random bytes for the identity of the backing.
    #[error("preparing the backing: {0}")]
    Identity(#[from] pagefold_sys::SysError),
}
