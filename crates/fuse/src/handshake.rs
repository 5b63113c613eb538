//! Settings that a file system negotiates with the kernel when it is mounted.

use fuser::KernelConfig;
use std::io;

/// Limits the length of one request, bytes, and the number of background requests in flight.
pub fn limit_requests(config: &mut KernelConfig, max_bytes: usize, max_background: u16) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let max_bytes = u32::try_from(max_bytes).map_err(|_| invalid())?;
    // The kernel derives the length of the longest read from `max_write` too.
    config.set_max_write(max_bytes).map_err(|_| invalid())?;
    config.set_max_background(max_background).map_err(|_| invalid())?;
    Ok(())
}

/// The error that `init` returns for a feature that the kernel's FUSE lacks. [`FuseMount::new`](crate::FuseMount::new)
/// returns it as [`FuseError::Unsupported`](crate::FuseError::Unsupported).
pub fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}
