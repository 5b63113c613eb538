//! What a server process is told: the validated form of a `disk create`.

use crate::runtime::state::CreatedFile;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What is to be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Serving {
    /// A disk.
    Disk(ServeConfig),
    /// An image, mounted.
    Image(super::images::MountConfig),
}

/// Everything about a disk but its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeConfig {
    /// Size of the device, a multiple of a page.
    pub size_bytes: u64,
    /// How pages are compressed.
    pub codec: CodecConfig,
    /// Hard limit of the pool's memory; `None` for the engine's default, 0 for no limit.
    pub mem_limit_bytes: Option<u64>,
    /// How the disk is reached.
    pub door: DoorChoice,
    /// Serve plain memory in place of the engine, which then stays empty: what benchmarks of doors
    /// compare with.
    #[serde(default)]
    pub uncompressed: bool,
    /// A TCP address for the NBD door, instead of a unix socket.
    pub listen: Option<Listen>,
    /// What pages are parked on; its descriptor is handed over beside this.
    #[serde(default)]
    pub backing: Option<BackingConfig>,
}

/// What pages are parked on, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingConfig {
    /// The absolute path, for showing: the server never opens it.
    pub path: PathBuf,
    /// The file, if it was made for this disk and is to be removed with it.
    pub created: Option<CreatedFile>,
    /// Whether parked pages are compressed and packed; otherwise one page per block.
    pub compressed: bool,
    /// Most bytes a second that automatic parking writes, 0 for no bound.
    pub rate_bytes_per_s: u64,
    /// Most bytes that automatic parking writes within 24 hours, 0 for no bound.
    pub daily_bytes: u64,
    /// What every request takes at least, for benchmarks and tests; 0 as a rule.
    #[serde(default)]
    pub delay_us: u64,
}

/// A codec with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecConfig {
    /// Its name in the codec table.
    pub name: String,
    /// Its level; `None` for its default.
    pub level: Option<i32>,
    /// Its dictionary.
    pub dictionary: Option<Vec<u8>>,
}

/// Which door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoorChoice {
    /// Loop where it can be had, else NBD.
    Auto,
    /// NBD.
    Nbd,
    /// Loop.
    Loop,
}

/// Where the NBD door listens on TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Address and port; port 0 for any.
    pub address: SocketAddr,
    /// Who may connect; `None` only on loopback.
    pub tls: Option<Tls>,
}

/// The files of a TLS server that asks for client certificates. Absolute paths, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Certificates that sign the clients'.
    pub client_ca: PathBuf,
}
