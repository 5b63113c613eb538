//! The commands that show disks behind the files of the kernel's zram.
//!
//! | module | contents |
//! |---|---|
//! | `tree` | `zram-tree`: the files at a directory |
//! | `shell` | `zram-shell`: a command for which they are where the kernel has them |
//! | `followed` | the disks of a shell, whose devices follow those that other commands create and remove |
//! | `namespace` | the thread with the mounts of the shell |
//! | `devices` | the part of it that follows the disks: their nodes and directories |
//! | `modules` | the programs that stand for modprobe and rmmod |

mod devices;
mod followed;
mod modules;
mod namespace;
mod shell;
mod tree;

pub use shell::{ShellArgs, run as run_shell};
pub use tree::{TreeArgs, run as run_tree};

use crate::cli::output;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_fuse::FuseError;
use pagefold_sys::signal::Termination;
use pagefold_zram::disks::RunningDisks;
use std::sync::Arc;

/// Fails if this user or this machine cannot have loop devices over FUSE.
fn check_privileges(command: &str) -> Result<()> {
    match (ExportKind::Loop.facts().unavailable_reason)() {
        None => Ok(()),
        Some(reason) => {
            Err(CliError::new(Exit::Unavailable, format!("{command} cannot be used here: {reason}")))
        }
    }
}

/// The disks of this user. The sentence of an error, for which a file can only return a number, is printed as a note.
fn running_disks(signals: Arc<Termination>) -> RunningDisks {
    RunningDisks::new(signals, output::note)
}

/// The error of a tree that was not mounted or not served.
fn mount_failed(e: &FuseError) -> CliError {
    let exit = match e {
        FuseError::Taken { .. } => Exit::Busy,
        FuseError::Open(_) | FuseError::Mount(_) | FuseError::Unsupported(_) => Exit::Unavailable,
        FuseError::System(e) if e.errno == libc::ENOENT || e.errno == libc::ENOTDIR => Exit::NotFound,
        _ => Exit::Failed,
    };
    CliError::new(exit, e.to_string())
}
