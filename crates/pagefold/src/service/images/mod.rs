//! Mounted images: what their servers are told, do, write down, and tell.
//!
//! A mount is served by a process of its own, as a disk is, and known by a folder of the same form. What is
//! different: it is found by where it is mounted, it ends when it is unmounted by whomever, and its server
//! can unmount it.

mod report;
pub mod server;
mod state;

pub use report::{LatencyReport, MountReport};
pub use state::{find, is_dead, sweep, sweep_quietly};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a server is told. Paths are absolute and free of links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountConfig {
    /// The image.
    pub image: PathBuf,
    /// Its further devices, in the order of its table.
    pub devices: Vec<PathBuf>,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Memory for reading.
    pub memory_bytes: u64,
    /// Threads that answer requests; 0 for the default.
    pub threads: usize,
    /// Whether other users get in.
    pub allow_other: bool,
    /// Whether programs give the rights of their owner.
    pub suid: bool,
    /// Whether device nodes lead to devices.
    pub device_nodes: bool,
    /// What read-ahead does.
    pub read_ahead: ReadAheadConfig,
}

/// What read-ahead does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadAheadConfig {
    /// Nothing.
    Off,
    /// Takes what memory is free.
    BestEffort,
    /// Waits for memory.
    Waiting,
}

impl From<ReadAheadConfig> for pagefold_image::ReadAhead {
    fn from(config: ReadAheadConfig) -> Self {
        match config {
            ReadAheadConfig::Off => pagefold_image::ReadAhead::Off,
            ReadAheadConfig::BestEffort => pagefold_image::ReadAhead::BestEffort,
            ReadAheadConfig::Waiting => pagefold_image::ReadAhead::Waiting,
        }
    }
}
