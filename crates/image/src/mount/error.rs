//! Errors of mounts.

use crate::ImageError;
use pagefold_sys::SysError;
use pagefold_sys::fusermount::HelperError;
use std::path::PathBuf;

/// An error of mounting or unmounting an image.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Reading the image failed, or its budget is too small.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Another file system is mounted on the mount point.
    #[error("something is mounted on {} already", .path.display())]
    Taken {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel has no FUSE, or this user may not use it.
    #[error("FUSE cannot be used: {0}; load the module 'fuse', and let this user open /dev/fuse")]
    NoFuse(SysError),
    /// A privilege is missing.
    #[error("{0}; the right to mount (CAP_SYS_ADMIN) is missing")]
    NotPermitted(SysError),
    /// The program that mounts for users other than root failed.
    #[error("mounting or unmounting at {}", .path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// The program's error.
        source: HelperError,
    },
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SysError),
    /// Starting or running the threads of the mount failed.
    #[error("serving the mount: {0}")]
    Session(String),
}
