//! Opening block devices for direct I/O.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a block device for reading and writing past the page cache, refusing one that is mounted or
/// opened like this elsewhere.
///
/// Buffers, offsets and lengths must then be aligned to the device's blocks.
pub fn open_exclusive(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_EXCL).open(path)
}
