//! The runtime folder: one sub-folder for each running disk, and in `.images` one for each mounted image.
//!
//! An instance is alive as long as the lock file in its folder is locked. The command that creates the folder takes the
//! lock and passes a duplicate to the server, and the kernel releases the lock when the last process with a duplicate
//! has exited, however it ended. Process ids in state files are for messages and for signals; they decide whether a
//! server is alive only if the lock file cannot be opened or locked, for instance because somebody removed it.
//!
//! A process that creates, judges or removes a sub-folder holds the lock of the runtime folder ([`LockedRuntimeDir`]),
//! so no other process sees a half-made one. It waits for that lock for 15 seconds, then the command fails as busy.
//!
//! A server that was killed leaves its folder, and perhaps a loop device, a mount and a backing file. The next command
//! cleans them up ([`LockedRuntimeDir::sweep`] for disks, [`mounts::sweep`] for images).
//!
//! | module | contents |
//! |---|---|
//! | `location` | the path of the runtime folder |
//! | `name`, `dir`, `state` | the name, the files and the state file of an instance |
//! | `counter` | the counter of generated names |
//! | `keeper`, `processes` | the state of the process that starts the next server; both processes |
//! | `loop_device`, `saved_log`, `sweep` | cleaning up after the server of a disk |
//! | `mounts` | finding and cleaning up mounted images |

mod counter;
mod dir;
pub mod keeper;
pub mod location;
pub mod loop_device;
pub mod mounts;
mod name;
mod processes;
mod saved_log;
pub mod state;
mod sweep;

pub use dir::{DEVICE_LINK, InstanceDir, MOUNT_DIR};
pub use name::InstanceName;
pub use processes::Processes;
pub use sweep::{CleanupReport, EndReason};

use crate::error::{CliError, Exit, Result};
use location::{IMAGES, Location};
use pagefold_sys::rundir::{RunDir, RunDirError};
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for the lock of the runtime folder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);
/// The lock file of a runtime folder. No disk can have this name.
const LOCK: &str = ".lock";

/// A runtime folder, of disks or of mounted images, whose owner and permissions were checked.
#[derive(Debug)]
pub struct RuntimeDir {
    dir: RunDir,
}

/// A runtime folder with its lock held until this is dropped.
pub struct LockedRuntimeDir<'r> {
    runtime: &'r RuntimeDir,
    _file: File,
}

/// The folder of a new instance, with its lock.
pub struct NewInstance {
    /// The folder, empty but for the lock file.
    pub dir: InstanceDir,
    /// The lock, held. The instance is alive while a process holds this or a duplicate of it.
    pub lock: File,
}

impl RuntimeDir {
    /// Opens the runtime folder of disks, and creates it if it is missing.
    pub fn open_or_create() -> Result<Self> {
        Location::find()?.open_or_create().map(|dir| RuntimeDir { dir })
    }

    /// Opens the runtime folder of disks; `None` if it is missing, and so no disk runs.
    pub fn open() -> Result<Option<Self>> {
        let location = Location::find()?;
        match RunDir::open(location.path()) {
            Ok(dir) => Ok(Some(RuntimeDir { dir })),
            Err(RunDirError::Missing(missing)) if location.creates(&missing) => Ok(None),
            Err(e) => Err(location::refused(location.path(), &e)),
        }
    }

    /// Opens the runtime folder of mounted images, and creates it, and the one around it, if they are missing.
    pub fn open_or_create_images() -> Result<Self> {
        let path = Self::open_or_create()?.dir.join(IMAGES);
        RunDir::open_or_create(&path).map(|dir| RuntimeDir { dir }).map_err(|e| location::refused(&path, &e))
    }

    /// Opens the runtime folder of mounted images; `None` if it is missing, and so no image is mounted.
    pub fn open_images() -> Result<Option<Self>> {
        let Some(runtime) = Self::open()? else { return Ok(None) };
        let path = runtime.dir.join(IMAGES);
        match RunDir::open(&path) {
            Ok(dir) => Ok(Some(RuntimeDir { dir })),
            Err(RunDirError::Missing(_)) => Ok(None),
            Err(e) => Err(location::refused(&path, &e)),
        }
    }

    /// Opens the runtime folder that contains `dir`.
    pub fn containing(dir: &InstanceDir) -> Result<Self> {
        let path = dir.path().parent().unwrap_or(dir.path());
        RunDir::open(path).map(|dir| RuntimeDir { dir }).map_err(|e| location::refused(path, &e))
    }

