//! Direct I/O (O_DIRECT): switching it on and off, and its alignment.

use crate::SysError;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use std::fs::File;

/// Switches direct I/O of an open file on or off.
///
/// The flag belongs to the open file description, so it changes for passed and duplicated descriptors too.
pub fn set_direct(file: &File, on: bool) -> Result<(), SysError> {
    let what = || "switching direct I/O".to_string();
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| SysError::new(what(), e.raw_os_error()))?;
    let mut wanted = flags;
    wanted.set(OFlags::DIRECT, on);
    rustix::fs::fcntl_setfl(file, wanted).map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// The alignment that direct I/O on this file needs, for memory, offset and length alike, bytes.
///
/// 0 if the file does not support direct I/O; `None` if the kernel (before 6.1) or the file system does not report it.
pub fn alignment_bytes(file: &File) -> Option<usize> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_reported = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    is_reported.then(|| match stat.stx_dio_offset_align {
        0 => 0,
        offset_align => offset_align.max(stat.stx_dio_mem_align) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn is_direct(file: &File) -> bool {
        rustix::fs::fcntl_getfl(file.as_fd()).unwrap().contains(OFlags::DIRECT)
    }

    #[test]
    fn direct_io_is_switched_if_the_file_supports_it() {
        let file = tempfile::tempfile().unwrap();
        assert!(!is_direct(&file));
        match alignment_bytes(&file) {
            Some(0) => assert!(set_direct(&file, true).is_err() || is_direct(&file)),
            alignment => {
                assert!(alignment.is_none_or(usize::is_power_of_two));
                if set_direct(&file, true).is_ok() {
                    assert!(is_direct(&file));
                    set_direct(&file, false).unwrap();
                }
            }
        }
        set_direct(&file, false).unwrap();
        assert!(!is_direct(&file));
    }

    #[test]
    fn a_pipe_has_no_alignment() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(alignment_bytes(&File::from(std::os::fd::OwnedFd::from(reader))), None);
    }
}
