//! What can be typed: the only definition of commands and options.
//!
//! Help, manual pages and shell completions are made from it. The fields hold
//! what was typed, as text; [`super::request`] turns that into what is meant.

use crate::commands::image::ImageCommand;
use crate::{failure, runtime, service::attributes, service::codecs};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Keep more in the memory and storage you have, by folding pages.
#[derive(Debug, Parser)]
#[command(name = "pagefold", version, about, propagate_version = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compressed RAM disks
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Compressed read-only file systems: EROFS images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print or write the manual pages
    Man(ManArgs),
}

/// The commands on disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Create a disk and print its device path or NBD URI
    ///
    /// Starts a server process, waits until the device is ready, and prints on standard output
    /// nothing but the path of the block device or the NBD URI.
    ///
    /// The contents are volatile: they live in the memory of the server process. They are gone when
    /// the disk is removed, when the server dies, and when the machine restarts, and so is what is parked
    /// on a backing. If the server dies
    /// while the disk is mounted or used as swap, every access fails with an I/O error.
    Create(Box<CreateArgs>),
    /// List the disks
    List(ListArgs),
    /// Show what a disk holds, costs and does
    ///
    /// Contents are volatile; see `disk create`.
    Show(ShowArgs),
    /// Change attributes of a running disk
    Set(SetArgs),
    /// Move pages from memory to the backing of a disk
    ///
    /// Returns when they are there. Says how far it is on a terminal. Ctrl-C ends it early: pages that
    /// were not parked yet stay in memory. No page is lost, whatever fails.
    ///
    /// A disk with a backing parks by itself when memory is nearly used up; this is for parking sooner.
    /// One such command runs at a time for a disk; another is refused as busy.
    Park(ParkArgs),
    /// Remove a disk and what it holds
    ///
    /// Refuses while the disk is mounted, used as swap, or has NBD clients, and says who uses it.
    /// Leaves no loop device, mount, socket or process behind.
    Remove(RemoveArgs),
}

/// `disk create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Size of the device, such as 4G or 512M; rounded up to 4096 bytes. It may exceed the memory
    /// of the machine: only what is written costs memory
    #[arg(long, short = 's', value_name = "SIZE")]
    pub size: String,
    /// Name of the disk: 1 to 32 of A-Z a-z 0-9 . _ -, not starting with . or - [default: disk0,
    /// disk1, ...]
    #[arg(long, short = 'n', value_name = "NAME")]
    pub name: Option<String>,
    /// Compression algorithm
    #[arg(long, short = 'c', value_name = "CODEC", default_value = "lz4")]
    pub codec: String,
    /// Compression level, where the codec has levels
    #[arg(long, short = 'l', value_name = "LEVEL", allow_negative_numbers = true)]
    pub level: Option<i32>,
    /// File with a dictionary, where the codec takes one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dictionary: Option<PathBuf>,
    /// Most memory the stored pages may take; then writes fail, and nothing stored is lost. 0 for no
    /// limit [default: half of the machine's memory]. The server takes up to 96M more for itself, 16M of
    /// reserve with a loop device, and 6M of tables for each 1G that is written
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<String>,
    /// File or block device to park cold pages on, so that memory is not the limit: a path whose parent
    /// exists. A file that does not exist is made, sparse and for you alone, and removed with the disk;
    /// one that exists, or a device, stays. Parked pages are stored in plain text (compressed, not
    /// encrypted), and are lost with the disk like everything else
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, conflicts_with = "uncompressed")]
    pub backing: Option<PathBuf>,
    /// Size of a new backing file [default: size of the disk + 1/8 + 16 MiB, room for pages that do not
    /// compress]. A file or device that exists is used as large as it is, and another size is refused
    #[arg(long, value_name = "SIZE", requires = "backing")]
    pub backing_size: Option<String>,
    /// Take a backing that holds something else, and overwrite it; or a file that belongs to another user.
    /// One that is in use is still refused
    #[arg(long, requires = "backing")]
    pub force_backing: bool,
    /// Park pages compressed and packed; off: one page per block, as the kernel does it
    #[arg(long, value_enum, value_name = "on|off", requires = "backing", default_value_t = OnOff::On, hide_possible_values = true)]
    pub compressed_writeback: OnOff,
    /// Most bytes a second that parking by itself writes, such as 50M/s [default: no bound]
    #[arg(long, value_name = "SIZE/s", requires = "backing")]
    pub park_rate: Option<String>,
    /// Most bytes that parking by itself writes within 24 hours, such as 20G, to spare a medium that wears
    /// [default: no bound]
    #[arg(long, value_name = "SIZE", requires = "backing")]
    pub park_daily: Option<String>,
    /// Make every request to the backing take so many microseconds, for benchmarks and tests
    #[arg(long, value_name = "US", requires = "backing", default_value_t = 0, hide = true)]
    pub backing_delay: u64,
    /// How the disk is reached
    #[arg(long, value_enum, default_value_t = DoorArg::Auto)]
    pub door: DoorArg,
    /// Serve NBD over TCP on this address. Beyond loopback this needs the three TLS files
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Certificate chain of the TCP server, PEM
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_key", "tls_client_ca"], value_hint = ValueHint::FilePath)]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the TCP server, PEM
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_cert", "tls_client_ca"], value_hint = ValueHint::FilePath)]
    pub tls_key: Option<PathBuf>,
    /// Certificates that sign the clients' certificates, PEM
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_cert", "tls_key"], value_hint = ValueHint::FilePath)]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve from this process, until Ctrl-C, SIGTERM or `disk remove`
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Keep pages as they are, in plain memory allocated at once: a peer for benchmarks of doors
    #[arg(long, hide = true)]
    pub uncompressed: bool,
    /// Print no notes on standard error
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// The doors as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoorArg {
    /// A loop device where root, FUSE and loop devices are there, NBD otherwise
    Auto,
    /// An NBD server, on a unix socket unless --listen is given; needs no privileges
    Nbd,
    /// A loop device /dev/loopN; needs root
    Loop,
}

