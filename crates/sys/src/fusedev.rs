//! Mounting, aborting and unmounting a FUSE file system with the system calls themselves.
//!
//! Direct calls rather than the `fusermount` helper: the caller is root, learns the errno of each
//! step, and can undo each of them. Unless a [`Request`] says otherwise, a mount is what a private file
//! system needs: no devices, no set-user-id, no programs, and only the mounting user gets in.
//! Reference: fuse(4) and the kernel's Documentation/filesystems/fuse.rst.

use crate::SysError;
use crate::mounts::{self, DeviceNumber, Mount};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// The kernel's FUSE device.
pub const DEVICE: &str = "/dev/fuse";

/// Opens a new, unconnected FUSE channel.
pub fn open() -> Result<File, SysError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(|e| SysError::io(format!("opening {DEVICE}"), &e))
}

/// How a file system is mounted, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What the mount table shows after `fuse.` as the type.
    pub name: &'a str,
    /// What the mount table shows as the source.
    pub source: &'a OsStr,
    /// The longest read request, bytes.
    pub max_read_bytes: usize,
    /// Whether nothing can be written.
    pub read_only: bool,
    /// Whether users other than the mounting one get in. The kernel then checks modes, owners and lists.
    pub allow_other: bool,
    /// The kernel checks modes and owners. Otherwise it asks the server, and takes what that does not answer for allowed.
    pub checks_modes: bool,
    /// Whether programs on it can be run.
    pub programs: bool,
    /// Whether programs on it give the rights of their owner.
    pub suid: bool,
    /// Whether its device nodes lead to devices.
    pub devices: bool,
}

impl<'a> Request<'a> {
    /// A private file system that can be written to, named `name` in both places.
    pub fn private(name: &'a str, max_read_bytes: usize) -> Self {
        Request {
            name,
            source: OsStr::new(name),
            max_read_bytes,
            read_only: false,
            allow_other: false,
            checks_modes: false,
            programs: false,
            suid: false,
            devices: false,
        }
    }

    fn flags(&self) -> MountFlags {
        let unless = |allowed: bool, flag| if allowed { MountFlags::empty() } else { flag };
        let flags = MountFlags::NOATIME | unless(!self.read_only, MountFlags::RDONLY);
        let flags = flags | unless(self.programs, MountFlags::NOEXEC);
        flags | unless(self.suid, MountFlags::NOSUID) | unless(self.devices, MountFlags::NODEV)
    }
}

/// Mounts the file system that `channel` will serve at the directory `mount_point`.
///
/// The kernel's first request is then waiting in the channel.
pub fn mount(channel: &File, mount_point: &Path, request: &Request<'_>) -> Result<(), SysError> {
    let others = if request.allow_other { ",allow_other" } else { "" };
    let checks = if request.checks_modes { ",default_permissions" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={}{others}{checks}",
        channel.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        request.max_read_bytes,
    );
    let what = || format!("mounting a FUSE file system at {}", mount_point.display());
    let data = CString::new(data).map_err(|_| SysError::new(what(), libc::EINVAL))?;
    let fs_type = format!("fuse.{}", request.name);
    rustix::mount::mount(request.source, mount_point, fs_type, request.flags(), data.as_c_str())
        .map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// A FUSE mount of this process, taken away on drop.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    device: DeviceNumber,
}

impl Mounted {
    /// Mounts as [`mount`]. `path` is absolute and free of links.
    pub fn new(channel: &File, path: PathBuf, request: &Request<'_>) -> Result<Self, SysError> {
        mount(channel, &path, request)?;
        match device_at(&path) {
            Ok(device) => Ok(Mounted { path, device }),
            Err(e) => {
                let _ = abort_and_unmount(&path);
                Err(e)
            }
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device number of its files.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// Whether it is still there; the path may carry someone else's mount by now, or none.
    pub fn is_there(&self) -> bool {
        device_at(&self.path).is_ok_and(|device| device == self.device)
    }

    /// Aborts and unmounts it, in use or not, and nothing that was not mounted here. Can be repeated.
    pub fn unmount(&mut self) -> Result<(), SysError> {
        if self.is_there() { abort_and_unmount(&self.path) } else { Ok(()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever wants to know calls `unmount` first; here there is nobody to tell.
        let _ = self.unmount();
    }
}

/// Lets the kernel read ahead so far in files of a FUSE mount, KiB, beyond what it does by itself. Needs root.
pub fn set_read_ahead(device: DeviceNumber, kib: u64) -> Result<(), SysError> {
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    std::fs::write(&file, kib.to_string()).map_err(|e| SysError::io(format!("setting {file}"), &e))
}

/// The FUSE mount at `mount_point` if there is one and it was mounted as `name`.
///
/// The path is absolute and free of links; the file system is not touched, so it may be dead.
pub fn mounted(mount_point: &Path, name: &str) -> Result<Option<Mount>, SysError> {
    let found = mounts::at(mount_point)?;
    Ok(found.filter(|m| m.fs_type == format!("fuse.{name}") && m.source == name))
}

/// The device number of the file system that `path` is the root of, or lies on.
///
/// Answered from what the kernel knows, without asking a FUSE server and without a descriptor: works
/// when the server is dead, and when a process has run out of descriptors and must clean up.
pub fn device_at(path: &Path) -> Result<DeviceNumber, SysError> {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::INO) {
        Ok(found) => Ok(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor }),
        Err(e) => {
            Err(SysError::new(format!("asking which file system {} is on", path.display()), e.raw_os_error()))
        }
    }
}

/// Breaks the connection to the server: every waiting and later request fails.
///
/// The mount stays. Harmless if the server is dead, fatal to its users if it is not. This is the
/// way out for a process that waits for an answer that will not come, even one that is exiting.
pub fn abort(mount_point: &Path) -> Result<(), SysError> {
    match rustix::mount::unmount(mount_point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        // Busy: aborted, and still in use. Otherwise unmounted at once, which serves as well.
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(e) => {
            Err(SysError::new(format!("aborting the FUSE mount {}", mount_point.display()), e.raw_os_error()))
        }
    }
}

/// Breaks the connection as [`abort`] and takes the mount out of the tree, in use or not.
///
/// Nothing mounted there is success, so that it can be repeated.
pub fn abort_and_unmount(mount_point: &Path) -> Result<(), SysError> {
    use rustix::io::Errno;
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(e) => Err(SysError::new(
            format!("unmounting the FUSE mount {}", mount_point.display()),
            e.raw_os_error(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_is_forbidden() {
        let private = Request::private("x", 4096);
        let forbidden = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        assert_eq!(private.flags(), forbidden | MountFlags::NOATIME);
        let open = Request { read_only: true, programs: true, suid: true, devices: true, ..private };
        assert_eq!(open.flags(), MountFlags::RDONLY | MountFlags::NOATIME);
    }
}
