//! `pagefold disk`: the commands on disks.
//!
//! | module | contents |
//! |---|---|
//! | `create` (arguments) and `start`, `list`, `show`, `block_state`, `set`, `writeback`, `recompress`, `save`, `saved`, `restart`, `remove`, `unit` | the commands, each with its arguments |
//! | `bucket` | saved disks in buckets and on servers |
//! | `incremental`, `chain` | `save --incremental`, and the files that an incremental save needs |
//! | `classes` | the table of size classes of `show` |
//! | `page_ranges` | ranges of pages in options |
//! | `pass` | running a pass of writeback or recompression: bar, Ctrl-C, report |
//! | `request`, `restore`, `notes` | the checked arguments of `create`, the saved disk in them, and its notes on the new disk |
//! | `running` | the disk that `create --unless-running` finds |
//! | `systemd` | the text of units: names, quoting |
//! | `backing`, `device` | steps that need the user's privileges: opening a backing, swapoff |
//! | `command` | the command of `create --run` |
//! | `freeze` | the frozen file system of `save` |
//! | `find`, `resolve` | finding the disk that a user names, and cleaning up after dead servers |

mod backing;
mod block_state;
mod bucket;
mod chain;
mod classes;
pub mod command;
mod create;
mod device;
mod export_arg;
mod find;
mod freeze;
mod incremental;
mod list;
mod notes;
mod page_ranges;
mod pass;
mod recompress;
mod remove;
mod request;
mod resolve;
mod restart;
mod restore;
mod running;
mod salvage;
mod save;
mod saved;
mod set;
mod show;
mod start;
mod systemd;
mod unit;
mod writeback;

use crate::cli::list::with_columns;
use clap::Subcommand;
use pagefold_control::error::Result;
use pagefold_server::attributes;
use std::process::ExitCode;

