//! The mount table of the mount namespace of the calling thread.
//!
//! It is read from `/proc/thread-self/mountinfo`, which does not access the file systems themselves: a dead FUSE mount is
//! listed like any other, while `stat` on it would fail. proc_pid_mountinfo(5) describes the format.
//!
//! Mounts in other mount namespaces are not visible here.

use crate::SysError;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The type of mount points that wait for a file system until a program uses them: autofs(5), and `x-systemd.automount`.
const AUTOFS: &str = "autofs";

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

/// The file system that is mounted at `mount_point`, an absolute path without symbolic links, and keeps others from being
/// mounted there. One of autofs does not: it waits for another one.
pub fn occupant(mount_point: &Path) -> Result<Option<Mount>, SysError> {
    Ok(at(mount_point)?.filter(|mount| mount.fs_type != AUTOFS))
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
    match at(&path)? {
        // A look at it would wait for the mount.
        Some(mount) if mount.fs_type == AUTOFS => Ok(MountPoint::Free(path)),
        Some(_) => Ok(MountPoint::Taken(path)),
        None if path.is_dir() => Ok(MountPoint::Free(path)),
        None => Err(SysError::new(what(), libc::ENOTDIR)),
    }
}

/// An open directory to mount on. A file system is mounted on this directory, whatever has its path by then: a user who
/// controls a folder of the path could have replaced it by a symbolic link to another directory since it was checked.
#[derive(Debug)]
pub struct MountTarget(OwnedFd);

impl MountTarget {
    /// Opens the directory at `path`, an absolute path without symbolic links. Fails if a link is in the path.
    pub fn open(path: &Path) -> Result<Self, SysError> {
        let failed =
            |e: Errno| SysError::new(format!("opening the mount point {}", path.display()), e.raw_os_error());
        // With O_DIRECTORY, a mount point of autofs would wait for the mount.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = MountTarget(fs::open(path, flags, Mode::empty()).map_err(failed)?);
        let kind =
            fs::fstat(&target.0).map(|stat| fs::FileType::from_raw_mode(stat.st_mode)).map_err(failed)?;
        if kind != fs::FileType::Directory {
            return Err(failed(Errno::NOTDIR));
        }
        // The kernel knows by which path the directory is reached.
        let found = fs::readlink(target.path(), Vec::new()).map_err(failed)?;
        match found.as_bytes() == path.as_os_str().as_bytes() {
            true => Ok(target),
            false => Err(failed(Errno::LOOP)),
        }
    }

    /// A path by which this process, while it has the target, mounts on the directory.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
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
    fn a_mount_target_is_not_reached_through_links() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let (real, link) = (top.join("real"), top.join("link"));
        std::fs::create_dir_all(real.join("at")).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let target = MountTarget::open(&real.join("at")).unwrap();
        assert_eq!(target.path().canonicalize().unwrap(), real.join("at"));
        for path in [link.clone(), link.join("at"), real.join("nothing"), real.join("..").join("real")] {
            assert!(MountTarget::open(&path).is_err(), "{path:?}");
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
