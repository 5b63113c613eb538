//! The folder of one instance: the paths of its files, and whether its server is alive.

use super::keeper;
use super::location::IMAGES;
use super::name::InstanceName;
use super::processes::Processes;
use super::state::{self, Server, State};
use crate::error::{CliError, Result};
use pagefold_sys::pidfd::{Identity, Process};
use serde::Deserialize;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of [`InstanceDir::device_link_path`].
pub const DEVICE_LINK: &str = "device";
/// The name of the directory on which the server of a loop device mounts the file behind it.
pub const MOUNT_DIR: &str = "mnt";
/// Most bytes of a log that messages quote.
const LOG_TAIL_BYTES: u64 = 2000;

/// The field that the state files of disks and of mounted images have in common.
#[derive(Deserialize)]
struct ServerOf {
    server: Option<Server>,
}

/// The folder of one instance, inside the checked runtime folder. It may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDir {
    name: InstanceName,
    path: PathBuf,
}

impl InstanceDir {
    pub(super) fn new(name: InstanceName, path: PathBuf) -> Self {
        InstanceDir { name, path }
    }

    /// The folder at `path`, for the server process: the command that started it has created and checked it.
    pub fn at(path: PathBuf) -> Result<Self> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        Ok(InstanceDir { name: InstanceName::parse(name)?, path })
    }

    /// The name of the instance.
    pub fn name(&self) -> &InstanceName {
        &self.name
    }

    /// "disk" or "mount" with the name, for messages.
    pub fn title(&self) -> String {
        format!("{} '{}'", if self.is_mount() { "mount" } else { "disk" }, self.name)
    }

    /// Whether the instance is a mounted image.
    pub fn is_mount(&self) -> bool {
        self.path.parent().is_some_and(|parent| parent.ends_with(IMAGES))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock file. The server holds its lock.
    pub fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// The control socket.
    pub fn control_path(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// The socket of the NBD export.
    pub fn nbd_path(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// The mount point of the loop export's FUSE file system.
    pub fn mount_path(&self) -> PathBuf {
        self.path.join(MOUNT_DIR)
    }

    /// A link to the loop device of a disk, which has another number each time: for programs that need a path in advance.
    pub fn device_link_path(&self) -> PathBuf {
        self.path.join(DEVICE_LINK)
    }

    /// The log of the server.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }

    fn state_path(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Creates the folder, accessible to this user only.
    pub fn create(&self) -> std::io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)
    }

    /// Whether a process holds the lock of the instance. The caller holds the lock of the runtime folder.
    ///
    /// Only if the lock file cannot be opened or locked, for instance because somebody removed it, the recorded server
    /// process decides: cleaning up after a living server would take the device from its users.
    pub fn is_alive(&self) -> bool {
        match File::open(self.lock_path()).map(|file| file.try_lock()) {
            Ok(Ok(())) => false,
            Ok(Err(TryLockError::WouldBlock)) => true,
            Ok(Err(TryLockError::Error(_))) | Err(_) => self.is_server_running(),
        }
    }

    /// Whether the process that the state file records as the server is running.
    fn is_server_running(&self) -> bool {
        let server = self.recorded_server();
        server.is_some_and(|server| {
            let recorded = Identity::from(&server);
            Identity::of(recorded.pid) == Some(recorded)
        })
    }

    fn recorded_server(&self) -> Option<Server> {
        self.read_state_as::<ServerOf>()?.server
    }

    /// The process id of the server, from the state file.
    pub fn server_pid(&self) -> Option<i32> {
        Some(self.recorded_server()?.pid)
    }

    /// The processes of the instance, to wait for their end or to kill them: found before a request to end, because
    /// afterwards their ids may be reused.
    pub fn processes(&self) -> Result<Processes> {
        let server = self.recorded_server().map(|server| Process::open(&Identity::from(&server)));
        Ok(Processes { server: server.transpose()?.flatten(), keeper: self.keeper_process()? })
    }

    /// Whether the folder exists.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// Writes the state so that a reader sees the old one or the new one, whole.
    pub fn write_state(&self, state: &impl serde::Serialize) -> Result<()> {
        let path = self.state_path();
        let failed = |e: std::io::Error| CliError::io(format!("writing '{}'", path.display()), &e);
        let new = self.path.join("state.new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new);
        let file = file.as_mut().map_err(|e| failed(std::io::Error::from(e.kind())))?;
        let text = serde_json::to_vec_pretty(state).map_err(|e| failed(e.into()))?;
        file.write_all(&text).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)
    }

    /// Reads the state file of a disk; `None` if there is none or it cannot be parsed.
    pub fn read_state(&self) -> Option<State> {
        self.read_state_as().filter(|s: &State| s.name == self.name)
    }

    /// Reads the state file as another type, such as the state of a mounted image.
    pub fn read_state_as<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        let mut text = Vec::new();
        File::open(self.state_path()).ok()?.take(state::MAX_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Records that the server closed its device in an orderly way, so that [`super::EndReason::Ended`] is reported.
    /// The mark is an empty file, which needs no free space.
    pub fn mark_ended(&self) -> Result<()> {
        let path = self.ended_path();
        File::create(&path).map(|_| ()).map_err(|e| CliError::io(format!("making '{}'", path.display()), &e))
    }

    /// Whether [`InstanceDir::mark_ended`] was called.
    pub fn has_ended(&self) -> bool {
        self.ended_path().exists()
    }

    fn ended_path(&self) -> PathBuf {
        self.path.join("ended")
    }

    /// Opens the log for appending.
    pub fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        opened.map_err(|e| CliError::io(format!("opening '{}'", path.display()), &e))
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

    /// Removes all files of the instance but its lock. Missing files are no error; files of others stay.
    pub fn remove_contents(&self) -> Result<()> {
        let sockets = [self.control_path(), self.nbd_path()];
        let files = [self.state_path(), self.path.join("state.new"), self.log_path(), self.ended_path()];
        let of_keeper = [keeper::STATE, keeper::STATE_NEW, keeper::PROGRAM].map(|name| self.path.join(name));
        let links = [self.device_link_path()];
        for path in sockets.into_iter().chain(files).chain(links).chain(of_keeper) {
            tolerate_missing(std::fs::remove_file(&path), &path)?;
        }
        tolerate_missing(std::fs::remove_dir(self.mount_path()), &self.mount_path())
    }

    /// Removes all files of the instance, and the folder; an error if files of others are in it.
    pub fn remove(&self) -> Result<()> {
        self.remove_contents()?;
        tolerate_missing(std::fs::remove_file(self.lock_path()), &self.lock_path())?;
        tolerate_missing(std::fs::remove_dir(&self.path), &self.path)
    }
}

fn tolerate_missing(result: std::io::Result<()>, path: &Path) -> Result<()> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::io(format!("removing '{}'", path.display()), &e))
        }
        _ => Ok(()),
    }
}
