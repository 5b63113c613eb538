//! A directory that is being filled, kept until nobody needs it.
//!
//! An image can nest a thousand directories with names of 255 bytes. So a directory knows its own name alone, and the walk
//! [closes](Place::close) those that are far above; what is closed is opened again from the nearest one that is open, name by
//! name, and must be the directory that it was.

use super::{Shared, dress};
use crate::{Finding, Node};
use pagefold_sys::SysError;
use pagefold_sys::beneath::Folder;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Directories that are open at a time, however many descriptors there may be.
const MAX_OPEN: usize = 4096;
/// Directories that are kept open above one that is opened again.
const KEPT_ABOVE: usize = 16;

/// How many directories are open, and may be: each takes a descriptor of the process.
pub(super) struct Descriptors {
    open: AtomicUsize,
    most: usize,
}

impl Descriptors {
    /// A quarter of what the process may have open: files are open too.
    fn of_process() -> Arc<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(limit / 4).unwrap_or(usize::MAX).clamp(1, MAX_OPEN);
        Arc::new(Descriptors { open: AtomicUsize::new(0), most })
    }
}

/// A directory of the target. What its inode says is set when the last of its users lets go: the walk, the files in it
/// that are being written, and the directories in it.
pub(super) struct Place {
    /// `None` while it is closed; the target never is.
    held: Mutex<Option<Arc<Folder>>>,
    descriptors: Arc<Descriptors>,
    /// What [`Folder::identity`] said when it was made.
    identity: (u64, u64),
    /// The last part of its path; empty for the target.
    name: Box<[u8]>,
    /// The directory above; the target has none.
    above: Option<Arc<Place>>,
    /// The inode. The target keeps what it has unless all of the image is extracted.
    dressed_as: Option<Node>,
}

impl Place {
    /// The target itself; `node` if it is to become like that, the root of the image.
    pub(super) fn root(folder: Folder, node: Option<Node>) -> Result<Arc<Self>, SysError> {
        Self::new(folder, None, b"", node)
    }

    /// A directory in `above`.
    pub(super) fn within(
        above: &Arc<Place>,
        folder: Folder,
        node: &Node,
        name: &[u8],
    ) -> Result<Arc<Self>, SysError> {
        Self::new(folder, Some(above.clone()), name, Some(node.clone()))
    }

    fn new(
        folder: Folder,
        above: Option<Arc<Place>>,
        name: &[u8],
        dressed_as: Option<Node>,
    ) -> Result<Arc<Self>, SysError> {
        let identity = folder.identity()?;
        let descriptors =
            above.as_ref().map_or_else(Descriptors::of_process, |above| above.descriptors.clone());
        let place =
            Place { held: Mutex::default(), descriptors, identity, name: name.into(), above, dressed_as };
        place.keep(Arc::new(folder));
        Ok(Arc::new(place))
    }

    fn keep(&self, folder: Arc<Folder>) {
        if self.held().replace(folder).is_none() {
            self.descriptors.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Folder>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, opened again if it was closed.
    pub(super) fn folder(&self) -> Result<Arc<Folder>, SysError> {
        self.open(0)
    }

    /// Opens it again if it was closed, to stay open, with some above it, which will be wanted next.
    pub(super) fn hold(&self) -> Result<(), SysError> {
        self.open(KEPT_ABOVE).map(|_| ())
    }

    /// Opens what is closed on the way from the nearest open directory, and keeps the last `kept` of these open.
    fn open(&self, kept: usize) -> Result<Arc<Folder>, SysError> {
        let (mut closed, mut place) = (Vec::new(), self);
        let mut folder = loop {
            if let Some(folder) = &*place.held() {
                break folder.clone();
            }
            closed.push(place);
            match &place.above {
                Some(above) => place = above,
                // The target stays open, so this does not come about.
                None => {
                    let errno = rustix::io::Errno::NOENT.raw_os_error();
                    return Err(SysError::new("finding the directory again", errno));
                }
            }
        };
        for (above_it, place) in closed.iter().enumerate().rev() {
            folder = Arc::new(folder.open_folder(&place.name)?);
            if folder.identity()? != place.identity {
                let what = format!("opening '{}' again, which is another now", place.name.escape_ascii());
                return Err(SysError::new(what, rustix::io::Errno::STALE.raw_os_error()));
            }
            if above_it < kept {
                place.keep(folder.clone());
            }
        }
        Ok(folder)
    }

    /// Closes it until it is wanted again. The target stays open.
    pub(super) fn close(&self) {
        if self.above.is_some() && self.held().take().is_some() {
            self.descriptors.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes it if too many are open: after the walk has left it, while files in it wait for workers.
    pub(super) fn close_if_many(&self) {
        if self.descriptors.open.load(Ordering::Relaxed) > self.descriptors.most {
            self.close();
        }
    }

    /// Its path in the image.
    pub(super) fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut place = self;
        while let Some(above) = &place.above {
            names.push(&*place.name);
            place = above;
        }
        let mut path = vec![b'/'];
        for (n, name) in names.iter().rev().enumerate() {
            path.extend((n > 0).then_some(b'/'));
            path.extend_from_slice(name);
        }
        path
    }

    /// The path in the image of what has this name in it.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path();
        path.extend(self.above.is_some().then_some(b'/'));
        path.extend_from_slice(name);
        path
    }

    /// Lets go of it; whoever is last finishes it, and then the ones above if they have waited for it.
    pub(super) fn release(self: Arc<Self>, shared: &Shared<'_>) {
        let mut next = Some(self);
        while let Some(place) = next.and_then(Arc::into_inner) {
            if let Some(node) = &place.dressed_as {
                // Those above are finished next, as a rule.
                let kept = if place.held().is_none() { KEPT_ABOVE } else { 0 };
                let folder = place.open(kept).map_err(|e| e.to_string());
                if let Err(error) = folder.and_then(|folder| dress::folder(&folder, node, shared)) {
                    shared.finding(Finding::error(&place.path(), None, error));
                }
            }
            place.close();
            next = place.above;
        }
    }
}
