//! Swap areas: listing them, swapon and swapoff, and checking whether the system can do without one.
//!
//! swapoff reads every page of the area back into memory. If there is too little memory, it fails late, after the
//! kernel has reclaimed everything else; so callers check [`room_without`] first.

use crate::mounts::{DeviceNumber, unescape};
use crate::{SysError, done, mem};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Memory that must stay available after all pages were read back.
const MARGIN_BYTES: u64 = 64 << 20;
/// The header at the beginning of an area, which its length does not include.
const HEADER_BYTES: u64 = 4096;

/// One swap area in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapArea {
    /// The device or file. Of one that was given to swapon in another mount namespace, the path may lead nowhere here.
    pub path: PathBuf,
    /// Whether it is a block device.
    pub is_device: bool,
    /// Its capacity, bytes.
    pub len_bytes: u64,
    /// Bytes swapped out to it.
    pub used_bytes: u64,
    /// Its priority; the kernel uses areas with a higher one first.
    pub priority: i32,
}

/// The room that the system has for the contents of one swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapRoom {
    /// Bytes that must be read back from the area.
    pub used_bytes: u64,
    /// Memory that is available without swapping, bytes.
    pub available_bytes: u64,
    /// Free bytes of the other swap areas.
    pub other_swap_bytes: u64,
}

impl SwapRoom {
    /// Whether the contents fit into memory and the other areas, with a margin of 64 MiB.
    pub fn fits(&self) -> bool {
        let room = self.available_bytes.saturating_add(self.other_swap_bytes);
        self.used_bytes.saturating_add(MARGIN_BYTES) <= room
    }
}

/// All swap areas in use.
pub fn areas() -> Result<Vec<SwapArea>, SysError> {
    const PATH: &str = "/proc/swaps";
    match std::fs::read(PATH) {
        Ok(text) => Ok(text.split(|&b| b == b'\n').skip(1).filter_map(parse_area).collect()),
        // A kernel without swap has no such file.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(SysError::io(format!("reading {PATH}"), &e)),
    }
}

fn parse_area(line: &[u8]) -> Option<SwapArea> {
    let mut fields = line.split(|b| b.is_ascii_whitespace()).filter(|f| !f.is_empty());
    let path = unescape(fields.next()?).into();
    // A deleted file's path is followed by one more word, so that its line fails to parse.
    let is_device = fields.next()? == b"partition";
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok();
    let (len_kib, used_kib, priority) = (number()?, number()?, number()?);
    Some(SwapArea {
        path,
        is_device,
        len_bytes: u64::try_from(len_kib).ok()? << 10,
        used_bytes: u64::try_from(used_kib).ok()? << 10,
        priority: i32::try_from(priority).ok()?,
    })
}

/// The swap area on the block device `device`, if its path leads to the device here.
pub fn area_on(device: DeviceNumber) -> Result<Option<SwapArea>, SysError> {
    Ok(areas()?.into_iter().find(|area| number_of(&area.path) == Some(device)))
}

/// A swap area that fills a block device of `device_bytes` and whose path leads to no device here, because swapon was
/// called in another mount namespace. If there are several, the fullest.
pub fn area_elsewhere(device_bytes: u64) -> Result<Option<SwapArea>, SysError> {
    let is_elsewhere = |area: &SwapArea| number_of(&area.path).is_none();
    Ok(areas()?.into_iter().filter(|a| a.fills(device_bytes) && is_elsewhere(a)).max_by_key(|a| a.used_bytes))
}

impl SwapArea {
    /// Whether it is all of a block device of `device_bytes`.
    fn fills(&self, device_bytes: u64) -> bool {
        self.is_device && self.len_bytes.checked_add(HEADER_BYTES) == Some(device_bytes)
    }
}

fn number_of(path: &Path) -> Option<DeviceNumber> {
    let meta = std::fs::metadata(path).ok().filter(|m| m.file_type().is_block_device())?;
    Some(DeviceNumber::from_dev_t(meta.rdev()))
}

/// The space for the contents of a swap area.
pub fn room_without(area: &SwapArea) -> Result<SwapRoom, SysError> {
    let others = areas()?.into_iter().filter(|other| other.path != area.path);
    Ok(SwapRoom {
        used_bytes: area.used_bytes,
        available_bytes: memory_available_bytes()?,
        other_swap_bytes: others.map(|a| a.len_bytes.saturating_sub(a.used_bytes)).sum(),
    })
}

/// The kernel's estimate of the memory that is available without swapping (`MemAvailable`), bytes.
pub fn memory_available_bytes() -> Result<u64, SysError> {
    const PATH: &str = "/proc/meminfo";
    let text = std::fs::read(PATH).map_err(|e| SysError::io(format!("reading {PATH}"), &e))?;
    mem::available_kib(&text)
        .map(|kib| kib << 10)
        .ok_or_else(|| SysError::new(format!("finding MemAvailable in {PATH}"), libc::ENODATA))
}

/// Starts swapping to `path`, which must hold a swap header, with the priority that the kernel chooses.
pub fn swapon(path: &Path) -> Result<(), SysError> {
    let (what, path) = c_path("swapon", path)?;
    // SAFETY: the path is a C string that outlives the call.
    done(unsafe { libc::swapon(path.as_ptr(), 0) }, || what)
}

/// Stops swapping to `path` and reads its contents back. May take long, and may fail with ENOMEM.
pub fn swapoff(path: &Path) -> Result<(), SysError> {
    let (what, path) = c_path("swapoff", path)?;
    // SAFETY: the path is a C string that outlives the call.
    done(unsafe { libc::swapoff(path.as_ptr()) }, || what)
}

/// Returns the operation on a path for messages, and the path for `libc`.
fn c_path(operation: &str, path: &Path) -> Result<(String, CString), SysError> {
    let what = format!("{operation} {}", path.display());
    match CString::new(path.as_os_str().as_bytes()) {
        Ok(path) => Ok((what, path)),
        Err(_) => Err(SysError::new(what, libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_area_reads_what_the_kernel_prints() {
        let line = b"/dev/loop0                              partition\t65532\t\t1024\t\t-2";
        let want = SwapArea {
            path: "/dev/loop0".into(),
            is_device: true,
            len_bytes: 65532 << 10,
            used_bytes: 1 << 20,
            priority: -2,
        };
        assert!(want.fills(64 << 20) && !want.fills(65532 << 10) && !want.fills(128 << 20));
        assert_eq!(parse_area(line), Some(want));
        let spaced = parse_area(b"/swap\\040file file 1 0 5").unwrap();
        assert!(!spaced.is_device && !spaced.fills(1024 + HEADER_BYTES));
        assert_eq!((spaced.path, spaced.priority), ("/swap file".into(), 5));
        for cut in ["", "/dev/loop0 partition 1 2", "/x file a b c", "/x file -1 0 0"] {
            assert_eq!(parse_area(cut.as_bytes()), None, "{cut}");
        }
    }

    #[test]
    fn fits_counts_memory_other_swap_and_the_margin() {
        let room = |used_bytes, available_bytes, other_swap_bytes| {
            SwapRoom { used_bytes, available_bytes, other_swap_bytes }.fits()
        };
        assert!(room(0, MARGIN_BYTES, 0));
        assert!(!room(1, MARGIN_BYTES, 0));
        assert!(room(1, MARGIN_BYTES, 1));
        assert!(!room(u64::MAX, 1, 1));
    }

    #[test]
    fn available_memory_is_below_the_total() {
        let available = memory_available_bytes().unwrap();
        assert!(available > 0 && available <= crate::mem::total_bytes());
    }
}
