//! The mount table of the mount namespace of the calling thread.
//!
//! It is read from `/proc/thread-self/mountinfo`, which does not access the file systems themselves: a dead FUSE mount is
//! listed like any other, while `stat` on it would fail. proc_pid_mountinfo(5) describes the format.
//!
//! Mounts in other mount namespaces are not visible here.

use crate::SysError;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A device number, as `major:minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// The major number: the driver.
    pub major: u32,
    /// The minor number: the device of that driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Decodes a `dev_t` as user space and `stat` encode it.
    pub fn from_dev_t(dev: u64) -> Self {
        DeviceNumber { major: rustix::fs::major(dev), minor: rustix::fs::minor(dev) }
    }
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The device number that `stat` reports for files on it.
    pub device: DeviceNumber,
    /// The directory on which it is mounted.
    pub mount_point: PathBuf,
    /// The file system type, such as `ext4` or `fuse`.
    pub fs_type: String,
    /// The mount's source: the path of a device, or any text for file systems without a device.
    pub source: OsString,
}

/// All mounts, in the order in which they were made.
pub fn all() -> Result<Vec<Mount>, SysError> {
    // A thread may have another mount namespace than its process.
    const PATH: &str = "/proc/thread-self/mountinfo";
    let text = std::fs::read(PATH).map_err(|e| SysError::io(format!("reading {PATH}"), &e))?;
    // Lines in an unknown format are left out.
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at `mount_point`, an absolute path without symbolic links.
pub fn at(mount_point: &Path) -> Result<Option<Mount>, SysError> {
    Ok(all()?.into_iter().rev().find(|m| m.mount_point == mount_point))
}

/// A directory to mount on, as an absolute path without symbolic links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountPoint {
    /// No file system is mounted on it.
    Free(PathBuf),
    /// A file system is mounted on it.
    Taken(PathBuf),
}

/// Checks an existing directory on which a file system is to be mounted.
pub fn mount_point(path: &Path) -> Result<MountPoint, SysError> {
    let what = || format!("looking at the mount point {}", path.display());
    let path = path.canonicalize().map_err(|e| SysError::io(what(), &e))?;
    if !path.is_dir() {
        return Err(SysError::new(what(), libc::ENOTDIR));
    }
    Ok(match at(&path)? {
        None => MountPoint::Free(path),
        Some(_) => MountPoint::Taken(path),
    })
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let device = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let mount_point = unescape(fields.nth(1)?).into();
    // A hyphen ends the optional fields, of which there may be any number.
    fields.find(|f| *f == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mount { device, mount_point, fs_type, source: unescape(fields.next()?) })
}

/// Decodes the kernel's octal escapes (`\040`) of space, tab, newline and backslash.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = rest.get(1..4).filter(|_| first == b'\\').and_then(octal);
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &rest[4..] } else { tail };
    }
    OsString::from_vec(out)
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_optional_fields_and_escapes() {
        let line = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 shared:2 - ext3 /dev/my\\134disk rw";
        let want = Mount {
            device: DeviceNumber { major: 98, minor: 0 },
            mount_point: "/mnt/a b".into(),
            fs_type: "ext3".into(),
            source: "/dev/my\\disk".into(),
        };
        assert_eq!(parse(line), Some(want));
        for cut in ["", "36 35 98:0 /", "36 35 98 / /mnt rw - ext3 x rw", "36 35 98:0 / /mnt rw ext3 x rw"] {
            assert_eq!(parse(cut.as_bytes()), None, "{cut}");
        }
    }

    #[test]
    fn unescape_keeps_other_backslashes() {
        assert_eq!(unescape(b"\\04"), "\\04");
        assert_eq!(unescape(b"\\xyz\\"), "\\xyz\\");
        assert_eq!(unescape(b"\\011"), "\t");
    }

    #[test]
    fn proc_is_mounted_where_it_is_read_from() {
        assert_eq!(at(Path::new("/proc")).unwrap().unwrap().fs_type, "proc");
        assert_eq!(at(Path::new("/proc/self")).unwrap(), None);
    }

    #[test]
    fn device_numbers_survive_encoding() {
        for number in [DeviceNumber { major: 7, minor: 300 }, DeviceNumber { major: 0, minor: 0xabcde }] {
            assert_eq!(DeviceNumber::from_dev_t(rustix::fs::makedev(number.major, number.minor)), number);
        }
    }
}
