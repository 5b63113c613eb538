//! A block device with direct I/O, so that no checked data comes from the page cache.

use super::{Connection, RequestError, other};
use pagefold_page::AlignedBytes;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// `O_DIRECT`.
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// A connection to a block device.
pub struct DeviceConnection {
    file: File,
    align: u64,
    buffer: AlignedBytes,
}

impl DeviceConnection {
    /// Opens the device with this path.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(DIRECT).open(path)?;
        let align = pagefold_sys::blockdev::logical_block_bytes(&file)? as u64;
        Ok(DeviceConnection { file, align, buffer: AlignedBytes::new(0, 0) })
    }

    fn make_room(&mut self, len: usize) {
        if self.buffer.len() < len {
            self.buffer = AlignedBytes::new(len, 0);
        }
    }
}

/// The kernel reports EIO for every error of a loop device's file, so this may be a lack of space.
fn write_error(action: &str, len: u64, offset: u64, error: &dyn std::fmt::Display) -> RequestError {
    RequestError::NoRoom(format!("{action} {len} bytes at {offset}: {error}"))
}

impl Connection for DeviceConnection {
    fn align(&self) -> u64 {
        self.align
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        self.make_room(buf.len());
        let aligned = &mut self.buffer[..buf.len()];
        let read = self.file.read_exact_at(aligned, offset);
        read.map_err(|e| other(format!("reading {} bytes at {offset}: {e}", buf.len())))?;
        buf.copy_from_slice(aligned);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError> {
        self.make_room(data.len());
        let aligned = &mut self.buffer[..data.len()];
        aligned.copy_from_slice(data);
        let written = self.file.write_all_at(aligned, offset);
        written.map_err(|e| write_error("writing", data.len() as u64, offset, &e))
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        let discarded = pagefold_sys::blockdev::discard(&self.file, offset, len_bytes);
        // A discard of whole pages needs no memory, so no limit refuses it.
        discarded.map_err(|e| other(format!("discarding {len_bytes} bytes at {offset}: {e}")))
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        let flags = rustix::fs::FallocateFlags::ZERO_RANGE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let zeroed = rustix::fs::fallocate(&self.file, flags, offset, len_bytes);
        zeroed.map_err(|e| write_error("zeroing", len_bytes, offset, &e))
    }
}