/// A switch as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// On
    On,
    /// Off
    Off,
}

/// `disk list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// `disk show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the disk
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON with exact numbers
    #[arg(long, conflicts_with = "attribute")]
    pub json: bool,
    /// Print the value of one attribute and nothing else
    #[arg(long, short = 'a', value_name = "ATTRIBUTE")]
    pub attribute: Option<String>,
}

/// `disk set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the disk
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What to set, to what
    #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
    pub changes: Vec<String>,
}

/// `disk park`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct ParkArgs {
    /// Name of the disk
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Park pages that were not accessed for so long, such as 90, 10m or 1h30m. Ages are told up to
    /// 8192 seconds; more than that means that
    #[arg(long, value_name = "AGE", group = "which")]
    pub idle: Option<String>,
    /// Park pages that do not compress
    #[arg(long, group = "which")]
    pub huge: bool,
    /// Park pages that do not compress and are marked idle (`disk set NAME idle=10m` marks)
    #[arg(long, group = "which")]
    pub huge_idle: bool,
    /// Park pages that no codec of the disk compresses; it has one, so these are those of --huge
    #[arg(long, group = "which")]
    pub incompressible: bool,
    /// Park these pages, both ends included; page 0 is the first 4096 bytes of the device. Can be repeated
    #[arg(long, value_name = "A-B", group = "which")]
    pub pages: Vec<String>,
    /// Park all pages
    #[arg(long, group = "which")]
    pub all: bool,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
    /// Print nothing unless it fails
    #[arg(long, short = 'q', conflicts_with = "json")]
    pub quiet: bool,
}

/// `disk remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name of the disk
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Run swapoff first if the disk is swap (refused if memory cannot take its contents back),
    /// disconnect NBD clients, and end a server that does not answer. A mounted disk is never removed
    #[arg(long)]
    pub force: bool,
}

/// `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write all pages into this folder instead of printing pagefold(1)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// The definition with the tables that belong to it: exit codes, files, attributes.
pub fn command() -> clap::Command {
    Cli::command().after_long_help(format!("{}\n\n{}", exit_codes(), runtime::location::HELP)).mut_subcommand(
        "disk",
        |disk| {
            disk.mut_subcommand("set", |set| set.after_long_help(attributes::help()))
                .mut_subcommand("show", |show| show.after_long_help(attributes::help()))
                .mut_subcommand("create", |create| {
                    create.after_long_help(format!("{}\n\n{CREATE_EXAMPLES}", codecs::help()))
                })
        },
    )
}

const CREATE_EXAMPLES: &str = "\
Examples:
  pagefold disk create --size 4G
  pagefold disk create --size 64G --backing /var/cache/scratch.park --memory 1G
  pagefold disk create --size 16G --name scratch --codec zstd --level 3 --memory 2G
  mkfs.ext4 \"$(pagefold disk create --size 4G --door loop)\"";

fn exit_codes() -> String {
    let mut text = String::from("Exit codes:");
    for (exit, meaning) in failure::EXITS {
        text.push_str(&format!("\n  {}  {meaning}", exit as u8));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_is_consistent() {
        super::command().debug_assert();
    }
}
