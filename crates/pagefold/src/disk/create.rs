//! The arguments of `disk create`.

use super::export_arg::ExportArg;
use crate::cli::values::{fuse_uring, one_of};
use clap::builder::TypedValueParser;
use clap::{Args, ValueHint};
use pagefold_control::config::{FuseUring, SectorSize};
use std::path::PathBuf;

/// The arguments of `disk create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the disk: 1 to 32 characters of A-Z a-z 0-9 . _ -, not starting with . or - [default: disk0, disk1, ...;
    /// a number is used once]
    #[arg(long, short = 'n', value_name = "NAME")]
    pub name: Option<String>,
    /// Fill the disk with a file that `disk save` wrote; - is standard input. The disk is ready at once: pages are read from
    /// FILE when they are needed, and all others in the background. FILE must stay as it is until then, as `disk show` says;
    /// its name may be removed. A pipe, s3://BUCKET/KEY, gs://, az:// and https:// are read first. Without options for codecs,
    /// the disk gets those of the saved one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "uncompressed")]
    pub restore: Option<PathBuf>,
    /// As --restore, but make an empty disk if FILE is missing. The folder of FILE must exist
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["restore", "uncompressed"])]
    #[arg(requires = "size")]
    pub restore_if_exists: Option<PathBuf>,
    /// Read all of FILE before the disk is ready, and refuse a damaged one
    #[arg(long)]
    pub restore_now: bool,
    /// Succeed, and print the device, if the disk runs already. Its options stay. The running disk must be in the control
    /// group of this command, as in the units of `disk unit`; another one is an error
    #[arg(long, requires = "name", conflicts_with_all = ["foreground", "run"])]
    pub unless_running: bool,
    /// The disk itself
    #[command(flatten)]
    pub options: DiskOptions,
    /// Stay in the foreground until Ctrl-C, SIGTERM or `disk remove`. When the command ends, the server ends too,
    /// unless its loop device is in use: then it serves on
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Run COMMAND when the disk is ready, and remove the disk when it ends. 'sh -c' runs it, with PAGEFOLD_NAME and
    /// PAGEFOLD_DEVICE in its environment. The exit code is that of COMMAND, or 128 plus the number of the signal that
    /// killed it, or 125 if pagefold itself failed. A loop device that is in use then is not removed
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, conflicts_with_all = ["foreground", "json"])]
    pub run: Option<String>,
    /// Print JSON instead of the device: its name, device, export and size
    #[arg(long)]
    pub json: bool,
}

