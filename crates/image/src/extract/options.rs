//! Options and progress of an extraction.

use crate::walk::Limits;

/// Options of an extraction.
#[derive(Debug, Clone)]
pub struct ExtractOptions {
    /// Threads that write files, the calling one included.
    pub threads: usize,
    /// Create devices, set-id bits and system attributes (`security.`, `trusted.`).
    pub privileged: bool,
    /// Set owners and groups.
    pub owners: bool,
    /// Set extended attributes and access control lists.
    pub xattrs: bool,
    /// Set times.
    pub times: bool,
    /// Limit of bytes of contents written; `None`: nine tenths of the free space of the target's file system.
    pub max_bytes: Option<u64>,
    /// Limit of files of all kinds. The free inodes of the target's file system are a limit too.
    pub max_inodes: u64,
    /// Accept a directory that is not empty, and replace what is in it. A directory that a file replaces is removed with all
    /// below it.
    pub overwrite: bool,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        ExtractOptions {
            threads: 2,
            privileged: false,
            owners: true,
            xattrs: true,
            times: true,
            max_bytes: None,
            max_inodes: Limits::default().inodes,
            overwrite: false,
        }
    }
}

/// Progress of an extraction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files of all kinds created.
    pub files: u64,
    /// Bytes of contents written.
    pub bytes: u64,
    /// Bytes of contents that are done: those written, and holes and zeroes that need not be.
    pub content_bytes: u64,
    /// Files of the image, as its super block says; 0 if it does not say.
    pub of_files: u64,
}
