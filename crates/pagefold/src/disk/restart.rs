//! `disk restart`.

use super::find::{self, Found};
use crate::cli::each::each;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};

/// The arguments of `disk restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// Name, device or mount point of the disk. Can be repeated
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub disks: Vec<String>,
    /// Replace the servers of all disks
    #[arg(long)]
    pub all: bool,
}

/// Replaces servers by ones of this program. A failure does not stop the others.
pub fn run(args: &RestartArgs) -> Result<()> {
    let disks = if args.all { find::all_names()? } else { args.disks.clone() };
    each(&disks, "servers were not replaced", |disk| match find::find(disk)? {
        Found::Running(_, dir) => dir.restart(),
        // A note was printed about it.
        Found::Dead => Err(CliError::new(Exit::NotFound, format!("disk '{disk}' is gone"))),
    })
}