/// The options of a disk that `disk create` and `disk unit` have in common.
#[derive(Debug, Args)]
pub struct DiskOptions {
    /// Size of the device, such as 4G or 512M; rounded up to a multiple of 4096 bytes. It may exceed the memory of the
    /// machine: only written pages take memory. In sizes, K, M, G, T, P and E are powers of 1024, also as KB or KiB
    /// [default with --restore: that of the saved disk]
    #[arg(long, short = 's', value_name = "SIZE")]
    pub size: Option<String>,
    /// Compression algorithm, see below; a level can follow, as in zstd:3 [default: lz4]
    #[arg(long, short = 'c', value_name = "CODEC[:LEVEL]")]
    pub codec: Option<String>,
    /// Compression level, if the codec has levels, see below
    #[arg(long, short = 'l', value_name = "LEVEL", allow_negative_numbers = true)]
    pub level: Option<i32>,
    /// File with a compression dictionary, if the codec takes one, see below
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dictionary: Option<PathBuf>,
    /// Codec to compress pages with again on request, such as zstd:9. The request is `disk recompress`. Can be
    /// repeated; with those of --recompress-after, which come first, a disk has up to three, with priorities from 1
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    pub recompress_codec: Vec<String>,
    /// Recompress pages that were not accessed for AGE, such as 10m=zstd:3. Takes at most a quarter of one CPU, and
    /// only while CPUs and disks of the machine are not busy. A page that is written gets the first codec. Can be
    /// repeated, for denser codecs at greater ages. Ages above 8192 seconds count as 8192
    #[arg(long, value_name = "AGE=CODEC[:LEVEL]")]
    pub recompress_after: Vec<String>,
    /// Most memory for stored pages and the buffers of rings, such as 2G; 0: no limit. Writes that need more fail, and
    /// no stored page is lost. The rings are those of --fuse-uring. The server needs more memory: up to 96M for itself,
    /// 16M of reserve for a loop device, and 6M of tables for each 1G written [default: half of the machine's memory]
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<String>,
    /// File or block device for cold pages, used when memory is nearly full. A file that does not exist is created,
    /// sparse and with mode 0600, in a directory that exists, and is removed with the disk; an existing file or device
    /// stays. Pages on the backing are not encrypted, and are lost when the disk is removed or the machine restarts
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, conflicts_with = "uncompressed")]
    pub backing: Option<PathBuf>,
    /// Size of a new backing file. An existing file or device is used in its full size, and a different size is refused
    /// [default: 9/8 of the size of the disk + 16 MiB: space for all pages uncompressed]
    #[arg(long, value_name = "SIZE", requires = "backing")]
    pub backing_size: Option<String>,
    /// Use a backing although it contains data or is a file of another user. The data is overwritten. A backing that is
    /// in use is refused in any case
    #[arg(long, requires = "backing")]
    pub force_backing: bool,
    /// Whether pages are written back compressed and packed. off: one uncompressed page per block, as zram does
    #[arg(long, value_parser = one_of([("on", "", true), ("off", "", false)]), value_name = "on|off", requires = "backing")]
    #[arg(action = clap::ArgAction::Set, default_value = "on", hide_possible_values = true)]
    pub compressed_writeback: bool,
    /// Most bytes per second that automatic writeback writes, such as 50M/s [default: no limit]
    #[arg(long, value_name = "SIZE/s", requires = "backing")]
    pub writeback_rate: Option<String>,
    /// Most bytes that automatic writeback writes within 24 hours, such as 20G. It limits the wear of flash [default:
    /// no limit]
    #[arg(long, value_name = "SIZE", requires = "backing")]
    pub writeback_daily: Option<String>,
    /// Delay every request to the backing by so many microseconds, for benchmarks and tests
    #[arg(long, value_name = "US", requires = "backing", default_value_t = 0, hide = true)]
    pub backing_delay: u64,
    /// How programs access the disk
    #[arg(long, value_enum, default_value_t = ExportArg::AUTO)]
    pub export: ExportArg,
    /// Whether requests of the loop export come through io_uring. on: instead of through /dev/fuse, where the kernel
    /// offers it. 'auto' means off, because a disk with io_uring does not outlive its server. The buffers of the rings
    /// are part of --memory, and take at most an eighth of it and 32M
    #[arg(long, value_parser = fuse_uring(), value_name = "auto|on|off", default_value = "auto")]
    pub fuse_uring: FuseUring,
    /// Size of the loop device's sectors. 512 is for images of disks and file systems that were made for it, such as cloud
    /// images and FAT; a write of less than a page then reads the rest of it. Clients of NBD can read and write any bytes
    #[arg(long, value_parser = sector_size(), value_name = "BYTES", default_value = "4096")]
    pub sector_size: SectorSize,
    /// Serve NBD over TCP on this address, instead of a unix socket. A host name stands for its first address, and port
    /// 0 for any. An address that other machines can reach needs the three TLS files. Without TLS, every user of this
    /// machine can read and write the disk
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Certificate chain of the NBD server, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["listen", "tls_key", "tls_client_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the NBD server, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["listen", "tls_cert", "tls_client_ca"])]
    pub tls_key: Option<PathBuf>,
    /// CA certificates, PEM: clients need a certificate signed by one of them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["listen", "tls_cert", "tls_key"])]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve plain memory without compression, for comparison in benchmarks of exports
    #[arg(long, hide = true)]
    pub uncompressed: bool,
}

/// Examples for the long help.
pub const EXAMPLES: &str = "\
Examples:
  pagefold disk create --size 4G
  pagefold disk create --size 64G --backing /var/cache/scratch.backing --memory 1G
  pagefold disk create --size 16G --name scratch --codec zstd --level 3 --memory 2G
  mkfs.ext4 \"$(pagefold disk create --size 4G --export loop)\"
  pagefold disk create --restore scratch.saved
  pagefold disk create --size 4G --run 'mkfs.ext4 \"$PAGEFOLD_DEVICE\" && build-on \"$PAGEFOLD_DEVICE\"'";

fn sector_size() -> impl TypedValueParser<Value = SectorSize> {
    one_of([
        ("4096", "A page of the store: no write reads what it does not replace", SectorSize::Page),
        ("512", "For images of disks and file systems that were made for 512", SectorSize::Small),
    ])
}
