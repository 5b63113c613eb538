//! The folder of one disk: the names of its files, and whether it is alive.

use super::state::{self, Server, State};
use crate::cli::request::DiskName;
use crate::failure::{Failure, Outcome};
use pagefold_sys::pidfd::{Identity, Process};
use serde::Deserialize;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most of a log that is quoted, bytes.
const LOG_TAIL_BYTES: u64 = 2000;

/// What the states of disks and of mounts have in common.
#[derive(Deserialize)]
struct ServerOf {
    server: Option<Server>,
}

/// The folder of one disk, inside the verified runtime folder. It may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDir {
    name: DiskName,
    path: PathBuf,
}

impl DiskDir {
    pub(super) fn new(name: DiskName, path: PathBuf) -> Self {
        DiskDir { name, path }
    }

    /// A folder named to a server process by the command that made it.
    pub fn at(path: PathBuf) -> Outcome<Self> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        Ok(DiskDir { name: DiskName::parse(name)?, path })
    }

    /// The disk's name.
    pub fn name(&self) -> &DiskName {
        &self.name
    }

    /// Whether it is a disk or the mount of an image, and which: for messages.
    pub fn title(&self) -> String {
        format!("{} '{}'", if self.is_mount() { "mount" } else { "disk" }, self.name)
    }

    /// Whether it is of a mounted image.
    pub fn is_mount(&self) -> bool {
        self.path.parent().is_some_and(|parent| parent.ends_with(super::IMAGES))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Held locked by whoever keeps the disk alive.
    pub fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Where the server takes commands.
    pub fn control_path(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// Where NBD clients connect.
    pub fn nbd_path(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// Where the FUSE file system is mounted.
    pub fn mount_path(&self) -> PathBuf {
        self.path.join("mnt")
    }

    /// What the server said.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }

    fn state_path(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Makes the folder, for this user alone.
    pub fn make(&self) -> std::io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)
    }

    /// Whether somebody holds the lock. Ask only while holding the lock of the whole folder.
    ///
    /// Where the lock cannot be asked, because somebody removed the file for one, the process of the server
    /// decides: to clear up after a server that lives would take the device from its users.
    pub fn is_alive(&self) -> bool {
        match File::open(self.lock_path()).map(|file| file.try_lock()) {
            Ok(Ok(())) => false,
            Ok(Err(TryLockError::WouldBlock)) => true,
            Ok(Err(TryLockError::Error(_))) | Err(_) => self.server_runs(),
        }
    }

    /// Whether the process that is written down as the server runs.
    fn server_runs(&self) -> bool {
        let server = self.recorded_server();
        server.is_some_and(|server| matches!(Process::open(&Identity::from(&server)), Ok(Some(_))))
    }

    fn recorded_server(&self) -> Option<Server> {
        self.read_state_as::<ServerOf>()?.server
    }

    /// The process id of the server, as it wrote it down.
    pub fn server_pid(&self) -> Option<i32> {
        Some(self.recorded_server()?.pid)
    }

    /// Whether there is such a folder.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// Writes the state so that a reader sees the old one or the new one, whole.
    pub fn write_state(&self, state: &impl serde::Serialize) -> Outcome<()> {
        let path = self.state_path();
        let failed = |e: std::io::Error| Failure::io(format!("writing '{}'", path.display()), &e);
        let new = self.path.join("state.new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new);
        let file = file.as_mut().map_err(|e| failed(std::io::Error::from(e.kind())))?;
        let text = serde_json::to_vec_pretty(state).map_err(|e| failed(e.into()))?;
        file.write_all(&text).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)
    }

    /// The state; `None` if there is none or it makes no sense.
    pub fn read_state(&self) -> Option<State> {
        self.read_state_as().filter(|s: &State| s.name == self.name)
    }

    /// The state in another form: that of a mount.
    pub fn read_state_as<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        let mut text = Vec::new();
        File::open(self.state_path()).ok()?.take(state::MAX_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Marks that the server gave the device up in order, so that what is left is only to be cleared. An empty
    /// file takes no room, which there may be none of.
    pub fn mark_ended(&self) -> Outcome<()> {
        let path = self.ended_path();
        File::create(&path).map(|_| ()).map_err(|e| Failure::io(format!("making '{}'", path.display()), &e))
    }

    /// Whether [`DiskDir::mark_ended`] was called.
    pub fn has_ended(&self) -> bool {
        self.ended_path().exists()
    }

    fn ended_path(&self) -> PathBuf {
        self.path.join("ended")
    }

    /// Opens the log to append to it.
    pub fn open_log(&self) -> Outcome<File> {
        let path = self.log_path();
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        opened.map_err(|e| Failure::io(format!("opening '{}'", path.display()), &e))
    }

    /// The last lines of the log; empty if there are none.
    pub fn log_tail(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(self.log_path())?;
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_string())
        };
        read().unwrap_or_default()
    }

    /// Removes everything that a disk has in its folder but the lock. What is gone already is no
    /// failure; what is not ours stays, and then the folder does too.
    pub fn empty(&self) -> Outcome<()> {
        let sockets = [self.control_path(), self.nbd_path()];
        let files = [self.state_path(), self.path.join("state.new"), self.log_path(), self.ended_path()];
        for path in sockets.into_iter().chain(files) {
            tolerate_missing(std::fs::remove_file(&path), &path)?;
        }
        tolerate_missing(std::fs::remove_dir(self.mount_path()), &self.mount_path())
    }

    /// Removes the folder with everything that a disk has in it.
    pub fn remove(&self) -> Outcome<()> {
        self.empty()?;
        tolerate_missing(std::fs::remove_file(self.lock_path()), &self.lock_path())?;
        tolerate_missing(std::fs::remove_dir(&self.path), &self.path)
    }
}

fn tolerate_missing(result: std::io::Result<()>, path: &Path) -> Outcome<()> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::io(format!("removing '{}'", path.display()), &e))
        }
        _ => Ok(()),
    }
}
