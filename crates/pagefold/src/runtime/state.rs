//! What is written down about a disk, for the commands that come after a dead server.

use crate::cli::request::DiskName;
use crate::failure::{Failure, Outcome};
use pagefold_sys::loopdev::{self, LoopIdentity};
use pagefold_sys::pidfd;
use serde::{Deserialize, Serialize};
use std::fs::{Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

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
    /// The backing file that was made for this disk, and is removed with it.
    #[serde(default)]
    pub backing: Option<BackingFile>,
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

/// A backing file that is to be removed with its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingFile {
    /// Where it was made, absolute.
    pub path: PathBuf,
    /// Which file that was.
    pub file: CreatedFile,
}

/// Which file was made, so that another that took its place is never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedFile {
    /// The device number of its file system.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
    /// When it was made, nanoseconds since 1970, where the file system knows: inode numbers are used again.
    pub born_ns: Option<u64>,
}

impl CreatedFile {
    /// The identity of a file.
    pub fn of(meta: &Metadata) -> Self {
        let born = meta.created().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        CreatedFile {
            device: meta.dev(),
            inode: meta.ino(),
            born_ns: born.and_then(|d| u64::try_from(d.as_nanos()).ok()),
        }
    }
}

impl BackingFile {
    /// Removes the file, if what is at its path still is that file. What is gone already is no failure.
    pub fn remove(&self) -> Outcome<()> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match self.try_remove() {
            Err(e) if !matches!(e.kind(), NotFound | NotADirectory) => {
                Err(Failure::io(format!("removing the backing file '{}'", self.path.display()), &e))
            }
            _ => Ok(()),
        }
    }

    /// The folder is held open from the look to the removal: others may own it, and put a link to another
    /// folder in its place in between.
    fn try_remove(&self) -> std::io::Result<()> {
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Ok(());
        };
        let folder =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(folder)?;
        let held = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        let meta = std::fs::symlink_metadata(&held)?;
        match meta.is_file() && CreatedFile::of(&meta) == self.file {
            true => std::fs::remove_file(&held),
            false => Ok(()),
        }
    }
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

    /// The loop device, if the door has one that still stands on this disk. Somebody may have detached it,
    /// and then its number may be another device by now.
    pub fn loop_device(&self) -> Option<PathBuf> {
        match &self.door {
            Some(DoorState::Loop { device: Some(device), backing: Some(backing), .. }) => {
                let ours = LoopIdentity { lo_device: backing.device, lo_inode: backing.inode };
                loopdev::identity(device).is_ok_and(|found| found == Some(ours)).then(|| device.clone())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn made(path: &std::path::Path) -> BackingFile {
        fs::write(path, "pages").unwrap();
        let file = CreatedFile::of(&fs::symlink_metadata(path).unwrap());
        BackingFile { path: path.to_path_buf(), file }
    }

    #[test]
    fn only_the_file_that_was_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("park");
        made(&path).remove().unwrap();
        assert!(!path.exists());

        // Somebody took it away, and something else has its name. (A link keeps its inode number in use, as
        // a server does.)
        let backing = made(&path);
        fs::hard_link(&path, dir.path().join("kept")).unwrap();
        backing.remove().unwrap();
        backing.remove().unwrap();
        fs::write(dir.path().join("other"), "mine").unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        backing.remove().unwrap();
        assert!(path.is_symlink());
        fs::remove_file(&path).unwrap();
        // Its folder has gone, or is none any more.
        for path in [dir.path().join("no/park"), dir.path().join("other/park")] {
            BackingFile { path, ..backing.clone() }.remove().unwrap();
        }
        fs::create_dir(&path).unwrap();
        backing.remove().unwrap();
        assert!(path.is_dir());
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        backing.remove().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn an_inode_number_that_was_used_again_is_not_enough() {
        let dir = tempfile::tempdir().unwrap();
        let mut backing = made(&dir.path().join("park"));
        if let Some(born_ns) = &mut backing.file.born_ns {
            *born_ns += 1;
            backing.remove().unwrap();
            assert!(backing.path.exists());
        }
    }
}