    /// The path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of an instance, which may not exist.
    pub fn instance(&self, name: &InstanceName) -> InstanceDir {
        InstanceDir::new(name.clone(), self.dir.join(name.as_str()))
    }

    /// The folders of all instances, alive or dead, ordered by name. Without the lock, some may be half-made or half-removed.
    pub fn instances(&self) -> Result<Vec<InstanceDir>> {
        let path = self.path();
        let failed = |e| CliError::io(format!("reading '{}'", path.display()), &e);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            let name = entry.file_name().to_str().and_then(|n| InstanceName::parse(n).ok());
            if let (true, Some(name)) = (is_dir, name) {
                found.push(self.instance(&name));
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
    }

    /// Takes the lock of the runtime folder if no process holds it. For those that must not wait: the holder may wait for
    /// them.
    pub fn try_lock(&self) -> Result<Option<LockedRuntimeDir<'_>>> {
        let path = self.dir.join(LOCK);
        let file = open_lock(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(LockedRuntimeDir { runtime: self, _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(CliError::io(format!("locking '{}'", path.display()), &e)),
        }
    }

    /// Waits for the lock of the runtime folder; fails as busy after 15 seconds.
    pub fn lock(&self) -> Result<LockedRuntimeDir<'_>> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match self.try_lock()? {
                Some(locked) => return Ok(locked),
                None if Instant::now() >= deadline => {
                    return Err(CliError::new(
                        Exit::Busy,
                        format!(
                            "another pagefold command has held '{}' for {} s; see what it waits for",
                            self.dir.join(LOCK).display(),
                            LOCK_TIMEOUT.as_secs()
                        ),
                    ));
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

fn open_lock(path: &Path) -> Result<File> {
    let opened =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path);
    opened.map_err(|e| CliError::io(format!("opening '{}'", path.display()), &e))
}

impl LockedRuntimeDir<'_> {
    /// The folder of an instance, which may not exist.
    pub fn instance(&self, name: &InstanceName) -> InstanceDir {
        self.runtime.instance(name)
    }

    /// The folders of all instances, alive or dead, ordered by name.
    pub fn instances(&self) -> Result<Vec<InstanceDir>> {
        self.runtime.instances()
    }

    /// Creates the folder of a new instance, named `name` or else by the counter, and locks it.
    pub fn create(&self, name: Option<&InstanceName>) -> Result<NewInstance> {
        let name = match name {
            Some(name) => name.clone(),
            None => self.generate_name()?,
        };
        let dir = self.runtime.instance(&name);
        dir.create().map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => CliError::new(
                Exit::Busy,
                format!("there is a disk '{name}' already; choose another name, or remove it first"),
            ),
            _ => CliError::io(format!("making '{}'", dir.path().display()), &e),
        })?;
        let lock = open_lock(&dir.lock_path())?;
        lock.try_lock()
            .map_err(|e| CliError::failed(format!("locking '{}': {e}", dir.lock_path().display())))?;
        Ok(NewInstance { dir, lock })
    }

    fn generate_name(&self) -> Result<InstanceName> {
        let runtime = self.runtime.path();
        let prefix = if runtime.ends_with(IMAGES) { "mount" } else { "disk" };
        let is_taken = |name: &InstanceName| runtime.join(name.as_str()).symlink_metadata().is_ok();
        counter::take(runtime, prefix, &self.instances()?, is_taken)
    }

    /// Cleans up after all disks whose server died, and calls `note` with a message about each. Returns the others.
    ///
    /// Each is judged once: a server that dies afterwards is among the returned, and its clients notice that.
    pub fn sweep(&self, note: impl Fn(&str)) -> Result<Vec<InstanceDir>> {
        let (alive, dead): (Vec<_>, Vec<_>) = self.instances()?.into_iter().partition(InstanceDir::is_alive);
        dead.iter().for_each(|dir| note(&sweep::clean_up(dir).message));
        Ok(alive)
    }

    /// Cleans up after one disk, which must be dead.
    pub fn clean_up(&self, dir: &InstanceDir) -> CleanupReport {
        sweep::clean_up(dir)
    }

    /// Cleans up after a server that could not start, but keeps the folder and its lock for another attempt.
    pub fn clean_up_attempt(&self, dir: &InstanceDir) -> Result<()> {
        sweep::remove_export(dir)?;
        dir.remove_contents()
    }
}
