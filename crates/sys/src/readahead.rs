//! Read-ahead of the kernel on request (posix_fadvise).

use crate::{SysError, failed};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;

/// Starts to read a range of a file into the page cache. Returns before it is there.
pub fn will_need(file: &File, offset: u64, len_bytes: u64) -> Result<(), SysError> {
    // A length of zero would mean the rest of the file.
    let Some(len_bytes) = NonZeroU64::new(len_bytes) else { return Ok(()) };
    fadvise(file, offset, Some(len_bytes), Advice::WillNeed).map_err(failed("asking for read-ahead"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_is_granted_for_files_and_refused_for_pipes() {
        let file = File::open("/proc/self/exe").unwrap();
        will_need(&file, 0, 4096).unwrap();
        will_need(&file, 1 << 40, 1 << 20).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(will_need(&pipe, 0, 1).unwrap_err().errno, libc::ESPIPE);
        will_need(&pipe, 0, 0).unwrap();
    }
}
