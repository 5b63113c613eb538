//! A reference-counted directory of the target whose metadata is applied when its contents are complete.
//!
//! The walk, each file that is being written and each subdirectory hold a reference to the directory that they are in.
//! The thread that [releases](PendingDir::release) the last reference applies the owner, attributes, mode and times,
//! and then releases the parent. The walk holds its reference to some directories until its end (see `tree`).
//!
//! An image can nest a thousand directories with names of 255 bytes, so a directory stores only its name, and the walk
//! [closes](PendingDir::close) the descriptors of directories far above the current one. A closed directory is opened
//! again from its nearest open ancestor, name by name. Its device and inode number must be the same as before, or this
//! fails: another user may have replaced it.
//!
//! Each directory has a lock for its descriptor. A thread holds one of these at a time, and no other lock under it.

use super::metadata;
use super::shared::Shared;
use crate::finding::FileError;
use crate::{Finding, Node};
use pagefold_sys::SysError;
use pagefold_sys::beneath::Folder;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most directories that are open at a time, whatever the process's limit is.
const MAX_OPEN: usize = 4096;
/// Number of directories that stay open when a path is opened again: the requested one and its nearest parents.
const REOPENED_PARENTS: usize = 16;

/// Number of open directories and their limit: each takes a descriptor of the process.
pub(super) struct Descriptors {
    open: AtomicUsize,
    most: usize,
}

impl Descriptors {
    /// A limit of a quarter of `RLIMIT_NOFILE`, because files are open too.
    fn of_process() -> Arc<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(limit / 4).unwrap_or(usize::MAX).clamp(1, MAX_OPEN);
        Arc::new(Descriptors { open: AtomicUsize::new(0), most })
    }
}

/// A directory of the target that is being filled.
pub(super) struct PendingDir {
    /// The descriptor; `None` while it is closed. The target's is never closed.
    folder_slot: Mutex<Option<Arc<Folder>>>,
    descriptors: Arc<Descriptors>,
    /// Its [`Folder::identity`] when it was created.
    identity: (u64, u64),
    /// The last part of its path; empty for the target.
    name: Box<[u8]>,
    /// The parent directory; `None` for the target.
    parent: Option<Arc<PendingDir>>,
    /// The inode whose metadata is applied. `None` for the target if only a part of the image is extracted: it keeps
    /// its own.
    node: Option<Node>,
}

impl PendingDir {
    /// The target directory. `node` is the image's root, if its metadata is to be applied.
    pub(super) fn root(folder: Folder, node: Option<Node>) -> Result<Arc<Self>, SysError> {
        Self::new(folder, None, b"", node)
    }

    /// A directory in `parent`.
    pub(super) fn within(
        parent: &Arc<PendingDir>,
        folder: Folder,
        node: &Node,
        name: &[u8],
    ) -> Result<Arc<Self>, SysError> {
        Self::new(folder, Some(parent.clone()), name, Some(node.clone()))
    }

    fn new(
        folder: Folder,
        parent: Option<Arc<PendingDir>>,
        name: &[u8],
        node: Option<Node>,
    ) -> Result<Arc<Self>, SysError> {
        let identity = folder.identity()?;
        let descriptors =
            parent.as_ref().map_or_else(Descriptors::of_process, |parent| parent.descriptors.clone());
        let (folder_slot, name) = (Mutex::default(), name.into());
        let dir = PendingDir { folder_slot, descriptors, identity, name, parent, node };
        dir.set_open(Arc::new(folder));
        Ok(Arc::new(dir))
    }

    fn set_open(&self, folder: Arc<Folder>) {
        if self.folder_slot().replace(folder).is_none() {
            self.descriptors.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn folder_slot(&self) -> MutexGuard<'_, Option<Arc<Folder>>> {
        self.folder_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the directory's descriptor. If it is closed, opens it for the caller only.
    pub(super) fn folder(&self) -> Result<Arc<Folder>, SysError> {
        self.reopen(0)
    }

    /// Opens the directory again if it was closed, and keeps it open, with some parents, which the walk needs next.
    pub(super) fn keep_open(&self) -> Result<(), SysError> {
        self.reopen(REOPENED_PARENTS).map(|_| ())
    }

    /// Opens the closed directories from the nearest open ancestor down to this one, and keeps the last `keep_levels`
    /// open.
    fn reopen(&self, keep_levels: usize) -> Result<Arc<Folder>, SysError> {
        let (mut closed, mut dir) = (Vec::new(), self);
        let mut folder = loop {
            if let Some(folder) = &*dir.folder_slot() {
                break folder.clone();
            }
            closed.push(dir);
            match &dir.parent {
                Some(parent) => dir = parent,
                // Unreachable: the target stays open.
                None => {
                    let errno = rustix::io::Errno::NOENT.raw_os_error();
                    return Err(SysError::new("reopening the directory", errno));
                }
            }
        };
        for (distance, dir) in closed.iter().enumerate().rev() {
            folder = Arc::new(folder.open_folder(&dir.name)?);
            if folder.identity()? != dir.identity {
                let what = format!("opening '{}' again, which has been replaced", dir.name.escape_ascii());
                return Err(SysError::new(what, rustix::io::Errno::STALE.raw_os_error()));
            }
            if distance < keep_levels {
                dir.set_open(folder.clone());
            }
        }
        Ok(folder)
    }

    /// Closes the descriptor until the directory is used again. The target stays open.
    pub(super) fn close(&self) {
        if self.parent.is_some() && self.folder_slot().take().is_some() {
            self.descriptors.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes the descriptor if too many are open. The walk calls this when it leaves a directory whose files may still
    /// wait for workers.
    pub(super) fn close_if_many(&self) {
        if self.descriptors.open.load(Ordering::Relaxed) > self.descriptors.most {
            self.close();
        }
    }

    /// The directory's path in the image.
    pub(super) fn path(&self) -> Vec<u8> {
        let (mut names, mut dir) = (Vec::new(), self);
        while let Some(parent) = &dir.parent {
            names.push(&*dir.name);
            dir = parent;
        }
        names.reverse();
        [b"/".as_slice(), &names.join(b"/".as_slice())].concat()
    }

    /// The path in the image of the entry `name`.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path();
        path.extend(self.parent.is_some().then_some(b'/'));
        path.extend_from_slice(name);
        path
    }

    /// Releases a reference. The last one applies the directory's metadata, closes it, and releases the parent.
    pub(super) fn release(self: Arc<Self>, shared: &Shared<'_>) {
        let mut next = Some(self);
        while let Some(dir) = next.and_then(Arc::into_inner) {
            if let Some(node) = &dir.node {
                // The parents usually complete next.
                let keep_levels = if dir.folder_slot().is_none() { REOPENED_PARENTS } else { 0 };
                let folder = dir.reopen(keep_levels).map_err(FileError::from);
                if let Err(failure) = folder.and_then(|folder| metadata::apply_to_dir(&folder, node, shared))
                {
                    shared.finding(Finding::of_file_error(&dir.path(), failure));
                }
            }
            dir.close();
            next = dir.parent;
        }
    }
}
