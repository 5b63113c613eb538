//! `pagefold image`: what can be done with an image.

mod kernel;
mod live;
mod mount;
mod unmount;

use crate::failure::Outcome;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// The commands on images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Mount an image, to be read by all programs
    ///
    /// Returns when its files can be read, and leaves a server process. That reads within --memory, whatever
    /// is asked of it, and ends when the image is unmounted: by `image unmount`, or by umount(8). If
    /// it is killed, every access fails; `image unmount`, or the next `image mount`, then clears up.
    ///
    /// Nothing can be written. Set-user-id bits and device nodes of the image have no effect.
    ///
    /// Mounting needs root, or the program fusermount3.
    Mount(Box<mount::MountArgs>),
    /// Show what the server of a mounted image does, and what that costs
    Show(ShowArgs),
    /// Unmount an image that is mounted here
    Unmount(unmount::UnmountArgs),
}

/// `image show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The image, or where it is mounted
    #[arg(value_name = "IMAGE|DIR", value_hint = ValueHint::AnyPath)]
    pub target: PathBuf,
    /// Ask the server that has it mounted
    #[arg(long, required = true)]
    pub live: bool,
    /// Print JSON with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(command: &ImageCommand) -> Outcome<()> {
    match command {
        ImageCommand::Mount(args) => mount::run(args),
        ImageCommand::Show(args) => live::run(&args.target, args.json),
        ImageCommand::Unmount(args) => unmount::run(args),
    }
}
