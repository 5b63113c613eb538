//! `fusermount3`: the program that mounts FUSE file systems for users without the right to, and unmounts them.
//!
//! It is set-user-id root and belongs to libfuse (package fuse3). It opens `/dev/fuse`, mounts, and sends the channel over a
//! socket whose number it finds in an environment variable; libfuse's own callers do the same. Its refusals are
//! sentences on its standard error, and come back as such. With root's rights, `fusedev` is the way.

use crate::mounts::{self, DeviceNumber};
use crate::{SysError, fusedev, handover};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";
/// Where it looks for the number of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Why it did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// It cannot be started.
    #[error("starting {PROGRAM} (package fuse3), which mounts for users who are not root: {0}")]
    Missing(SysError),
    /// It said no.
    #[error("{reason}")]
    Refused {
        /// Its own words, which begin with its name.
        reason: String,
    },
    /// Something about talking to it.
    #[error(transparent)]
    System(#[from] SysError),
}

impl HelperError {
    /// Whether it refused because the mount is in use.
    pub fn is_busy(&self) -> bool {
        // In the C locale, in which it is run.
        matches!(self, HelperError::Refused { reason } if reason.contains("Device or resource busy"))
    }
}

/// Mounts at `mount_point` with the mount options `options`, and returns the channel that is to be served.
pub fn mount(mount_point: &Path, options: &str) -> Result<File, HelperError> {
    let pair = UnixStream::pair().map_err(|e| SysError::io("making a pair of sockets", &e))?;
    let (ours, theirs) = pair;
    let mut command = command();
    // Its standard input is the socket: a descriptor that it inherits without ado.
    command.args(["-o", options, "--"]).arg(mount_point).env(SOCKET_VARIABLE, "0");
    let child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(|e| missing(&e))?;
    // Else the socket would not end with the program.
    drop(command);
    let received = handover::recv_fd(&ours);
    let output = child.wait_with_output().map_err(|e| SysError::io(format!("waiting for {PROGRAM}"), &e))?;
    match received? {
        Some(channel) => Ok(channel.into()),
        None => Err(refused(&output.stderr)),
    }
}

/// Unmounts what the calling user has mounted at `mount_point`; `lazily` although it is in use, so that nobody new gets in.
pub fn unmount(mount_point: &Path, lazily: bool) -> Result<(), HelperError> {
    let mut command = command();
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mount_point).stdin(Stdio::null());
    let output = command.spawn().and_then(|child| child.wait_with_output()).map_err(|e| missing(&e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(refused(&output.stderr)),
    }
}

/// Breaks the connection to the server and unmounts, in use or not. For a mount whose server is dead, or to be ignored.
///
/// The connection is broken where the kernel shows it (a mounted fusectl); elsewhere, who has files of it open is served on.
pub fn abort_and_unmount(mount_point: &Path) -> Result<(), HelperError> {
    let Some(mount) = mounts::at(mount_point)? else { return Ok(()) };
    abort(mount.device);
    match unmount(mount_point, true) {
        // A server whose connection ends may have unmounted it meanwhile.
        Err(_) if mounts::at(mount_point)?.is_none_or(|now| now.device != mount.device) => Ok(()),
        outcome => outcome,
    }
}

/// Breaks the connection of a FUSE mount of the calling user's, as far as the kernel lets it.
fn abort(device: DeviceNumber) {
    // Connections are named by the minor number of their file system's device.
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", device.minor), "1");
}

fn command() -> Command {
    let mut command = Command::new(PROGRAM);
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn missing(e: &std::io::Error) -> HelperError {
    HelperError::Missing(SysError::io(format!("'{PROGRAM}'"), e))
}

fn refused(stderr: &[u8]) -> HelperError {
    let said = String::from_utf8_lossy(stderr).trim().replace('\n', "; ");
    let reason = if said.is_empty() { format!("{PROGRAM} failed without a word") } else { said };
    HelperError::Refused { reason }
}

/// A FUSE mount that the program made for this process, taken away on drop.
#[derive(Debug)]
pub struct HelperMount {
    path: PathBuf,
    device: DeviceNumber,
}

impl HelperMount {
    /// Mounts as [`mount`]. `path` is absolute and free of links.
    pub fn new(path: PathBuf, options: &str) -> Result<(File, Self), HelperError> {
        let channel = mount(&path, options)?;
        match fusedev::device_at(&path) {
            Ok(device) => Ok((channel, HelperMount { path, device })),
            Err(e) => {
                let _ = abort_and_unmount(&path);
                Err(e.into())
            }
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Aborts and unmounts it, in use or not, and nothing that was not mounted here. Can be repeated.
    pub fn unmount(&mut self) -> Result<(), HelperError> {
        // The path may carry another mount by now, or none.
        match fusedev::device_at(&self.path) {
            Ok(device) if device == self.device => abort_and_unmount(&self.path),
            _ => Ok(()),
        }
    }
}

impl Drop for HelperMount {
    fn drop(&mut self) {
        // Whoever wants to know calls `unmount` first; here there is nobody to tell.
        let _ = self.unmount();
    }
}
