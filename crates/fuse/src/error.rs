//! Why a file system was not mounted, or not taken down.

use pagefold_sys::SysError;
use pagefold_sys::fusermount::HelperError;
use std::path::PathBuf;

/// An error of [`FuseMount`](crate::FuseMount), by the step that failed. Callers add their own advice for each step.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// Another file system is mounted at the mount point.
    #[error("something is mounted on {} already", .path.display())]
    Taken {
        /// The mount point.
        path: PathBuf,
    },
    /// `/dev/fuse` cannot be opened.
    #[error(transparent)]
    Open(SysError),
    /// The kernel refused the mount.
    #[error(transparent)]
    Mount(SysError),
    /// `fusermount3` refused to mount or to unmount.
    #[error("mounting or unmounting at {}", .path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// Why it failed.
        source: HelperError,
    },
    /// The kernel's FUSE lacks something that the file system needs.
    #[error(transparent)]
    Unsupported(SysError),
    /// Another system call failed.
    #[error(transparent)]
    System(#[from] SysError),
    /// A session thread failed, or did not end.
    #[error("{0}")]
    Session(String),
}
