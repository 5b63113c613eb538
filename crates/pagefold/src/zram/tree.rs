//! `zram-tree`.

use super::{check_privileges, mount_failed, running_disks};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::RuntimeDir;
use pagefold_fuse::{OwnedMount, free_directory, mount_here};
use pagefold_sys::signal::Termination;
use pagefold_sys::{fusedev, ready};
use pagefold_zram::tree::{self, Sysfs, TreeProcess};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often the command checks whether its mount is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The arguments of `zram-tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// An existing directory to mount the tree at
    #[arg(value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
}

/// Serves the tree until a signal or an unmount.
pub fn run(args: &TreeArgs) -> Result<()> {
    check_privileges("zram-tree")?;
    let signals = Arc::new(Termination::listen()?);
    // Reports an unusable runtime folder now, and not at each access.
    RuntimeDir::open_or_create()?;
    let sysfs = Sysfs { real: "/sys".into(), links_to: "/sys".into() };
    let disks = Arc::new(running_disks(signals.clone()));
    let real = sysfs.real.clone();
    let mounted = free_directory(&args.directory).and_then(|path| mount_here(path, &tree::request()));
    let (channel, mut mount) = mounted.map_err(|e| mount_failed(&e))?;
    let process = TreeProcess::start(channel, sysfs)?;
    process.serve(disks, &real)?;
    let is_mounted = |mount: &dyn OwnedMount| fusedev::device_at(mount.path()).ok() == Some(mount.device());
    let mut died = None;
    while is_mounted(&*mount) && died.is_none() {
        if ready::wait([signals.as_fd()], Some(CHECK_INTERVAL))? == [true] {
            break;
        }
        died = process.wait(Duration::ZERO)?;
    }
    let was_mounted = is_mounted(&*mount);
    mount.unmount().map_err(|e| CliError::failed(e.to_string()))?;
    match died.filter(|_| was_mounted) {
        None => Ok(()),
        Some(end) => Err(CliError::failed(format!("the process that serves the tree has died: {end:?}"))),
    }
}
