//! `image restart`.

use super::find;
use crate::cli::each::each;
use clap::{Args, ValueHint};
use pagefold_control::error::Result;
use pagefold_control::instance::mounts as served_mounts;
use std::path::{Path, PathBuf};

/// The arguments of `image restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// Directories that images are mounted on, or the images
    #[arg(value_name = "MOUNT", value_hint = ValueHint::AnyPath, required_unless_present = "all", conflicts_with = "all")]
    pub mounts: Vec<PathBuf>,
    /// Replace the servers of all mounted images
    #[arg(long)]
    pub all: bool,
}

/// Replaces servers by ones of this program. A failure does not stop the others.
pub fn run(args: &RestartArgs) -> Result<()> {
    let mounts = if args.all { served_mounts::mount_points()? } else { args.mounts.clone() };
    each(&mounts, "servers were not replaced", |mount| restart(&find::mount_point(mount)?))
}

fn restart(point: &Path) -> Result<()> {
    let found = served_mounts::find(|state| state.mount_point == point)?;
    match found.first() {
        Some((dir, _)) => dir.restart(),
        None => Err(super::stats::no_server(point)?),
    }
}
