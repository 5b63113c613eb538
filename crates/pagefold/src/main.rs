//! The `pagefold` command: reads the command line, runs a command, and prints.
//!
//! | module | contents |
//! |---|---|
//! | [`commands`] | the command line, and the entry point of all commands |
//! | `zram` | the commands that show disks behind the files of the kernel's zram (feature `zram`, on by default) |
//! | [`mkfs_erofs`] | the command lines of `mkfs.erofs`, `fsck.erofs` and `dump.erofs` |
//! | [`disk`] | the commands on disks, one file each |
//! | [`image`] | the commands on images, one file each; files that commands write as a whole |
//! | [`mount_helper`] | the command line that mount(8) passes to helpers for a line of /etc/fstab |
//! | [`docs`], [`manual`] | shell completions and manual pages; their sections |
//! | [`cli`] | printing: results, messages, lists, progress bars, histograms; commands on several things |
//!
//! Each module uses only those below it in this table. The hidden command `serve` turns the process into a server
//! (`pagefold-server`); other commands start servers and send them requests (`pagefold-control`).

// The printing macros panic when they cannot write: all printing goes through `cli::output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod commands;
mod disk;
mod docs;
mod image;
mod manual;
mod mkfs_erofs;
mod mount_helper;
#[cfg(feature = "zram")]
mod zram;

fn main() -> std::process::ExitCode {
    commands::run()
}
