//! What is written down about a disk, for the commands that come after a dead server.

use crate::cli::request::DiskName;
use pagefold_sys::pidfd;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest state file that is read.
pub const MAX_BYTES: u64 = 64 << 10;

/// `state.json`. Written by the server, before it makes what is recorded here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The disk.
    pub name: DiskName,
    /// Its server, if the kernel told who that is.
    pub server: Option<Server>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it was created, seconds since 1970.
    pub created_unix_s: u64,
    /// How it is reached; absent until it can be.
    pub door: Option<DoorState>,
    /// Whether the server ended in order, and what is left is only to be cleared.
    #[serde(default)]
    pub ended: bool,
}

/// The server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Process id.
    pub pid: i32,
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
    /// Which boot.
    pub boot_id: String,
}

impl From<pidfd::Identity> for Server {
    fn from(i: pidfd::Identity) -> Self {
        Server { pid: i.pid, start_ticks: i.start_ticks, boot_id: i.boot_id }
    }
}

impl From<&Server> for pidfd::Identity {
    fn from(s: &Server) -> Self {
        pidfd::Identity { pid: s.pid, start_ticks: s.start_ticks, boot_id: s.boot_id.clone() }
    }
}

/// What a door leaves in the system that outlives a killed server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DoorState {
    /// An NBD server: nothing but a socket file in the folder.
    Nbd {
        /// What clients connect to.
        uri: String,
    },
    /// A loop device over a FUSE file.
    Loop {
        /// `/dev/loopN`, once it is attached.
        device: Option<PathBuf>,
        /// The file it stands on, once it is attached.
        backing: Option<Backing>,
        /// Where the FUSE file system is mounted.
        mount_point: PathBuf,
    },
}

/// The file a loop device stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    /// The device number of its file system.
    pub device: u64,
    /// Its inode number, which is random.
    pub inode: u64,
}

impl State {
    /// What a user names the device by; empty until there is one.
    pub fn device(&self) -> String {
        match &self.door {
            Some(DoorState::Nbd { uri }) => uri.clone(),
            Some(DoorState::Loop { device: Some(device), .. }) => device.display().to_string(),
            _ => String::new(),
        }
    }

    /// The loop device, if the door has one.
    pub fn loop_device(&self) -> Option<PathBuf> {
        match &self.door {
            Some(DoorState::Loop { device, .. }) => device.clone(),
            _ => None,
        }
    }
}
