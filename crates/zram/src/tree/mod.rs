//! The FUSE file system with the files of zram.
//!
//! It repeats the part of sysfs and debugfs that scripts for zram use, with the same relative paths, so that the links
//! between the parts lead to the right place inside the tree and also if the parts are mounted over those of sysfs:
//!
//! ```text
//! zramN -> devices/virtual/block/loopM
//! block/zramN -> ../devices/virtual/block/loopM
//! block/NAME                                       every other block device: the link that sysfs has
//! class/zram-control/hot_add, hot_remove
//! devices/virtual/block/loopM/ATTRIBUTE            the attributes of disk N, whose device is /dev/loopM
//! devices/virtual/block/loopM/NAME                 everything else: links to what sysfs has for the loop device
//! kernel/debug/zram/zramN/block_state              the states of disk N's pages
//! kernel/debug/zsmalloc/zramN/classes              the size classes of disk N's pool, if it has a size
//! kernel/debug/NAME                                every other entry of debugfs: a link to it
//! ```
//!
//! Files behave as in sysfs: their length is 4096, whatever they contain; a read from the beginning of a file asks the
//! disk, and later reads continue what it answered; each write is one store. Nothing can be created, removed or
//! renamed. The kernel caches nothing.
//!
//! Session threads answer everything but reads and writes of attributes. These have a thread each while they run,
//! because they call the server of a disk, which may take as long as writeback does: other requests do not wait for
//! them. Reads, which any user may make, are bounded (`read_slots`).

mod fs;
mod node;
mod open_file;
mod process;
mod read_slots;
mod states;

pub use fs::Sysfs;
pub use process::TreeProcess;

use crate::disks::Disks;
use fs::{MAX_REQUEST_BYTES, ZramTree};
use pagefold_fuse::{FuseError, MOUNT_NAME, SessionThreads};
use pagefold_sys::SysError;
use pagefold_sys::fusedev::Request;
use std::fs::File;
use std::sync::Arc;

/// Threads that answer requests. None of them waits for the server of a disk.
const THREADS: usize = 4;

/// Serves a tree that the caller, or another process, has mounted with [`request`]. Ends with the mount. `open` opens further
/// channels.
pub fn serve(
    disks: Arc<dyn Disks>,
    sysfs: Sysfs,
    channel: File,
    open: &dyn Fn() -> Result<File, SysError>,
) -> Result<SessionThreads, FuseError> {
    pagefold_fuse::serve(ZramTree::new(disks, sysfs), channel, open, request().allow_other, THREADS)
}

/// The options of the mount: any user may read what the modes allow, as in sysfs.
pub fn request() -> Request<'static> {
    Request { allow_other: true, checks_modes: true, ..Request::private(MOUNT_NAME, MAX_REQUEST_BYTES) }
}
