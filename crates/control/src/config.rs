//! The configuration of a server process: the checked arguments of `disk create` or `image mount`, sent at start-up.

use crate::export_kind::ExportKind;
use crate::instance::state::{BackingFile, CreatedFile};
use crate::media::MediaConfig;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The configuration of a server of either kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerConfig {
    /// The server serves a disk.
    Disk(Box<DiskConfig>),
    /// The server mounts an image.
    Image(Box<MountConfig>),
}

/// The configuration of a disk. Its name is that of its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskConfig {
    /// Size of the device, a multiple of a page. 0: the disk gets its size later, by its attribute `disksize`.
    pub size_bytes: u64,
    /// How pages are compressed.
    pub codec: CodecConfig,
    /// The codecs of priority 1, 2 and 3, which pages are recompressed with; at most three.
    #[serde(default)]
    pub further_codecs: Vec<CodecConfig>,
    /// The rules of automatic recompression.
    #[serde(default)]
    pub recompress_after: Vec<RecompressAfter>,
    /// Hard limit of the pool's memory; `None` for the store's default, 0 for no limit.
    pub mem_limit_bytes: Option<u64>,
    /// How the disk is reached.
    pub export: ExportKind,
    /// Serve plain memory in place of the store, which then stays empty. Benchmarks of exports compare with it.
    #[serde(default)]
    pub uncompressed: bool,
    /// Whether requests of the loop export come through io_uring.
    #[serde(default)]
    pub fuse_uring: FuseUring,
    /// The size of the sectors of a loop device.
    #[serde(default)]
    pub sector_size: SectorSize,
    /// A TCP address for the NBD export, instead of a unix socket.
    pub listen: Option<Listen>,
    /// The file or device that pages are written back to. The open file is passed separately, as a descriptor.
    #[serde(default)]
    pub backing: Option<BackingConfig>,
    /// The saved disk whose contents a new disk gets. The open file is passed separately, as a descriptor.
    #[serde(default)]
    pub restore: Option<RestoreConfig>,
}

impl DiskConfig {
    /// The configuration of a disk with one codec, at its default level, without a limit or a backing.
    pub fn new(size_bytes: u64, codec: &str, export: ExportKind) -> Self {
        DiskConfig {
            size_bytes,
            codec: CodecConfig { name: codec.to_string(), ..CodecConfig::default() },
            further_codecs: Vec::new(),
            recompress_after: Vec::new(),
            mem_limit_bytes: Some(0),
            export,
            uncompressed: false,
            fuse_uring: FuseUring::default(),
            sector_size: SectorSize::default(),
            listen: None,
            backing: None,
            restore: None,
        }
    }

    /// The backing file that is removed with the disk; `None` if no file was created for it.
    pub fn created_backing(&self) -> Option<BackingFile> {
        let backing = self.backing.as_ref()?;
        backing.created.map(|file| BackingFile { path: backing.path.clone(), file })
    }
}

/// The backing of a disk, and how pages are written back to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingConfig {
    /// The absolute path, for messages: the server gets the open file from the command.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// The identity of the file, if it was created for this disk and is to be removed with it.
    pub created: Option<CreatedFile>,
    /// Whether written-back pages are compressed and packed; otherwise one page per block.
    pub compressed: bool,
    /// Rate limit of automatic writeback, 0 for none.
    pub rate_bytes_per_s: u64,
    /// Most bytes that automatic writeback writes within 24 hours, 0 for no limit.
    pub daily_bytes: u64,
    /// Delay added to every request, for benchmarks and tests; otherwise 0.
    #[serde(default)]
    pub delay_us: u64,
}

/// A saved disk that is restored into a new disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreConfig {
    /// The path, for messages.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// The first bytes of the file, which the command has read already.
    pub head: Vec<u8>,
    /// The other files of its chain, its parent first.
    #[serde(with = "crate::path::list")]
    pub parents: Vec<PathBuf>,
    /// Whether the disk gets the codecs of the saved one.
    pub takes_codecs: bool,
    /// Whether pages are read while the disk is used. The files are regular ones then. Otherwise all are read before the
    /// disk is ready.
    pub is_lazy: bool,
}

/// A rule of automatic recompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecompressAfter {
    /// The time since a page's last access from which on it is recompressed, seconds.
    pub age_s: u64,
    /// The codec, by its priority: an index of `further_codecs`, plus 1.
    pub priority: u8,
}

/// A codec with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecConfig {
    /// Its name in the codec table.
    pub name: String,
    /// Its level; `None` for its default.
    pub level: Option<i32>,
    /// Its dictionary.
    pub dictionary: Option<Vec<u8>>,
    /// The window bits of deflate, as zlib counts them; `None` for the default.
    #[serde(default)]
    pub window_bits: Option<i32>,
}

/// The size of the sectors of a loop device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SectorSize {
    /// 4096 bytes, a page: no write reads what it does not replace.
    #[default]
    Page,
    /// 512 bytes, for contents that were made for them.
    Small,
}

impl SectorSize {
    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            SectorSize::Page => 4096,
            SectorSize::Small => 512,
        }
    }
}

/// Whether FUSE requests come through io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FuseUring {
    /// Where the kernel offers it, if the disk does not outlive its server in any case; not for images.
    #[default]
    Auto,
    /// Where the kernel offers it, with a warning where it does not.
    On,
    /// Never.
    Off,
}

/// Where the NBD export listens on TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Address and port; port 0 for any.
    pub address: SocketAddr,
    /// The TLS files; `None` only on a loopback address.
    pub tls: Option<Tls>,
}

/// The files of a TLS server that requires client certificates. Absolute paths, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// Certificate chain.
    #[serde(with = "crate::path")]
    pub cert: PathBuf,
    /// Private key.
    #[serde(with = "crate::path")]
    pub key: PathBuf,
    /// CA certificates that client certificates must be signed with.
    #[serde(with = "crate::path")]
    pub client_ca: PathBuf,
}

/// The configuration of the server of a mounted image. Paths are absolute and contain no symbolic links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountConfig {
    /// The image and its devices.
    pub media: MediaConfig,
    /// Where it is mounted.
    #[serde(with = "crate::path")]
    pub mount_point: PathBuf,
    /// Memory budget for reading.
    pub memory_bytes: u64,
    /// Threads that answer requests; 0 for the default.
    pub threads: usize,
    /// Whether requests come through io_uring.
    #[serde(default)]
    pub fuse_uring: FuseUring,
    /// Whether other users may access the mount.
    pub allow_other: bool,
    /// Whether set-user-id bits have effect.
    pub suid: bool,
    /// Whether device nodes have effect.
    pub device_nodes: bool,
    /// The policy of read-ahead.
    pub read_ahead: ReadAheadConfig,
    /// The start-up list to write.
    #[serde(default)]
    pub record: Option<RecordConfig>,
    /// The start-up list to fetch.
    #[serde(default)]
    #[serde(with = "crate::path::option")]
    pub prefetch: Option<PathBuf>,
}

/// A start-up list to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordConfig {
    /// Its path.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// How long to record, seconds; `None`: until the image is unmounted.
    pub limit_s: Option<u64>,
}

/// The policy of read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadAheadConfig {
    /// No read-ahead.
    Off,
    /// Read-ahead uses memory that is free, and drops a cluster if there is none.
    BestEffort,
    /// Read-ahead waits for memory. For measurements.
    Waiting,
}
