//! What a server process is told: the validated form of a `disk create`.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

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
