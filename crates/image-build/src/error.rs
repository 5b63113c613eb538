//! Errors of building an image.

use pagefold_image::ImageError;
use std::io;
use std::path::{Path, PathBuf};

/// The result of everything that building does.
pub type Result<T, E = BuildError> = std::result::Result<T, E>;

/// An error of building an image.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file or directory of the source cannot be read.
    #[error("reading '{}'", .path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file of the source, or its metadata, was changed, replaced or removed while it was read.
    #[error("'{}' or its metadata changed while it was read; build from a snapshot, or when nothing writes to it", .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A name, path or attribute of the source cannot be stored.
    #[error("'{}' cannot be stored: {what}", .path.display())]
    Refused {
        /// The file, as its path in the image.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// An archive of the source is damaged, or holds what cannot be stored.
    #[error("'{}', member '{}': {what}", .archive.display(), .member.display())]
    Archive {
        /// The archive.
        archive: PathBuf,
        /// The member, or the one before it if its name cannot be read; `/` if there is none.
        member: PathBuf,
        /// The fault.
        what: String,
    },
    /// A compressed file of the source is damaged.
    #[error("'{}' is damaged, or cut off; get it again ({what})", .path.display())]
    CompressedSource {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// An image of the source cannot be read.
    #[error("reading '{}' of the image", .path.display())]
    Image {
        /// The file in the image.
        path: PathBuf,
        /// The reason.
        source: ImageError,
    },
    /// An image of the source is damaged: what a check would report as an error.
    #[error("the source image has a fault at '{}': {what}", .path.display())]
    ImageFault {
        /// The file in the image.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A file of the source is nothing that an image can be built from.
    #[error("'{}' cannot be read: {what}", .path.display())]
    UnknownSource {
        /// The file.
        path: PathBuf,
        /// The reason, and the remedy.
        what: String,
    },
    /// The temporary file for a stream cannot be written.
    #[error("writing a temporary file beside the image")]
    Spool {
        /// The reason.
        source: io::Error,
    },
    /// The options contradict each other or the target.
    #[error("{what}")]
    Options {
        /// The contradiction, and the remedy.
        what: String,
    },
    /// The image cannot be written. The file is incomplete.
    #[error("writing the image at byte {offset}")]
    Write {
        /// First byte of the request.
        offset: u64,
        /// The reason.
        source: io::Error,
    },
    /// The image would be larger than the format or the target allows.
    #[error("the image is too large: {what}")]
    TooLarge {
        /// The limit.
        what: String,
    },
    /// A compressor failed; never because of the data.
    #[error("compressing")]
    Codec(#[from] pagefold_codec::CodecError),
    /// The caller ended the build.
    #[error("interrupted")]
    Interrupted,
    /// A thread of the builder could not be started.
    #[error("starting a thread")]
    Threads(#[source] io::Error),
}

impl BuildError {
    /// Makes an error of reading `path`.
    pub(crate) fn source(path: &Path, source: io::Error) -> Self {
        BuildError::Source { path: path.into(), source }
    }

    /// Makes an error of something in the source that cannot be stored.
    pub(crate) fn refused(path: &[u8], what: impl Into<String>) -> Self {
        BuildError::Refused { path: path_of(path), what: what.into() }
    }

    /// Makes an error of a fault in an image of the source.
    pub(crate) fn image_fault(path: &[u8], what: impl Into<String>) -> Self {
        BuildError::ImageFault { path: path_of(path), what: what.into() }
    }
}

/// Converts a path in the image.
pub(crate) fn path_of(path: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(path))
}
