//! Errors of opening and closing a loop export, or the FUSE file below it.

use pagefold_sys::SysError;
use pagefold_sys::blockuse::BlockUse;
use std::path::PathBuf;

/// The facility that this machine lacks for a loop export. Another export may still work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Only root can mount and attach loop devices.
    #[error("it needs root")]
    NotRoot,
    /// The kernel has no FUSE, or one that is too old.
    #[error("no usable FUSE: {0}")]
    Fuse(SysError),
    /// The sandbox or the kernel forbids mounting a FUSE file system.
    #[error("mounting is not allowed: {0}")]
    Mount(SysError),
    /// There is no loop driver or no free loop device, or this process may not use them.
    #[error("no loop device: {0}")]
    Loop(SysError),
    /// The loop driver does not use direct I/O here, and so would cache every page a second time.
    #[error("the kernel's loop driver does no direct I/O on a FUSE file")]
    DirectIo,
}

/// A failure of the loop export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The machine lacks a facility; the request itself is valid.
    #[error("the loop export is not available here: {0}")]
    Unavailable(#[from] Unavailable),
    /// The device is mounted, used as swap, or claimed otherwise. It stays attached.
    #[error("{} is in use: {}; unmount it or swapoff first", device.display(), list(uses))]
    InUse {
        /// The loop device.
        device: PathBuf,
        /// Its users.
        uses: Vec<BlockUse>,
    },
    /// A block device with 4096-byte sectors cannot have this size.
    #[error("a loop device cannot have {len_bytes} bytes: use a multiple of 4096, below 8 EiB and not 0")]
    BadSize {
        /// The size of the device, bytes.
        len_bytes: u64,
    },
    /// Another file system is mounted at the mount point.
    #[error("something is mounted at {} already; unmount it or clean up first", path.display())]
    MountPointTaken {
        /// The mount point.
        path: PathBuf,
    },
    /// A thread that serves the FUSE file did not start or end properly.
    #[error("serving the FUSE file: {0}")]
    Session(String),
    /// A system call failed for another reason than a missing facility.
    #[error(transparent)]
    System(#[from] SysError),
}

impl ExportError {
    /// The error of a facility that could not be opened: `unavailable`. If the system ran out of a resource, the error
    /// stays [`ExportError::System`], because trying another export would only hide it.
    pub(crate) fn from_facility(unavailable: fn(SysError) -> Unavailable, error: SysError) -> Self {
        match error.is_exhaustion() {
            true => ExportError::System(error),
            false => ExportError::Unavailable(unavailable(error)),
        }
    }

    /// The missing facility, if there is one: the caller should then try another export.
    pub fn unavailable(&self) -> Option<&Unavailable> {
        match self {
            ExportError::Unavailable(why) => Some(why),
            _ => None,
        }
    }
}

fn list(uses: &[BlockUse]) -> String {
    uses.iter().map(BlockUse::to_string).collect::<Vec<_>>().join(", ")
}
