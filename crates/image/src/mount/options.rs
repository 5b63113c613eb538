//! Options of a mount.

use crate::startup::Recorder;
use pagefold_fuse::MOUNT_NAME;
use std::ffi::OsString;
use std::sync::Arc;

/// How an image is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that serve requests; 0: one for each CPU, and one more, up to 4.
    pub threads: usize,
    /// Whether requests come through io_uring where the kernel offers it, and a fourth of the budget has room for its
    /// buffers: then each possible CPU has one or two threads, whatever `threads` says.
    pub uring: bool,
    /// Whether users other than the mounting one have access, as modes, owners and access control lists of the image
    /// permit.
    pub allow_other: bool,
    /// Whether set-user-ID and set-group-ID bits take effect. Only for root.
    pub suid: bool,
    /// Whether device nodes of the image can be opened. Only for root.
    pub devices: bool,
    /// Limit of the kernel's read-ahead per file, KiB, where it can be set; 0: the kernel's default.
    pub kernel_read_ahead_kib: u64,
    /// Whether the image reads ahead although the kernel does, whose limit was set: for sources that are slow to reach. The
    /// kernel's requests come early enough for others, and what the image decodes ahead is copied once more.
    pub reads_ahead_beside_kernel: bool,
    /// The source in the mount table.
    pub source: OsString,
    /// Notes what is read, until it is stopped.
    pub recorder: Option<Arc<Recorder>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            threads: 0,
            uring: false,
            allow_other: false,
            suid: false,
            devices: false,
            kernel_read_ahead_kib: 1024,
            reads_ahead_beside_kernel: false,
            source: MOUNT_NAME.into(),
            recorder: None,
        }
    }
}
