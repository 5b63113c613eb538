//! What can go wrong in a store.

use crate::parking::AttachError;
use pagefold_backing::BackingError;
use pagefold_codec::CodecError;
use pagefold_page::PageIndex;
use pagefold_pool::SourceError;

/// A failed operation, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The range does not lie inside the store. Nothing was done.
    #[error("bytes {offset}+{len_bytes} lie outside the store of {store_len_bytes} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes the store has.
        store_len_bytes: u64,
    },
    /// A store must have at least one byte, and at most 2^50.
    #[error("a store cannot have {0} bytes: at least 1 and at most 1 PiB")]
    BadLength(u64),
    /// No memory for the page, for the reason given; the page keeps its old contents.
    #[error("page {index} was not stored: {source}")]
    NoMemory {
        /// The page.
        index: PageIndex,
        /// Why.
        source: SourceError,
    },
    /// What is held does not decode. The contents are lost; the page can be written anew.
    #[error("page {index} cannot be read: {source}")]
    Corrupt {
        /// The page.
        index: PageIndex,
        /// What the codec said.
        source: CodecError,
    },
    /// The codec failed on a page to be stored; the page keeps its old contents.
    #[error("page {index} was not stored: {source}")]
    Compress {
        /// The page.
        index: PageIndex,
        /// What the codec said.
        source: CodecError,
    },
    /// A parked page could not be read back. It stays where it is.
    #[error("page {index} cannot be read back from byte {offset} of the backing: {source}")]
    ReadBack {
        /// The page.
        index: PageIndex,
        /// Where its record is.
        offset: u64,
        /// What the medium said.
        source: BackingError,
    },
    /// The record of a parked page is not what was written. The contents are lost; the page can be written anew.
    #[error("page {index} is lost: its record at byte {offset} of the backing is corrupt")]
    CorruptRecord {
        /// The page.
        index: PageIndex,
        /// Where its record is.
        offset: u64,
    },
    /// The backing cannot be used.
    #[error(transparent)]
    Attach(AttachError),
    /// The codec cannot be set up.
    #[error(transparent)]
    Codec(CodecError),
    /// The store's memory cannot be set up.
    #[error("setting up the store's memory: {0}")]
    SetUp(SourceError),
}
