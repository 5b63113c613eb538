//! `pagefold image`: what can be done with an image.
//!
//! The work is done by `pagefold-image`; here are words and output. One file per command, with its arguments.
//!
//! | module | what |
//! |---|---|
//! | `names` | names of strangers, on terminals and in JSON |
//! | `open` | the arguments that all have in common, and opening |
//! | `list`, `cat`, `show`, `extract`, `check` | the commands |
//! | `overview` | what `show` says of an image and of a file, as JSON and as text |
//! | `mount`, `unmount` | mounting, with a server process of ours |
//! | `kernel` | mounting with the kernel's own EROFS |
//! | `live` | what the server of a mounted image says of itself |
//! | `findings` | what is wrong, for people and in JSON |

mod cat;
mod kernel;
mod list;
mod live;
mod mount;
mod names;
mod open;
mod overview;
mod show;
mod unmount;

use crate::failure::Outcome;
use clap::Subcommand;

/// The commands on images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
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
    Show(show::ShowArgs),
    /// Mount an image, to be read by all programs
    ///
    /// Returns when its files can be read, and leaves a server process. That reads within --memory, whatever
    /// is asked of it, and ends when the image is unmounted: by `image unmount`, or by umount(8). If
    /// it is killed, every access fails; `image unmount`, or the next `image mount`, then clears up.
    ///
    /// Nothing can be written. Set-user-id bits and device nodes of the image have no effect, unless root asks
    /// for them.
    ///
    /// Mounting needs root, or the program fusermount3.
    Mount(Box<mount::MountArgs>),
    /// Unmount an image that is mounted
    Unmount(unmount::UnmountArgs),
}

/// Runs the command.
pub fn run(command: &ImageCommand) -> Outcome<()> {
    match command {
        ImageCommand::List(args) => list::run(args),
        ImageCommand::Cat(args) => cat::run(args),
        ImageCommand::Show(args) => show::run(args),
        ImageCommand::Mount(args) => mount::run(args),
        ImageCommand::Unmount(args) => unmount::run(args),
    }
}
