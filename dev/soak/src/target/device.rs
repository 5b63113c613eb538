//! A block device with direct I/O, so that no checked data comes from the page cache.

use super::{Connection, RequestError, Target};
use pagefold_page::AlignedBytes;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// `O_DIRECT`.
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// A block device as a target.
pub struct DeviceTarget {
    path: PathBuf,
    len_bytes: u64,
    block_bytes: u64,
}

impl DeviceTarget {
    /// A target for the device with this path.
    pub fn new(path: PathBuf) -> Result<Self, String> {
        let failed = |e: &dyn std::fmt::Display| format!("opening {}: {e}", path.display());
        let file = File::open(&path).map_err(|e| failed(&e))?;
        let len_bytes = pagefold_sys::blockdev::len_bytes(&file).map_err(|e| failed(&e))?;
        let block_bytes = pagefold_sys::blockdev::logical_block_bytes(&file).map_err(|e| failed(&e))? as u64;
        Ok(DeviceTarget { path, len_bytes, block_bytes })
    }
}

impl Target for DeviceTarget {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn align(&self) -> u64 {
        self.block_bytes
    }

    fn connect(&self) -> Result<Box<dyn Connection + '_>, String> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(DIRECT).open(&self.path);
        let file = file.map_err(|e| format!("opening {}: {e}", self.path.display()))?;
        Ok(Box::new(DeviceConnection { file, buffer: AlignedBytes::new(0, 0) }))
    }
}

struct DeviceConnection {
    file: File,
    buffer: AlignedBytes,
}

fn write_error(action: &str, offset: u64, error: &dyn std::fmt::Display) -> RequestError {
    // The kernel reports EIO for every error of a loop device's file, so this may be a lack of room.
    RequestError::NoRoom(format!("{action} at {offset}: {error}"))
}

impl DeviceConnection {
    fn aligned(&mut self, len: usize) -> &mut [u8] {
        if self.buffer.len() < len {
            self.buffer = AlignedBytes::new(len, 0);
        }
        &mut self.buffer[..len]
    }
}

impl Connection for DeviceConnection {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        let file = self.file.try_clone().map_err(|e| RequestError::Other(e.to_string()))?;
        let aligned = self.aligned(buf.len());
        let read = file.read_exact_at(aligned, offset);
        read.map_err(|e| RequestError::Other(format!("reading {} bytes at {offset}: {e}", buf.len())))?;
        buf.copy_from_slice(aligned);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError> {
        let file = self.file.try_clone().map_err(|e| RequestError::Other(e.to_string()))?;
        let aligned = self.aligned(data.len());
        aligned.copy_from_slice(data);
        let action = format!("writing {} bytes", data.len());
        file.write_all_at(aligned, offset).map_err(|e| write_error(&action, offset, &e))
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        let discarded = pagefold_sys::blockdev::discard(&self.file, offset, len_bytes);
        // A discard of whole pages needs no memory, so no limit refuses it.
        discarded.map_err(|e| RequestError::Other(format!("discarding {len_bytes} bytes at {offset}: {e}")))
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        let flags = rustix::fs::FallocateFlags::ZERO_RANGE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let zeroed = rustix::fs::fallocate(&self.file, flags, offset, len_bytes);
        zeroed.map_err(|e| write_error(&format!("zeroing {len_bytes} bytes"), offset, &e))
    }
}
