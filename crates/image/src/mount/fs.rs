//! The FUSE operations of a mounted image.
//!
//! An image never changes, so the kernel may cache all replies without a time limit, files and directories need no
//! `open` (the kernel then keeps their pages across opens), and `forget` does nothing: an inode number leads to its
//! inode without a table. Each request is served on the thread that received it, with memory of the image's budget.
//!
//! The kernel checks modes, owners and access control lists; it reads the lists as extended attributes.

use super::attr::{self, directory_errno, errno};
use super::buffer::DECODING_SCRATCH_BYTES;
use super::holes;
use super::options::MountOptions;
use crate::read::inode::Inode;
use crate::read::{FileKind, Layout, Superblock};
use crate::slot_cache::SlotCache;
use crate::startup::Recorder;
use crate::work::WorkLimit;
use crate::{Image, ImageError, Nid, Node, Result};
use pagefold_backing::DeadlineScope;
use pagefold_fuse::{
    Attr, CachedAttr, Entries, Entry, Errno, FOREVER, Features, FileSystem, Handle, Inode as Number, Offer,
    OpenMode, Opened, Range, Seek, Settings, StatFs, Unsupported,
};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time to live of attributes that the kernel must not cache.
const NEVER: Duration = Duration::ZERO;

/// Recently used nodes that are kept, so that a read need not parse the inode and the index header again. A node has a
/// few hundred bytes.
const CACHED_NODES: usize = 256;
/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 255;

/// Background requests, such as read-ahead, that the kernel may have in flight.
const MAX_BACKGROUND: u16 = 64;

/// Features to use if the kernel has them: without those of newer kernels requests are slower, but correct.
fn wanted() -> Features {
    Features::ASYNC_READ
        | Features::PARALLEL_DIROPS
        | Features::READDIRPLUS
        | Features::CACHE_SYMLINKS
        | Features::NO_OPEN
        | Features::NO_OPENDIR
        | Features::EXPORT_SUPPORT
}

/// The file system of one mount.
pub(super) struct ImageFs {
    image: Image,
    nodes: SlotCache<Node>,
    read_bytes: usize,
    enforces_acls: bool,
    open_unneeded: bool,
    opendir_unneeded: bool,
    requests: Arc<AtomicU64>,
    first_read: Arc<OnceLock<Instant>>,
    recorder: Option<Arc<Recorder>>,
    /// Closed when the file system is dropped, which ends the stream of the peer,
    /// [`Mount::ended`](super::Mount::ended).
    _alive: UnixStream,
}

impl ImageFs {
    /// Makes the file system. The kernel checks access control lists too, not modes alone, if users other than the mounting
    /// one have access; without it, each access check costs less.
    pub(super) fn new(image: Image, read_bytes: usize, options: &MountOptions, alive: UnixStream) -> Self {
        ImageFs {
            enforces_acls: options.allow_other,
            image,
            nodes: SlotCache::new(CACHED_NODES),
            read_bytes,
            first_read: Arc::default(),
            recorder: options.recorder.clone(),
            open_unneeded: false,
            opendir_unneeded: false,
            requests: Arc::default(),
            _alive: alive,
        }
    }

    /// Returns the counter of the kernel's requests.
    pub(super) fn requests(&self) -> Arc<AtomicU64> {
        self.requests.clone()
    }

    /// Returns the time of the first read that was answered, once there is one.
    pub(super) fn first_read(&self) -> Arc<OnceLock<Instant>> {
        self.first_read.clone()
    }

    /// The recorder, and the number of an inode.
    fn recorder(&self, number: Number) -> Option<(&Recorder, Nid)> {
        self.recorder.as_deref().map(|recorder| (recorder, self.nid(number)))
    }

    fn note_inode(&self, number: Number) {
        if let Some((recorder, nid)) = self.recorder(number) {
            recorder.note_inode(nid);
        }
    }

    /// Begins a request of the kernel, which has one deadline for all that it reads.
    fn begin(&self) -> DeadlineScope {
        self.requests.fetch_add(1, Ordering::Relaxed);
        DeadlineScope::begin()
    }

    /// The work that the request may cost. A program waits for it, and perhaps no longer.
    fn work(&self) -> WorkLimit {
        WorkLimit::of_request(self.image.stored_bytes(), pagefold_fuse::is_interrupted)
    }

    /// The work that looking for holes may cost in a request. It depends on the number of chunks, and few stored bytes may
    /// have many. Beyond it, holes are not found, but nothing fails.
    fn work_for_holes(&self) -> WorkLimit {
        WorkLimit::of_request(u64::MAX, pagefold_fuse::is_interrupted)
    }

    fn superblock(&self) -> &Superblock {
        self.image.superblock()
    }

    fn nid(&self, number: Number) -> Nid {
        attr::nid(number, self.superblock().root_nid)
    }

