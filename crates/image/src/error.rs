//! Errors of reading an image, and the addresses that they name.

use pagefold_backing::BackingError;
use std::borrow::Cow;
use std::fmt;

/// The number of an inode, as directory entries have it: its position in 32-byte steps from the start of the metadata
/// (`meta_blkaddr`); if the top bit is set, from the start of the metabox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nid(pub u64);

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 63 {
            0 => write!(f, "{}", self.0),
            _ => write!(f, "metabox:{}", self.0 & (u64::MAX >> 1)),
        }
    }
}

/// An address space of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// A device: 0 is the image itself, the others are those of the device table, numbered from 1.
    Device(u16),
    /// The decoded bytes of the metabox, a file of compressed metadata.
    Metabox,
}

/// The address of a byte of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The address space.
    pub space: Space,
    /// Bytes from the beginning of the space.
    pub offset: u64,
}

impl Address {
    /// Makes the address of a byte of the image itself.
    pub fn image(offset: u64) -> Self {
        Address { space: Space::Device(0), offset }
    }

    /// Returns the address `len_bytes` further on; `None` on overflow.
    pub fn checked_add(self, len_bytes: u64) -> Option<Self> {
        Some(Address { offset: self.offset.checked_add(len_bytes)?, ..self })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.space {
            Space::Device(0) => write!(f, "byte {}", self.offset),
            Space::Device(n) => write!(f, "byte {} of device {n}", self.offset),
            Space::Metabox => write!(f, "byte {} of the metabox", self.offset),
        }
    }
}

/// The result of everything that reads an image.
pub type Result<T, E = ImageError> = std::result::Result<T, E>;

/// An error of opening or reading an image.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// The medium holds no EROFS image.
    #[error("not an EROFS image: {what}")]
    NotAnImage {
        /// The mismatch that shows it.
        what: Cow<'static, str>,
    },
    /// The image uses features that this version does not know.
    #[error("the image uses {features}, which this version cannot read")]
    Unsupported {
        /// The features, by name or number.
        features: String,
    },
    /// The image's contents contradict the format.
    #[error("corrupt image: {what}, at {at}")]
    Corrupt {
        /// The address of the structure or byte.
        at: Address,
        /// The contradiction.
        what: Cow<'static, str>,
    },
    /// The image refers to bytes after the end of a device or of the metabox.
    #[error("the image is cut off: {len_bytes} bytes wanted at {at}, which ends at {end}")]
    Truncated {
        /// The first byte of the request.
        at: Address,
        /// Bytes of the request.
        len_bytes: u64,
        /// The end of that address space.
        end: u64,
    },
    /// Fewer devices were passed than the image's table lists.
    #[error("the image needs {needed} further devices, and {given} were given; name them with --device")]
    MissingDevices {
        /// Devices in the table.
        needed: usize,
        /// Devices passed.
        given: usize,
    },
    /// More devices were passed than the image's table lists: they may belong to another image.
    #[error(
        "the image has {needed} further devices, and {given} were given; leave the others out of --device"
    )]
    SurplusDevices {
        /// Devices in the table.
        needed: usize,
        /// Devices passed.
        given: usize,
    },
    /// A read of the medium failed.
    #[error("reading {len_bytes} bytes at {at}")]
    Read {
        /// The first byte of the request.
        at: Address,
        /// Bytes of the request.
        len_bytes: u64,
        /// The medium's error.
        source: std::sync::Arc<BackingError>,
    },
    /// A name of a directory that no path can have. The other entries of its block are in order.
    #[error("corrupt image: entry {index} of a directory block has a name with a slash or a NUL, at {at}")]
    UnusableName {
        /// The address of the block or of the directory's inode.
        at: Address,
        /// The number of the entry in its block.
        index: usize,
    },
    /// The work that an image of this size can need was done, and was not all: the image claims lengths or numbers that
    /// it does not have.
    #[error(
        "corrupt image: it costs more than {steps} steps of work, which no image of its size needs: it claims lengths or \
         numbers that are not there"
    )]
    TooMuchWork {
        /// The limit.
        steps: u64,
    },
    /// The program that wanted the result was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// A file cannot be used as a medium.
    #[error("using {} as a medium", .path.display())]
    Medium {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        source: std::sync::Arc<BackingError>,
    },
    /// The budget is too small for a single request.
    #[error(
        "{needed_bytes} bytes of memory are needed at once, and the budget is {limit_bytes}; raise it with --memory"
    )]
    TooLittleMemory {
        /// Bytes that one request needs.
        needed_bytes: u64,
        /// Bytes of the budget.
        limit_bytes: u64,
    },
    /// The memory of the budget cannot be reserved.
    #[error("reserving {len_bytes} bytes of memory for reading")]
    Budget {
        /// Bytes of the budget.
        len_bytes: u64,
        /// The reason.
        source: std::sync::Arc<BackingError>,
    },
    /// The threads for read-ahead cannot be started.
    #[error("starting threads for read-ahead (error {})", .errno.unwrap_or(0))]
    Threads {
        /// The system's error number.
        errno: Option<i32>,
    },
    /// The name or path does not exist.
    #[error("no such file or directory: {}", String::from_utf8_lossy(.name))]
    NotFound {
        /// The name or path, as the caller passed it.
        name: Vec<u8>,
    },
    /// A path leads through too many symbolic links, or through one that leads to itself.
    #[error("too many symbolic links: {}", String::from_utf8_lossy(.path))]
    TooManyLinks {
        /// The path, as the caller passed it.
        path: Vec<u8>,
    },
    /// A name in the middle of a path is not a directory.
    #[error("not a directory: {}", String::from_utf8_lossy(.path))]
    ParentNotDirectory {
        /// The path of the file that is not a directory, from the root and without links.
        path: Vec<u8>,
    },
    /// An operation on directories was called on an inode that is not one.
    #[error("not a directory: inode {nid}")]
    NotADirectory {
        /// The inode.
        nid: Nid,
    },
    /// The names of an inode's attributes are longer together than Linux lists.
    #[error(
        "the names of the attributes of inode {nid} take more than {limit_bytes} bytes, which Linux does not list"
    )]
    TooManyNames {
        /// The inode.
        nid: Nid,
        /// The limit of Linux, bytes.
        limit_bytes: usize,
    },
    /// The contents of a file without contents were read.
    #[error("inode {nid} has no contents: it is {kind}")]
    NoContents {
        /// The inode.
        nid: Nid,
        /// The type of file, in words.
        kind: &'static str,
    },
}

impl ImageError {
    /// Makes an [`ImageError::Corrupt`].
    pub fn corrupt(at: Address, what: impl Into<Cow<'static, str>>) -> Self {
        ImageError::Corrupt { at, what: what.into() }
    }

    /// Whether the image is at fault: it contradicts the format or its digest, or does not decode, or it is none.
    pub fn is_damage(&self) -> bool {
        matches!(self, ImageError::Read { source, .. } if source.is_mismatch())
            || matches!(
                self,
                ImageError::NotAnImage { .. }
                    | ImageError::Corrupt { .. }
                    | ImageError::Truncated { .. }
                    | ImageError::UnusableName { .. }
                    | ImageError::TooMuchWork { .. }
                    | ImageError::TooManyNames { .. }
            )
    }

    /// Returns the byte of the image that the error names, if there is one.
    pub fn address(&self) -> Option<Address> {
        match self {
            ImageError::Corrupt { at, .. }
            | ImageError::Truncated { at, .. }
            | ImageError::UnusableName { at, .. }
            | ImageError::Read { at, .. } => Some(*at),
            _ => None,
        }
    }
}
