//! `pagefold image`: what can be done with an image.
//!
//! The work is done by `pagefold-image`; here are words and output. One file per command, with its arguments.
//!
//! | module | what |
//! |---|---|
//! | `names` | names of strangers, on terminals and in JSON |
//! | `open` | the arguments that all have in common, and opening |
//! | `list`, `cat`, `show`, `extract`, `check` | the commands on an image |
//! | `mount`, `unmount`, `kernel` | mounting, by a server of ours or the kernel |
//! | `live` | what the server of a mounted image says of itself |
//! | `overview` | what `show` says of an image and of a file, as JSON and as text |
//! | `limit` | how much of an image's contents is printed at most |
//! | `findings` | what is wrong, for people and in JSON |
//! | `tar` | `extract --tar` |

mod cat;
mod check;
mod extract;
mod file;
mod findings;
mod kernel;
mod limit;
mod list;
mod live;
mod mount;
mod names;
mod open;
mod overview;
mod show;
mod tamper;
mod tar;
mod unmount;

use crate::failure::Outcome;
use clap::Subcommand;

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
    /// Unmount an image that is mounted here
    Unmount(unmount::UnmountArgs),
    /// List files of an image
    List(list::ListArgs),
    /// Print the contents of files of an image
    ///
    /// Symbolic links are followed inside the image; nothing leads out of it.
    Cat(cat::CatArgs),
    /// Show what an image, or a file in it, is and how it is stored
    ///
    /// Without PATH: the super block, the first Linux that mounts it, and statistics of the tree, for which
    /// the metadata of all files is read. With PATH: the inode and the extents.
    ///
    /// With --live: what the server of a mounted image does, and what that costs. IMAGE is then the image or
    /// the directory that it is mounted on.
    Show(show::ShowArgs),
    /// Extract an image into a directory, or as a tar archive
    ///
    /// Files are made beneath DIR and nowhere else, whatever the image says; symbolic links are made and never
    /// followed. Files get their mode and times, and as root their owners. A file that fails does not
    /// keep the others back: it is left out, told, and the exit code is 1. Ctrl-C ends it early; then files that are
    /// there are complete.
    Extract(extract::ExtractArgs),
    /// Check an image: read and decode everything in it
    ///
    /// Looks at the super block, every inode, directory and attribute, and decodes the contents of every file. It goes on
    /// after something wrong. Exit code 0: nothing is wrong (there may be warnings); 1: something is, or the image
    /// could not be opened.
    Check(check::CheckArgs),
}

/// Runs the command.
pub fn run(command: &ImageCommand) -> Outcome<()> {
    match command {
        ImageCommand::Mount(args) => mount::run(args),
        ImageCommand::Unmount(args) => unmount::run(args),
        ImageCommand::List(args) => list::run(args),
        ImageCommand::Cat(args) => cat::run(args),
        ImageCommand::Show(args) => show::run(args),
        ImageCommand::Extract(args) => extract::run(args),
        ImageCommand::Check(args) => check::run(args),
    }
}