    fn node(&self, number: Number) -> Result<Node> {
        let nid = self.nid(number);
        // Numbers of neighbouring inodes differ by the inode's length in steps of 32 bytes: their low bits alone would
        // leave slots empty.
        let key = nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(8);
        if let Some(node) = self.nodes.get(key) {
            return Ok(node);
        }
        let node = self.image.node(nid)?;
        self.nodes.insert(key, node.clone());
        Ok(node)
    }

    /// Reads attributes from the inode alone, without the index of a compressed file. That of a file in chunks says how much
    /// of it is stored.
    fn inode_attr(&self, nid: Nid, work: &WorkLimit) -> Result<Attr> {
        let inode = Inode::read(&self.image.0.core, self.superblock(), nid)?;
        let data_bytes = match inode.layout {
            // Errors are those of readers.
            Layout::Chunks { .. } => {
                self.image.node(nid).ok().and_then(|node| holes::data_bytes(&node, work))
            }
            _ => None,
        };
        Ok(attr::attr(&inode, data_bytes, self.superblock()))
    }

    fn find(&self, parent: Number, name: &OsStr) -> Result<Option<Attr>> {
        // The kernel looks up `.`, in files too, to resolve the file handles of network clients (NFS export).
        let found = match name.as_bytes() {
            b"." => Some(self.nid(parent)),
            name => {
                let directory = self.node(parent)?;
                if let Some((recorder, nid)) = self.recorder(parent) {
                    recorder.note_directory(nid, directory.len_bytes());
                }
                directory.lookup_nid(name, &self.work())?
            }
        };
        if let (Some((recorder, parent)), Some(nid)) = (self.recorder(parent), found) {
            recorder.note_entry(parent, name.as_bytes(), nid);
        }
        found.map(|nid| self.inode_attr(nid, &self.work_for_holes())).transpose()
    }

    /// Calls `add` for each entry from `position` on, until it returns false because there is no room.
    fn entries(
        &self,
        directory: Number,
        position: u64,
        mut add: impl FnMut(u64, Nid, Option<FileKind>, &OsStr) -> bool,
    ) -> Result<(), Errno> {
        let mut any = false;
        let node = self.node(directory).map_err(|e| errno(&e))?;
        if let Some((recorder, nid)) = self.recorder(directory) {
            recorder.note_directory(nid, node.len_bytes());
        }
        let (mut bogus, work) = (None, self.work());
        let visited = node.visit_entries_within(position, &work, |next, entry| {
            let entry = match entry {
                Ok(entry) => entry,
                // The kernel's EROFS fails here too. Nothing says whether the entries after are any.
                Err(error) if !matches!(error, ImageError::UnusableName { .. }) => {
                    bogus = Some(error);
                    return ControlFlow::Break(());
                }
                // Here, it fails as well. But no path leads to such a name, and one bad name should not hide the
                // names of all other files: the entry is only counted.
                Err(_) => {
                    self.image.0.core.clusters.decoding.counters.errors.add(1);
                    return ControlFlow::Continue(());
                }
            };
            match add(next, entry.nid, entry.kind, OsStr::from_bytes(entry.name)) {
                false => ControlFlow::Break(()),
                true => {
                    any = true;
                    ControlFlow::Continue(())
                }
            }
        });
        // The reply has the entries before an error; the next request begins at the error and returns it.
        match bogus.map_or(visited, Err) {
            Err(error) if !any => Err(directory_errno(&error)),
            _ => Ok(()),
        }
    }

    /// Returns the attributes of an entry for `read_dir_plus`, and how long the kernel may cache them.
    fn entry_attr(&self, nid: Nid, kind: Option<FileKind>, work: &WorkLimit) -> (Duration, Attr) {
        match self.inode_attr(nid, work) {
            Ok(attr) => (FOREVER, attr),
            // An error would hide the other entries too. A later `getattr` of this file returns it.
            Err(_) => (NEVER, attr::unknown(nid, kind.unwrap_or(FileKind::Regular), self.superblock())),
        }
    }

    /// Returns the names of extended attributes, each with a NUL. `trusted.` names, which only root may read, are
    /// listed for root only.
    fn names(&self, number: Number, is_root: bool) -> Result<Vec<u8>> {
        let mut names = self.node(number)?.xattr_names_within(&self.work())?;
        names.retain(|name| is_root || !name.starts_with(b"trusted."));
        let mut list = names.join(&0);
        if !names.is_empty() {
            list.push(0);
        }
        Ok(list)
    }
}

impl FileSystem for ImageFs {
    const CAN_BE_INTERRUPTED: bool = true;
    // Grants and flights end when they are dropped, and a cache that a panic may have left inconsistent is emptied.
    const IS_STATELESS: bool = true;

    fn init(&mut self, offer: &Offer) -> Result<Settings, Unsupported> {
        let mut features = wanted();
        if self.enforces_acls {
            if !offer.features.contains(Features::POSIX_ACL) {
                return Err(Unsupported("the kernel's FUSE has no access lists"));
            }
            features = features | Features::POSIX_ACL;
        }
        self.open_unneeded = offer.features.contains(Features::NO_OPEN);
        self.opendir_unneeded = offer.features.contains(Features::NO_OPENDIR);
        let settings = Settings::for_requests_of(self.read_bytes, MAX_BACKGROUND);
        // Nothing is ever written, so the buffers for requests can be small.
        Ok(Settings { features, write_bytes: 0, scratch_bytes: DECODING_SCRATCH_BYTES, ..settings })
    }