/// The commands on disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Create a disk and print its device path or NBD URI
    ///
    /// Starts a server process, waits until the device is ready, and prints one line on standard output: the path of
    /// the block device, or the NBD URI. A note on standard error says the name of the disk.
    ///
    /// With --run, the disk exists only while a command runs, and the exit code is that of the command.
    ///
    /// The contents are volatile: they are in memory. They are lost when the disk is removed and when the machine restarts,
    /// including the pages on a backing. If the server dies, its keeper, a second process, starts another one, which goes on
    /// with the same contents. Only if both die together, the contents are lost, and every access fails with an I/O error;
    /// `disk show` says if a disk has no keeper.
    Create(Box<create::CreateArgs>),
    /// List the running disks
    #[command(alias = "ls")]
    List(list::ListArgs),
    /// Show the contents, memory use, requests and latency of a disk
    Show(show::ShowArgs),
    /// Print the state of each page that has contents, as zram's block_state does
    ///
    /// Prints a line for each page: its index, the time of its last access, and six flags, '.' for those that are not
    /// set. The time is in whole seconds since the machine has booted. Access times are recorded in quarters of a
    /// second and reach back 8192 seconds, about 2 h 16 min: an earlier access is printed as one of 8192 seconds ago.
    ///
    /// The listing takes no locks and delays no reads or writes, so pages that change meanwhile are listed as before
    /// or after the change.
    BlockState(block_state::BlockStateArgs),
    /// Change attributes of a running disk, such as its memory limit
    Set(set::SetArgs),
    /// Write pages back: move them from memory to the backing of a disk
    ///
    /// Returns when the pages are written, and shows the progress on a terminal. Ctrl-C ends the command early; pages
    /// that were not written yet stay in memory, as do pages whose write fails. No page is lost.
    ///
    /// A disk with a backing writes back automatically when its memory is nearly used up; this command frees memory
    /// earlier. Only one such command runs at a time for each disk; another fails as busy.
    Writeback(writeback::WritebackArgs),
    /// Recompress pages with another codec that the disk was created with
    ///
    /// Tries all pages, or those that --idle, --huge or --huge-idle choose. Returns when they are compressed, and shows the progress on a terminal. Reads and writes go on meanwhile; a
    /// page that is written or read in between keeps its form. A page that did not become smaller is not tried again with
    /// the same codec until it is written. Ctrl-C ends the command early.
    ///
    /// The codecs are chosen with `disk create --recompress-codec` or `--recompress-after`; the latter does the same
    /// automatically.
    Recompress(recompress::RecompressArgs),
    /// Save the contents of a disk to a file or a bucket, while it is used
    ///
    /// The file has the contents at one moment, as after a power failure at that moment: writes that have returned before
    /// are in it. Before, the command lets the kernel write what it caches of a loop device and of file systems mounted from
    /// it. Pages are saved as they are compressed, those on a backing too; pages that read as zeroes take no space.
    ///
    /// As root, the command freezes an ext4 or xfs that is mounted from the disk until the server has that moment, some
    /// milliseconds and a second at most. So the saved file system is complete, and a mount of an ext4 replays no journal.
    /// The last line of the output says whether it was frozen, or why not.
    ///
    /// The file appears when it is complete and on the medium; until then an older one stays. Ctrl-C, a full medium or
    /// another failure leaves no file, and the disk is used on. If the target takes no data for 30 seconds while writes to
    /// the disk wait for the save, the save fails.
    ///
    /// In a bucket, KEY is replaced when everything is there; the pages are in objects KEY.ID beside it. The logins are those with
    /// which images are read.
    ///
    /// `disk create --restore` makes a disk of the file, and `disk saved` shows it. The contents are not encrypted.
    Save(save::SaveArgs),
    /// Show a saved disk: its size, pages, codecs, time and digest
    Saved(saved::SavedArgs),
    /// Replace the servers of disks, which stay in use
    ///
    /// The new server runs the program of this command: after an upgrade, the one that is installed now. Programs that
    /// use the disk notice nothing but a moment's wait; NBD clients have to connect again. If the new server cannot take
    /// over, the former one serves on, and the message says why. A package can call it with --all after an upgrade.
    ///
    /// It also starts a server again that has died too often, so that the users of its disk wait. Needs Linux 6.9 for a loop
    /// device.
    #[command(visible_alias = "upgrade")]
    Restart(restart::RestartArgs),
    /// Print systemd units for a disk that comes back at each boot
    ///
    /// The units create the disk, or restore it from the file of --save-to, mount it, save it on a timer, and, when the machine
    /// shuts down or the service is stopped, unmount it, save it and remove it. With --install they are files below
    /// /etc/systemd/system; the output says what to type next.
    ///
    /// A new disk gets an ext4, with the files that are at the mount point. If a save fails, the journal says why, the disk
    /// stays in use, and the file has the contents of the last complete save. A crash of the machine loses what was written
    /// since then.
    ///
    /// The other options are those of `disk create`. They are checked now; that the service can use them at boot is not
    /// known until then.
    Unit(Box<unit::UnitArgs>),
    /// Remove disks and their contents
    ///
    /// Fails while a disk is mounted, used as swap, or has NBD clients, and lists these users; the other disks are
    /// removed nevertheless, and the exit code is that of the first failure. Afterwards no loop device, mount, socket or
    /// process of a removed disk is left.
    #[command(alias = "rm")]
    Remove(remove::RemoveArgs),
}

/// Runs the command, and returns its exit code, which `create --run` takes over from another command.
pub fn run(command: &DiskCommand) -> Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        DiskCommand::Create(args) => start::run(args),
        DiskCommand::List(args) => list::run(args).map(done),
        DiskCommand::Show(args) => show::run(args).map(done),
        DiskCommand::BlockState(args) => block_state::run(args).map(done),
        DiskCommand::Set(args) => set::run(args).map(done),
        DiskCommand::Writeback(args) => writeback::run(args).map(done),
        DiskCommand::Recompress(args) => recompress::run(args).map(done),
        DiskCommand::Save(args) => save::run(args).map(done),
        DiskCommand::Saved(args) => saved::run(args).map(done),
        DiskCommand::Restart(args) => restart::run(args).map(done),
        DiskCommand::Unit(args) => unit::run(args).map(done),
        DiskCommand::Remove(args) => remove::run(args).map(done),
    }
}

/// Adds the tables to the long help of the commands: attributes, codecs, examples.
pub fn with_tables(disk: clap::Command) -> clap::Command {
    disk.mut_subcommand("list", |list| with_columns(list, &list::COLUMNS))
        .mut_subcommand("block-state", |command| command.after_long_help(block_state::FLAGS))
        .mut_subcommand("set", |set| set.after_long_help(attributes::help()))
        .mut_subcommand("show", |show| show.after_long_help(attributes::help()))
        .mut_subcommand("unit", |unit| unit.after_long_help(pagefold_server::disk::codec_help()))
        .mut_subcommand("create", |create| {
            create.after_long_help(format!("{}\n\n{}", pagefold_server::disk::codec_help(), create::EXAMPLES))
        })
}
