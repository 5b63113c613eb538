//! `image unmount`.
//!
//! Unmounting ends the FUSE session, and the server exits. The command waits for that, and cleans up after a server
//! that died.

use super::find;
use crate::cli::each::each;
use crate::cli::output;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::mounts as served_mounts;
use pagefold_control::instance::{InstanceDir, RuntimeDir};
use pagefold_image::mount::MOUNT_NAME;
use pagefold_sys::fusermount::{self, HelperError};
use pagefold_sys::{SysError, fusedev, mounts};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the server may take to exit after unmounting.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);
/// The same with `--force`, which then kills it.
const FORCE_TIMEOUT: Duration = Duration::from_secs(3);

/// The arguments of `image unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// Directories that images are mounted on, or the images
    #[arg(value_name = "MOUNT", value_hint = ValueHint::AnyPath, required_unless_present = "all", conflicts_with = "all")]
    pub mounts: Vec<PathBuf>,
    /// Unmount all images that have a server. Those that the kernel mounted are named each
    #[arg(long)]
    pub all: bool,
    /// Unmount an image even if it is in use, and kill a server that does not exit. Programs that use it get errors
    #[arg(long)]
    pub force: bool,
}

/// Unmounts images. A failure does not stop the unmounting of the others.
pub fn run(args: &UnmountArgs) -> Result<()> {
    let mounts = if args.all { served_mounts::mount_points()? } else { args.mounts.clone() };
    each(&mounts, "images were not unmounted", |mount| unmount(&find::mount_point(mount)?, args.force))
}

/// Unmounts an image, and waits until its server has exited.
fn unmount(path: &Path, force: bool) -> Result<()> {
    let found = match mounts::at(path)? {
        Some(found) => found,
        None => return unmounted_before(path, force),
    };
    if found.fs_type == "erofs" {
        return umount(path, force).map_err(|e| failed(path, &e));
    }
    if found.fs_type != format!("fuse.{MOUNT_NAME}") {
        return Err(find::not_found(path));
    }
    // A refused runtime folder is reported before the image is unmounted: without it nothing could be cleaned up.
    RuntimeDir::open_images()?;
    let abort = force || served_mounts::is_dead(path)?;
    let result = if abort { fusedev::abort_and_unmount(path) } else { umount(path, false) };
    match result {
        Err(e) if e.errno == libc::EPERM => unmount_by_helper(path, abort)?,
        result => result.map_err(|e| failed(path, &e))?,
    }
    wait_for_server(path, force)
}

/// Cleans up after an image that was unmounted in another way.
fn unmounted_before(path: &Path, force: bool) -> Result<()> {
    match served_mounts::find(|state| state.mount_point == path)?.is_empty() {
        // Its server died.
        true => wait_for_server(path, false),
        false if force => wait_for_server(path, true),
        false => {
            let path = path.display();
            let what =
                format!("'{path}' is unmounted, but programs still use files of it; --force ends its server");
            Err(CliError::new(Exit::Busy, what))
        }
    }
}

/// Unmounts a file system. A loop device that `mount --kernel` made has LO_FLAGS_AUTOCLEAR, and is detached with it.
fn umount(path: &Path, force: bool) -> Result<(), SysError> {
    use rustix::mount::{UnmountFlags, unmount};
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let result = unmount(path, flags | UnmountFlags::NOFOLLOW);
    result.map_err(|e| SysError::new(format!("unmounting '{}'", path.display()), e.raw_os_error()))
}

fn failed(path: &Path, e: &SysError) -> CliError {
    match e.errno {
        libc::EBUSY => in_use(path),
        libc::EPERM => CliError::new(Exit::Unavailable, format!("{e}; run as root")),
        _ => CliError::failed(e.to_string()),
    }
}

fn in_use(path: &Path) -> CliError {
    CliError::new(
        Exit::Busy,
        format!(
            "'{0}' is in use; 'fuser -vm {0}' lists the users, and --force unmounts it nevertheless",
            path.display()
        ),
    )
}

fn kill(path: &Path, dir: &InstanceDir) -> Result<()> {
    let seconds = FORCE_TIMEOUT.as_secs();
    output::note(&format!("the server of '{}' has not exited after {seconds} s; killing it", path.display()));
    dir.processes()?.kill()
}

/// Unmounts with fusermount3, for users without the privilege to unmount.
fn unmount_by_helper(path: &Path, abort: bool) -> Result<()> {
    let result = if abort { fusermount::abort_and_unmount(path) } else { fusermount::unmount(path, false) };
    result.map_err(|e| match e {
        e if e.is_busy() => in_use(path),
        HelperError::Missing(_) => {
            CliError::new(Exit::Unavailable, format!("unmounting '{}' needs root: {e}", path.display()))
        }
        e => CliError::failed(format!("unmounting '{}': {e}", path.display())),
    })
}

/// Waits until the server has exited, and cleans up after one that died. With `force` it is killed after a timeout;
/// nobody uses it any more.
fn wait_for_server(path: &Path, force: bool) -> Result<()> {
    let start = Instant::now();
    let mut killed = false;
    loop {
        let left = served_mounts::find(|state| state.mount_point == path)?;
        if left.is_empty() {
            break;
        }
        if force && !killed && start.elapsed() > FORCE_TIMEOUT {
            killed = true;
            left.iter().try_for_each(|(dir, _)| kill(path, dir))?;
        }
        if start.elapsed() > EXIT_TIMEOUT {
            let why = match killed {
                true => "it was killed, and has not exited yet",
                false => {
                    "files are open, another mount namespace has the mount, or the server hangs; --force kills it"
                }
            };
            return Err(CliError::failed(format!(
                "'{}' is unmounted, but its server is still running: {why}",
                path.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    match RuntimeDir::open_images()? {
        Some(runtime) => served_mounts::sweep(&runtime.lock()?, output::note),
        None => Ok(()),
    }
}