    fn lookup(&self, parent: Number, name: &OsStr) -> Result<Entry, Errno> {
        let _scope = self.begin();
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        // The kernel may cache that a name does not exist.
        let attr = self.find(parent, name).map_err(|e| errno(&e))?;
        Ok(Entry { attr, ttl: FOREVER })
    }

    fn attr(&self, number: Number) -> Result<CachedAttr, Errno> {
        let _scope = self.begin();
        self.note_inode(number);
        let attr = self.inode_attr(self.nid(number), &self.work_for_holes()).map_err(|e| errno(&e))?;
        Ok(CachedAttr { attr, ttl: FOREVER })
    }

    fn read_link(&self, number: Number) -> Result<Vec<u8>, Errno> {
        let _scope = self.begin();
        self.note_inode(number);
        self.node(number).and_then(|node| node.read_link()).map_err(|e| errno(&e))
    }

    fn open(&self, _: Number, _: i32) -> Result<Opened, Errno> {
        let _scope = self.begin();
        match self.open_unneeded {
            true => Err(Errno(libc::ENOSYS)),
            false => Ok(Opened { handle: Handle(0), mode: OpenMode::KEEP_CACHE | OpenMode::NOFLUSH }),
        }
    }

    fn open_dir(&self, _: Number) -> Result<Opened, Errno> {
        let _scope = self.begin();
        match self.opendir_unneeded {
            true => Err(Errno(libc::ENOSYS)),
            false => Ok(Opened { handle: Handle(0), mode: OpenMode::KEEP_CACHE | OpenMode::CACHE_DIR }),
        }
    }

    fn read(&self, number: Number, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        let _scope = self.begin();
        let len = range.size as usize;
        if len > self.read_bytes {
            // Longer than the negotiated limit. A short reply would mean the end of the file.
            return Err(Errno(libc::EINVAL));
        }
        // The rest of the buffer is scratch.
        let work = self.work();
        let read = self.node(number);
        let read = read.and_then(|node| node.read_with_scratch(range.offset, len, buffer, &work));
        let read = read.map_err(|e| errno(&e))?;
        if let Some((recorder, nid)) = self.recorder(number) {
            recorder.note_range(nid, range.offset..range.offset.saturating_add(read as u64));
        }
        if self.first_read.get().is_none() {
            // Another thread may have set it meanwhile.
            let _ = self.first_read.set(Instant::now());
        }
        Ok(read)
    }

    fn seek(&self, number: Number, offset: u64, wanted: Seek) -> Result<u64, Errno> {
        let _scope = self.begin();
        let node = self.node(number).map_err(|e| errno(&e))?;
        holes::seek(&node, offset, wanted, &self.work_for_holes())
    }

    fn read_dir(&self, number: Number, offset: u64, entries: &mut Entries<'_>) -> Result<(), Errno> {
        let _scope = self.begin();
        let root = self.superblock().root_nid;
        self.entries(number, offset, |next, nid, kind, name| {
            let kind = attr::file_type(kind.unwrap_or(FileKind::Regular));
            entries.add(attr::number(nid, root), next, kind, name)
        })
    }

    fn read_dir_plus(&self, number: Number, offset: u64, entries: &mut Entries<'_>) -> Result<(), Errno> {
        let _scope = self.begin();
        let work = self.work_for_holes();
        self.entries(number, offset, |next, nid, kind, name| {
            if let Some((recorder, directory)) = self.recorder(number) {
                recorder.note_entry(directory, name.as_bytes(), nid);
            }
            let (ttl, attr) = self.entry_attr(nid, kind, &work);
            entries.add_plus(next, name, attr, ttl)
        })
    }

    fn xattr(&self, number: Number, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let _scope = self.begin();
        self.note_inode(number);
        let value = self.node(number).and_then(|node| node.xattr_within(name.as_bytes(), &self.work()));
        value.map_err(|e| errno(&e))?.ok_or(Errno(libc::ENODATA))
    }

    fn xattr_names(&self, number: Number, uid: u32) -> Result<Vec<u8>, Errno> {
        let _scope = self.begin();
        self.note_inode(number);
        self.names(number, uid == 0).map_err(|e| errno(&e))
    }

    fn stat_fs(&self) -> StatFs {
        let _scope = self.begin();
        let superblock = self.superblock();
        let block_bytes = superblock.block_bytes();
        // As the kernel counts: the devices belong to the image, also if they are separate files.
        let further = superblock.devices.iter().map(|device| device.blocks);
        let blocks = further.fold(superblock.blocks, u64::saturating_add);
        StatFs { blocks, files: superblock.inos, block_bytes }
    }
}
