//! The runtime folder: where running disks are known, and how dead ones are cleaned up.
//!
//! One sub-folder per disk. A disk lives as long as its lock is held: the server
//! holds it from before the folder is visible until it is empty, and the kernel
//! lets go of it however the server ends. Whoever makes, judges or clears a
//! sub-folder holds the lock of the whole folder, so a half-made one is never
//! seen. Process ids are kept for messages and for signalling by descriptor;
//! they never decide who is alive.

mod disk_dir;
mod kept_log;
pub mod location;
pub mod state;
mod sweep;

pub use disk_dir::DiskDir;
pub use sweep::{Cleared, Fate};

use crate::cli::request::DiskName;
use crate::failure::{Exit, Failure, Outcome};
use location::Location;
use pagefold_sys::rundir::{RunDir, RunDirError};
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for another command that makes or clears folders.
const PATIENCE: Duration = Duration::from_secs(15);
/// Names tried when none is given.
const MAX_NUMBERED: usize = 10_000;
/// The file whose lock covers the whole folder. No disk can have this name.
const LOCK: &str = ".lock";
/// The folder of image mounts, which is made like this one. No disk can have this name.
const IMAGES: &str = ".images";

/// The verified runtime folder.
#[derive(Debug)]
pub struct Runtime {
    dir: RunDir,
}

/// The lock of the whole runtime folder, held until dropped.
pub struct Locked<'r> {
    runtime: &'r Runtime,
    _file: File,
}

/// A new disk's folder, and the lock that says it lives.
pub struct NewDisk {
    /// The folder, empty but for the lock file.
    pub dir: DiskDir,
    /// The held lock; whoever has a duplicate of it keeps the disk alive.
    pub lock: File,
}

impl Runtime {
    /// Opens the folder, and makes it if it is missing.
    pub fn open_or_create() -> Outcome<Self> {
        Location::find()?.open_or_create().map(|dir| Runtime { dir })
    }

    /// Opens the folder; `None` if it is missing, and so no disk runs.
    pub fn open() -> Outcome<Option<Self>> {
        let location = Location::find()?;
        match RunDir::open(location.path()) {
            Ok(dir) => Ok(Some(Runtime { dir })),
            Err(RunDirError::Missing(missing)) if location.makes(&missing) => Ok(None),
            Err(e) => Err(location::refused(location.path(), &e)),
        }
    }

    /// The folder of image mounts inside the runtime folder; makes both if they are missing.
    pub fn open_or_create_images() -> Outcome<Self> {
        let path = Self::open_or_create()?.dir.join(IMAGES);
        RunDir::open_or_create(&path).map(|dir| Runtime { dir }).map_err(|e| location::refused(&path, &e))
    }

    /// The folder of image mounts; `None` if it is missing, and so none is served.
    pub fn open_images() -> Outcome<Option<Self>> {
        let Some(runtime) = Self::open()? else { return Ok(None) };
        let path = runtime.dir.join(IMAGES);
        match RunDir::open(&path) {
            Ok(dir) => Ok(Some(Runtime { dir })),
            Err(RunDirError::Missing(_)) => Ok(None),
            Err(e) => Err(location::refused(&path, &e)),
        }
    }

    /// The folder that holds the folder of `dir`.
    pub fn around(dir: &DiskDir) -> Outcome<Self> {
        let path = dir.path().parent().unwrap_or(dir.path());
        RunDir::open(path).map(|dir| Runtime { dir }).map_err(|e| location::refused(path, &e))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of one disk, which may not exist.
    pub fn disk(&self, name: &DiskName) -> DiskDir {
        DiskDir::new(name.clone(), self.dir.join(name.as_str()))
    }

    /// Waits for the lock of the whole folder.
    pub fn lock(&self) -> Outcome<Locked<'_>> {
        let path = self.dir.join(LOCK);
        let file = open_lock(&path)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Locked { runtime: self, _file: file }),
                Err(TryLockError::Error(e)) => {
                    return Err(Failure::io(format!("locking '{}'", path.display()), &e));
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    return Err(Failure::new(
                        Exit::Busy,
                        format!(
                            "another pagefold command has held '{}' for {} s; see what it waits for",
                            path.display(),
                            PATIENCE.as_secs()
                        ),
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

fn open_lock(path: &Path) -> Outcome<File> {
    let opened =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path);
    opened.map_err(|e| Failure::io(format!("opening '{}'", path.display()), &e))
}

impl Locked<'_> {
    /// The folders of all disks, living or dead, by name.
    pub fn disks(&self) -> Outcome<Vec<DiskDir>> {
        let path = self.runtime.path();
        let failed = |e| Failure::io(format!("reading '{}'", path.display()), &e);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            let name = entry.file_name().to_str().and_then(|n| DiskName::parse(n).ok());
            if let (true, Some(name)) = (is_dir, name) {
                found.push(self.runtime.disk(&name));
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
    }

    /// Makes the folder of a new disk, under `name` or the first free number.
    pub fn make(&self, name: Option<&DiskName>) -> Outcome<NewDisk> {
        let is_images = self.runtime.path().ends_with(IMAGES);
        let numbered = (0..MAX_NUMBERED).map(|n| match is_images {
            true => DiskName::numbered_mount(n),
            false => DiskName::numbered(n),
        });
        let names: Box<dyn Iterator<Item = DiskName>> = match name {
            Some(name) => Box::new(std::iter::once(name.clone())),
            None => Box::new(numbered),
        };
        for candidate in names {
            let dir = self.runtime.disk(&candidate);
            match dir.make() {
                Ok(()) => {
                    let lock = open_lock(&dir.lock_path())?;
                    lock.try_lock().map_err(|e| {
                        Failure::failed(format!("locking '{}': {e}", dir.lock_path().display()))
                    })?;
                    return Ok(NewDisk { dir, lock });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Failure::io(format!("making '{}'", dir.path().display()), &e)),
            }
        }
        Err(match name {
            Some(name) => Failure::new(
                Exit::Busy,
                format!("there is a disk '{name}' already; choose another name, or remove it first"),
            ),
            None if is_images => Failure::new(Exit::Busy, "all names mount0 to mount9999 are taken"),
            None => Failure::new(Exit::Busy, "all names disk0 to disk9999 are taken; choose one with --name"),
        })
    }

    /// Clears up after disks whose server died. Returns a line for the user about each.
    pub fn sweep(&self) -> Outcome<Vec<String>> {
        let mut notes = Vec::new();
        for dir in self.disks()? {
            if !dir.is_alive() {
                notes.push(sweep::clear(&dir).note);
            }
        }
        Ok(notes)
    }

    /// Clears up after one disk that is known to be dead.
    pub fn clear(&self, dir: &DiskDir) -> Cleared {
        sweep::clear(dir)
    }

    /// Clears what an attempt to serve left, but keeps the folder and its lock.
    pub fn clear_remains(&self, dir: &DiskDir) -> Outcome<()> {
        sweep::clear_door(dir)?;
        dir.empty()
    }
}
