//! Mounting and unmounting FUSE file systems with the program `fusermount3`, for users who are not root.
//!
//! `fusermount3` is set-user-id root and belongs to libfuse (package fuse3). It opens `/dev/fuse`, mounts, and sends
//! the descriptor over a socket whose number is in an environment variable; libfuse uses it in the same way. It reports
//! errors as text on its standard error, and this module returns that text. Root uses the module `fusedev` instead.

use crate::mounts::{self, DeviceNumber};
use crate::privileges::{self, CapabilitySet};
use crate::{SysError, fusedev, handover};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";
const UMOUNT: &str = "umount";
/// The environment variable from which `fusermount3` reads the number of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Why `fusermount3` did not mount or unmount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// The program cannot be started.
    #[error("starting {PROGRAM} (package fuse3), which mounts for users who are not root: {0}")]
    Missing(SysError),
    /// The program failed.
    #[error("{reason}")]
    Refused {
        /// Its standard error, which begins with its name.
        reason: String,
    },
    /// A system call of this process failed.
    #[error(transparent)]
    System(#[from] SysError),
}

impl HelperError {
    /// Whether the program failed because the mount is in use.
    pub fn is_busy(&self) -> bool {
        // The program runs in the C locale, so this text is not translated.
        matches!(self, HelperError::Refused { reason } if reason.contains("Device or resource busy") || reason.contains("target is busy"))
    }
}

/// Whether this process mounts with the program: it is not root and has no capability to mount, as in a sandbox that grants
/// CAP_SYS_ADMIN to another user than root.
pub fn is_needed() -> bool {
    !rustix::process::geteuid().is_root() && !privileges::has_capability(CapabilitySet::SYS_ADMIN)
}

/// Mounts at `mount_point` with the mount options `options`. Returns the channel from which the server reads requests.
pub fn mount(mount_point: &Path, options: &str) -> Result<File, HelperError> {
    let pair = UnixStream::pair().map_err(|e| SysError::io("making a pair of sockets", &e))?;
    let (ours, theirs) = pair;
    let mut command = command(PROGRAM);
    // The socket is the program's standard input, a descriptor that a child always inherits.
    command.args(["-o", options, "--"]).arg(mount_point).env(SOCKET_VARIABLE, "0");
    let child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(|e| missing(&e))?;
    // Close this process's copy of the program's socket, so that `recv_fd` sees the end of the program.
    drop(command);
    let received = handover::recv_fd(&ours);
    let output = child.wait_with_output().map_err(|e| SysError::io(format!("waiting for {PROGRAM}"), &e))?;
    match received? {
        Some(channel) => Ok(channel.into()),
        None => Err(refused(&output.stderr)),
    }
}

/// Unmounts the calling user's mount at `mount_point`. With `lazily`, a mount in use is detached, so that only
/// processes that use it already can access it.
///
/// `fusermount3` unmounts only what is in `/etc/mtab`, which some systems do not have. The set-user-id program `umount` of
/// util-linux, which reads the kernel's table, unmounts FUSE mounts of the calling user too, so it is tried next.
pub fn unmount(mount_point: &Path, lazily: bool) -> Result<(), HelperError> {
    let first = unmount_by(command(PROGRAM), &["-u"], lazily.then_some("-z"), mount_point);
    match first {
        Err(error) if !error.is_busy() => {
            let other = unmount_by(command(UMOUNT), &["-i"], lazily.then_some("-l"), mount_point);
            other.map_err(|other| if other.is_busy() { other } else { error })
        }
        result => result,
    }
}

fn unmount_by(
    mut command: Command,
    options: &[&str],
    lazily: Option<&str>,
    mount_point: &Path,
) -> Result<(), HelperError> {
    command.args(options).args(lazily).arg("--").arg(mount_point).stdin(Stdio::null());
    let output = command.spawn().and_then(|child| child.wait_with_output()).map_err(|e| missing(&e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(refused(&output.stderr)),
    }
}

/// Aborts the connection to the server and unmounts, even if the mount is in use. For a mount whose server is dead or
/// must be ignored.
///
/// Aborting needs a mounted fusectl file system. Without one, the server goes on serving processes with open files.
pub fn abort_and_unmount(mount_point: &Path) -> Result<(), HelperError> {
    let Some(mount) = mounts::at(mount_point)? else { return Ok(()) };
    fusedev::abort_by_control(mount.device);
    match unmount(mount_point, true) {
        // The server may have unmounted it meanwhile, when its connection ended.
        Err(_) if mounts::at(mount_point)?.is_none_or(|now| now.device != mount.device) => Ok(()),
        result => result,
    }
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn missing(e: &std::io::Error) -> HelperError {
    HelperError::Missing(SysError::io(format!("'{PROGRAM}'"), e))
}

fn refused(stderr: &[u8]) -> HelperError {
    let message = String::from_utf8_lossy(stderr).trim().replace('\n', "; ");
    let reason = if message.is_empty() { format!("{PROGRAM} failed without a message") } else { message };
    HelperError::Refused { reason }
}

/// A FUSE mount of this process. Dropping it aborts the connection and unmounts.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    device: DeviceNumber,
    is_by_helper: bool,
}

impl Mounted {
    /// Mounts as [`fusedev::mount`] does. `path` is absolute and free of symbolic links.
    pub fn new(channel: &File, path: PathBuf, request: &fusedev::Request<'_>) -> Result<Self, SysError> {
        fusedev::mount(channel, &path, request)?;
        Self::of_new(path, false)
    }

    /// Mounts as [`mount`] does. `path` is absolute and free of symbolic links.
    pub fn by_helper(path: PathBuf, options: &str) -> Result<(File, Self), HelperError> {
        let channel = mount(&path, options)?;
        Ok((channel, Self::of_new(path, true)?))
    }

    /// The mount that another process of this program has made, and does not unmount any more.
    pub fn taken_over(path: PathBuf, device: DeviceNumber, is_by_helper: bool) -> Self {
        Mounted { path, device, is_by_helper }
    }

    /// Leaves the mount to another process.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    fn of_new(path: PathBuf, is_by_helper: bool) -> Result<Self, SysError> {
        match fusedev::device_at(&path) {
            Ok(device) => Ok(Mounted { path, device, is_by_helper }),
            Err(e) => {
                let _ = abort_and_unmount_as(&path, is_by_helper);
                Err(e)
            }
        }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device number of the file system.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// Whether `fusermount3` has made it.
    pub fn is_by_helper(&self) -> bool {
        self.is_by_helper
    }

    /// Aborts the connection and unmounts, even if the mount is in use. It may be called again.
    ///
    /// Does nothing if another file system, or none, is mounted at the path by now (compared by device number); a mount
    /// of ours below it then stays.
    pub fn unmount(&mut self) -> Result<(), HelperError> {
        match fusedev::device_at(&self.path) {
            Ok(device) if device == self.device => abort_and_unmount_as(&self.path, self.is_by_helper),
            _ => Ok(()),
        }
    }
}

fn abort_and_unmount_as(mount_point: &Path, is_by_helper: bool) -> Result<(), HelperError> {
    match is_by_helper {
        true => abort_and_unmount(mount_point),
        false => Ok(fusedev::abort_and_unmount(mount_point)?),
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A caller that needs the error calls `unmount` itself.
        let _ = self.unmount();
    }
}
