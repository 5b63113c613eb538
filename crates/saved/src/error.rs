//! The errors of reading a saved disk.

/// The reason why a saved disk cannot be read, with the place in the file.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// Reading failed.
    #[error("reading at byte {offset}: {source}")]
    Read {
        /// Where, bytes from the beginning.
        offset: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// It does not begin as saved disks do.
    #[error("this is not a saved disk: 'pagefold disk save' writes these")]
    NotSaved,
    /// A newer program has written it.
    #[error("it has version {version} of the format, and this program reads 1; use a newer pagefold")]
    Newer {
        /// Its version.
        version: u32,
    },
    /// It uses features that this program does not know.
    #[error("it needs features that this program does not know (bits {bits:#x}); use a newer pagefold")]
    Features {
        /// The unknown bits.
        bits: u64,
    },
    /// It ends too early.
    #[error("it is incomplete: it ends at byte {offset}, before its last part; copy or save it again")]
    Truncated {
        /// Its end, bytes.
        offset: u64,
    },
    /// A part of it contradicts the format or its checksum.
    #[error("it is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the part begins, bytes.
        offset: u64,
        /// The contradiction.
        what: &'static str,
    },
}
