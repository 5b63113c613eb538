//! What can go wrong with an image, and where.

use pagefold_backing::BackingError;
use std::borrow::Cow;
use std::fmt;

/// The number of an inode as directories give it: its place in the metadata, in 32-byte steps, and in the
/// top bit whether that is in the metabox.
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

/// What an address counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// A device: 0 is the image itself, others are those of the device table.
    Device(u16),
    /// The metabox, a file of compressed metadata, by its decoded bytes.
    Metabox,
}

/// A byte of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Where it counts.
    pub space: Space,
    /// Bytes from the beginning of the space.
    pub offset: u64,
}

impl Address {
    /// A byte of the image itself.
    pub fn image(offset: u64) -> Self {
        Address { space: Space::Device(0), offset }
    }

    /// This address `len_bytes` further on; `None` past the end of all numbers.
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

/// Why an image, or a part of it, cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// It is not what it says it is.
    #[error("not an EROFS image: {what}")]
    NotAnImage {
        /// What gave it away.
        what: Cow<'static, str>,
    },
    /// It needs what this version does not have.
    #[error("the image uses {features}, which this version cannot read")]
    Unsupported {
        /// By name, or by number where it has none.
        features: String,
    },
    /// Its contents contradict the format.
    #[error("corrupt image: {what}, at {at}")]
    Corrupt {
        /// Which structure or byte.
        at: Address,
        /// What is wrong with it.
        what: Cow<'static, str>,
    },
    /// It ends before something that it refers to.
    #[error("the image is cut off: {len_bytes} bytes wanted at {at}, which ends at {end}")]
    Truncated {
        /// Where from.
        at: Address,
        /// How many.
        len_bytes: u64,
        /// Where that space ends.
        end: u64,
    },
    /// A device of the image's table was not given.
    #[error("the image needs {needed} further devices, and {given} were given; name them with --device")]
    MissingDevices {
        /// How many it lists.
        needed: usize,
        /// How many there are.
        given: usize,
    },
    /// More devices were given than the image's table has: it may be another image that they belong to.
    #[error(
        "the image has {needed} further devices, and {given} were given; leave the others out of --device"
    )]
    SurplusDevices {
        /// How many it lists.
        needed: usize,
        /// How many were given.
        given: usize,
    },
    /// The medium failed.
    #[error("reading {len_bytes} bytes at {at}")]
    Read {
        /// Where from.
        at: Address,
        /// How many.
        len_bytes: u64,
        /// Why.
        source: std::sync::Arc<BackingError>,
    },
    /// A file cannot be used as a medium.
    #[error("using {} as a medium", .path.display())]
    Medium {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        source: std::sync::Arc<BackingError>,
    },
    /// The budget is too small.
    #[error(
        "{needed_bytes} bytes of memory are needed at once, and the budget is {limit_bytes}; raise it with --memory"
    )]
    TooLittleMemory {
        /// What one request needs.
        needed_bytes: u64,
        /// What there is.
        limit_bytes: u64,
    },
    /// Memory for the budget cannot be had.
    #[error("reserving {len_bytes} bytes of memory for reading")]
    Budget {
        /// How much was asked for.
        len_bytes: u64,
        /// Why not.
        source: std::sync::Arc<BackingError>,
    },
    /// Threads for read-ahead cannot be started.
    #[error("starting threads for read-ahead (error {})", .errno.unwrap_or(0))]
    Threads {
        /// What the system says.
        errno: Option<i32>,
    },
    /// No such name.
    #[error("no such file or directory: {}", String::from_utf8_lossy(.name))]
    NotFound {
        /// The name or path, as asked for.
        name: Vec<u8>,
    },
    /// A path leads through too many symbolic links, or through one that leads to itself.
    #[error("too many symbolic links: {}", String::from_utf8_lossy(.path))]
    TooManyLinks {
        /// The path, as asked for.
        path: Vec<u8>,
    },
    /// What is in the middle of a path is not a directory.
    #[error("not a directory: {}", String::from_utf8_lossy(.path))]
    NoWay {
        /// Up to what is none, from the root and without links.
        path: Vec<u8>,
    },
    /// A name in the middle of a path, or an inode whose entries were asked for, is not a directory.
    #[error("not a directory: inode {nid}")]
    NotADirectory {
        /// The inode.
        nid: Nid,
    },
    /// The names of an inode's attributes are more than Linux lists.
    #[error(
        "the names of the attributes of inode {nid} take more than {limit_bytes} bytes, which Linux does not list"
    )]
    TooManyNames {
        /// The inode.
        nid: Nid,
        /// What Linux lists.
        limit_bytes: usize,
    },
    /// Contents were asked of something that has none.
    #[error("inode {nid} has no contents: it is {kind}")]
    NoContents {
        /// The inode.
        nid: Nid,
        /// What it is.
        kind: &'static str,
    },
}

impl ImageError {
    /// A contradiction at `at`.
    pub fn corrupt(at: Address, what: impl Into<Cow<'static, str>>) -> Self {
        ImageError::Corrupt { at, what: what.into() }
    }

    /// The byte of the image that it is about, if there is one.
    pub fn address(&self) -> Option<Address> {
        match self {
            ImageError::Corrupt { at, .. }
            | ImageError::Truncated { at, .. }
            | ImageError::Read { at, .. } => Some(*at),
            _ => None,
        }
    }
}
