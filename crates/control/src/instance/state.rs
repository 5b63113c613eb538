//! The state files of instances (`state.json`): everything that a later command needs to clean up after a dead server.

use super::InstanceName;
use crate::error::{CliError, Result};
use pagefold_sys::loopdev::{self, LoopIdentity};
use pagefold_sys::pidfd;
use serde::{Deserialize, Serialize};
use std::fs::{Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Longest state file that is read, bytes.
pub const MAX_BYTES: u64 = 64 << 10;

/// The state file of a disk. It is written before a backing file is used or a file system is mounted, and again when
/// the export is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Name of the disk.
    pub name: InstanceName,
    /// The server process; absent before it is started, and where `/proc` does not identify it.
    pub server: Option<Server>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it was created, seconds since 1970.
    pub created_unix_s: u64,
    /// The export; absent until one is about to be opened.
    pub export: Option<ExportState>,
    /// The backing file that was created for this disk, and is removed with it.
    #[serde(default)]
    pub backing: Option<BackingFile>,
}

/// The state file of a mounted image. It is written before and after the mount, by processes that parse nothing of the image:
/// their successors trust it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountState {
    /// The image.
    #[serde(with = "crate::path")]
    pub image: PathBuf,
    /// Where it is mounted.
    #[serde(with = "crate::path")]
    pub mount_point: PathBuf,
    /// The server process.
    pub server: Option<Server>,
    /// The device number of the file system, major and minor; absent until it is mounted.
    #[serde(default)]
    pub device: Option<(u32, u32)>,
}

/// The identity of a server process. Process ids are reused; with start time and boot they are unique.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Process id.
    pub pid: i32,
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
    /// Identity of the boot.
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

/// The things of an export that outlive a killed server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExportState {
    /// An NBD server: leaves nothing but a socket file in the folder.
    Nbd {
        /// The URI that clients connect to.
        uri: String,
    },
    /// A loop device over a FUSE file.
    Loop {
        /// `/dev/loopN`; absent until it is attached.
        #[serde(with = "crate::path::option")]
        device: Option<PathBuf>,
        /// The file attached to it; absent until it is attached.
        backing: Option<LoopBackingFile>,
        /// Where the FUSE file system is mounted.
        #[serde(with = "crate::path")]
        mount_point: PathBuf,
    },
}

impl ExportState {
    /// Device path or NBD URI; empty until there is one.
    pub fn device(&self) -> String {
        match self {
            ExportState::Nbd { uri } => uri.clone(),
            ExportState::Loop { device, .. } => {
                device.as_ref().map(|device| device.display().to_string()).unwrap_or_default()
            }
        }
    }
}

/// The identity of the file that is attached to a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopBackingFile {
    /// The device number of its file system.
    pub device: u64,
    /// Its inode number, which is random.
    pub inode: u64,
}

/// A backing file that was created for a disk and is removed with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingFile {
    /// Its absolute path at creation.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// The identity of the file.
    pub file: CreatedFile,
}

/// The identity of a created file, so that another file at the same path is never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedFile {
    /// The device number of its file system.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
    /// Its creation time, nanoseconds since 1970, where the file system records it: inode numbers are reused.
    pub born_ns: Option<u64>,
}

impl CreatedFile {
    /// The identity of the file with this metadata.
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
    /// Removes the file if it is still the one at its path. Succeeds if there is none, or another.
    pub fn remove(&self) -> Result<()> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match self.try_remove() {
            Err(e) if !matches!(e.kind(), NotFound | NotADirectory) => {
                Err(CliError::io(format!("removing the backing file '{}'", self.path.display()), &e))
            }
            _ => Ok(()),
        }
    }

    /// Holds the folder open between the comparison and the removal: its owner may replace it by a link to another
    /// folder.
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
    /// Device path or NBD URI; empty until there is one.
    pub fn device(&self) -> String {
        self.export.as_ref().map(ExportState::device).unwrap_or_default()
    }

    /// The loop device, if it is still attached to this disk. Somebody may have detached it, and another program may
    /// use its number by now.
    pub fn loop_device(&self) -> Option<PathBuf> {
        match &self.export {
            Some(ExportState::Loop { device: Some(device), backing: Some(backing), .. }) => {
                let expected = LoopIdentity { lo_device: backing.device, lo_inode: backing.inode };
                loopdev::identity(device).is_ok_and(|found| found == Some(expected)).then(|| device.clone())
            }
            Some(ExportState::Loop { .. } | ExportState::Nbd { .. }) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn create(path: &std::path::Path) -> BackingFile {
        fs::write(path, "pages").unwrap();
        let file = CreatedFile::of(&fs::symlink_metadata(path).unwrap());
        BackingFile { path: path.to_path_buf(), file }
    }

    #[test]
    fn only_the_created_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backing");
        create(&path).remove().unwrap();
        assert!(!path.exists());

        // Somebody has removed the file, and something else has its path. (The hard link keeps the inode in use, as an
        // open file of a server would.)
        let backing = create(&path);
        fs::hard_link(&path, dir.path().join("link")).unwrap();
        backing.remove().unwrap();
        backing.remove().unwrap();
        fs::write(dir.path().join("other"), "mine").unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        backing.remove().unwrap();
        assert!(path.is_symlink());
        fs::remove_file(&path).unwrap();
        // Its folder does not exist, or is a file.
        for path in [dir.path().join("no/backing"), dir.path().join("other/backing")] {
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
    fn a_new_file_with_the_same_inode_number_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut backing = create(&dir.path().join("backing"));
        if let Some(born_ns) = &mut backing.file.born_ns {
            *born_ns += 1;
            backing.remove().unwrap();
            assert!(backing.path.exists());
        }
    }
}
