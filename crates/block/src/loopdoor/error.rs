//! Why a loop door did not open or did not close.

use pagefold_sys::SysError;
use pagefold_sys::blockuse::BlockUse;
use std::path::PathBuf;

/// What this machine lacks for a loop door. Another door may still work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Mounting and attaching loop devices is root's.
    #[error("it needs root")]
    NotRoot,
    /// No FUSE, or one that is too old.
    #[error("no usable FUSE: {0}")]
    Fuse(SysError),
    /// The sandbox or the kernel forbids mounting it.
    #[error("mounting is not allowed: {0}")]
    Mount(SysError),
    /// No loop driver, no free device, or no right to it.
    #[error("no loop device: {0}")]
    Loop(SysError),
    /// The loop driver would cache every page a second time.
    #[error("the kernel's loop driver does no direct I/O on a FUSE file")]
    DirectIo,
}

/// A failure of the loop door.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DoorError {
    /// The machine cannot do it; nothing is wrong with the request.
    #[error("the loop door is not available here: {0}")]
    Unavailable(#[from] Unavailable),
    /// Somebody stands on the device; nothing was taken away.
    #[error("{} is in use: {}; unmount it or swapoff first", device.display(), list(uses))]
    InUse {
        /// The loop device.
        device: PathBuf,
        /// Who.
        uses: Vec<BlockUse>,
    },
    /// The device's size cannot be that of a block device with 4096-byte sectors.
    #[error("{len_bytes} bytes is no size for a loop device: use a multiple of 4096, below 8 EiB and not 0")]
    BadSize {
        /// The size.
        len_bytes: u64,
    },
    /// Something is mounted where the file is to be mounted.
    #[error("something is mounted at {} already; unmount it or clean up first", path.display())]
    MountPointTaken {
        /// Where.
        path: PathBuf,
    },
    /// The threads that serve the file did not start or end as they should.
    #[error("serving the FUSE file: {0}")]
    Session(String),
    /// A system call failed that works on a sound machine.
    #[error(transparent)]
    System(#[from] SysError),
}

impl DoorError {
    /// A machine that ran out of something is no machine without it: trying another door would only
    /// hide that.
    pub(crate) fn missing(why: fn(SysError) -> Unavailable, error: SysError) -> Self {
        match error.is_exhaustion() {
            true => DoorError::System(error),
            false => DoorError::Unavailable(why(error)),
        }
    }

    /// The reason, if the machine cannot do it and another door should be tried.
    pub fn unavailable(&self) -> Option<&Unavailable> {
        match self {
            DoorError::Unavailable(why) => Some(why),
            _ => None,
        }
    }
}

fn list(uses: &[BlockUse]) -> String {
    uses.iter().map(BlockUse::to_string).collect::<Vec<_>>().join(", ")
}
