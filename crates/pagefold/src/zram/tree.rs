//! `zram-tree`.

use super::{check_privileges, mount_failed, running_disks};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::RuntimeDir;
use pagefold_sys::signal::Termination;
use pagefold_sys::{fusedev, ready};
use pagefold_zram::tree::{self, Sysfs};
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
    let mut mount = tree::mount(disks, sysfs, &args.directory).map_err(|e| mount_failed(&e))?;
    let is_mounted = || fusedev::device_at(mount.path()).ok() == Some(mount.device());
    while is_mounted() {
        if ready::wait([signals.as_fd()], Some(CHECK_INTERVAL))? == [true] {
            break;
        }
    }
    mount.stop().map_err(|e| CliError::failed(e.to_string()))
}
