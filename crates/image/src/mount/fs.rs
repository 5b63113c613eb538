//! The FUSE operations of a mounted image.
//!
//! An image never changes, so the kernel may cache all replies without a time limit, files and directories need no
//! `open` (the kernel then keeps their pages across opens), and `forget` does nothing: an inode number leads to its
//! inode without a table. Each request is served on the thread that received it, with memory of the image's budget.
//!
//! The kernel checks modes, owners and access control lists; it reads the lists as extended attributes.

use super::attr::{self, errno};
use super::buffer::DECODING_SCRATCH_BYTES;
use super::nodes::NodeCache;
use crate::read::inode::Inode;
use crate::read::{FileKind, Superblock};
use crate::{Image, ImageError, Nid, Node};
use fuser::{Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, Request};
use pagefold_fuse::{FOREVER, limit_requests, unsupported, with_reply_buffer};
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time to live of attributes that the kernel must not cache.
const NEVER: Duration = Duration::ZERO;

/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 255;

/// Background requests, such as read-ahead, that the kernel may have in flight.
const MAX_BACKGROUND: u16 = 64;

/// Features to use if the kernel has them. With `DO_READDIRPLUS` and without `AUTO`, the kernel always requests
/// entries together with their attributes.
const WANTED: [InitFlags; 8] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_EXPORT_SUPPORT,
];

/// The file system of one mount.
pub(super) struct ImageFs {
    nodes: NodeCache,
    read_bytes: usize,
    enforces_acls: bool,
    open_unneeded: bool,
    opendir_unneeded: bool,
    requests: Arc<AtomicU64>,
    /// Closed when the file system is dropped, which ends the stream of the peer,
    /// [`Mount::ended`](super::Mount::ended).
    _alive: UnixStream,
}

impl ImageFs {
    /// Makes the file system. `enforces_acls`: the kernel checks access control lists too, not modes alone. That is
    /// needed if users other than the mounting one have access; without it, each access check costs less.
    pub(super) fn new(image: Image, read_bytes: usize, enforces_acls: bool, alive: UnixStream) -> Self {
        ImageFs {
            enforces_acls,
            nodes: NodeCache::new(image),
            read_bytes,
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

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn superblock(&self) -> &Superblock {
        self.nodes.image().superblock()
    }

    fn nid(&self, number: INodeNo) -> Nid {
        attr::nid(number, self.superblock().root_nid)
    }

    fn node(&self, number: INodeNo) -> Result<Node, ImageError> {
        self.nodes.get(self.nid(number))
    }

    /// Reads attributes from the inode alone, without the index of a compressed file.
    fn attr(&self, nid: Nid) -> Result<FileAttr, ImageError> {
        let core = &self.nodes.image().0.core;
        Ok(attr::attr(&Inode::read(core, self.superblock(), nid)?, self.superblock()))
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<Option<FileAttr>, ImageError> {
        // The kernel looks up `.`, in files too, to resolve the file handles of network clients (NFS export).
        let found = match name.as_bytes() {
            b"." => Some(self.nid(parent)),
            name => self.node(parent)?.lookup_nid(name)?,
        };
        found.map(|nid| self.attr(nid)).transpose()
    }

    /// Reads `len` bytes, or fewer at the end of the file; the rest of `buffer` is scratch.
    fn read_into(
        &self,
        number: INodeNo,
        offset: u64,
        len: usize,
        buffer: &mut [u8],
    ) -> Result<usize, ImageError> {
        self.node(number)?.read_with_scratch(offset, len, buffer)
    }

    /// Calls `add` for each entry from `position` on, until it returns true because the reply is full.
    fn entries(
        &self,
        directory: INodeNo,
        position: u64,
        mut add: impl FnMut(u64, Nid, Option<FileKind>, &OsStr) -> bool,
    ) -> Result<(), ImageError> {
        let mut any = false;
        let visited = self.node(directory)?.visit_entries(position, |next, entry| {
            // A file with a corrupt entry cannot be reached by a name, but the other files can. An error here would
            // make programs stop listing the directory, so the entry is only counted.
            let Ok(entry) = entry else {
                self.nodes.image().0.core.clusters.counters.errors.add(1);
                return ControlFlow::Continue(());
            };
            match add(next, entry.nid, entry.kind, OsStr::from_bytes(entry.name)) {
                true => ControlFlow::Break(()),
                false => {
                    any = true;
                    ControlFlow::Continue(())
                }
            }
        });
        // The reply has the entries before an error; the next request begins at the error and returns it.
        if any { Ok(()) } else { visited }
    }

    /// Returns the attributes of an entry for `readdirplus`, and how long the kernel may cache them.
    fn entry_attr(&self, nid: Nid, kind: Option<FileKind>) -> (Duration, FileAttr) {
        match self.attr(nid) {
            Ok(attr) => (FOREVER, attr),
            // An error would hide the other entries too. A later `getattr` of this file returns it.
            Err(_) => (NEVER, attr::unknown(nid, kind.unwrap_or(FileKind::Regular), self.superblock())),
        }
    }

    /// Returns the names of extended attributes, each with a NUL. `trusted.` names, which only root may read, are
    /// listed for root only.
    fn names(&self, number: INodeNo, is_root: bool) -> Result<Vec<u8>, ImageError> {
        let mut names = self.node(number)?.xattr_names()?;
        names.retain(|name| is_root || !name.starts_with(b"trusted."));
        let mut list = names.join(&0);
        if !names.is_empty() {
            list.push(0);
        }
        Ok(list)
    }
}

/// Replies with an attribute or a list of names if it fits into `size` bytes, and with its length if `size` is 0.
fn reply_sized(found: &[u8], size: u32, reply: fuser::ReplyXattr) {
    match u32::try_from(found.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(found),
        _ => reply.error(Errno::ERANGE),
    }
}

impl fuser::Filesystem for ImageFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // Without a feature of newer kernels requests are slower, but correct.
            let _ = config.add_capabilities(flag);
        }
        if self.enforces_acls {
            let no_lists = |_| unsupported("the kernel's FUSE has no access lists");
            config.add_capabilities(InitFlags::FUSE_POSIX_ACL).map_err(no_lists)?;
        }
        let capabilities = config.capabilities();
        self.open_unneeded = capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.opendir_unneeded = capabilities.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        limit_requests(config, self.read_bytes, MAX_BACKGROUND)?;
        if let Err(most) = config.set_max_readahead(self.read_bytes as u32) {
            config.set_max_readahead(most).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        self.count();
        if name.len() > NAME_BYTES_MAX {
            return reply.error(Errno::ENAMETOOLONG);
        }
        match self.find(parent, name) {
            Ok(Some(attr)) => reply.entry(&FOREVER, &attr, Generation(0)),
            // Inode number 0: a negative entry, which the kernel may cache.
            Ok(None) => {
                let attr = attr::unknown(Nid(0), FileKind::Regular, self.superblock());
                reply.entry(&FOREVER, &FileAttr { ino: INodeNo(0), ..attr }, Generation(0));
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: fuser::ReplyAttr) {
        self.count();
        match self.attr(self.nid(number)) {
            Ok(attr) => reply.attr(&FOREVER, &attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: fuser::ReplyData) {
        self.count();
        match self.node(number).and_then(|node| node.read_link()) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.count();
        match self.open_unneeded {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.count();
        match self.opendir_unneeded {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        self.count();
        if size as usize > self.read_bytes {
            // Longer than the negotiated limit. A short reply would mean the end of the file.
            return reply.error(Errno::EINVAL);
        }
        let len = size as usize;
        with_reply_buffer(len + DECODING_SCRATCH_BYTES, |buffer| {
            match self.read_into(number, offset, len, buffer) {
                Ok(len) => reply.data(buffer.get(..len).unwrap_or(&[])),
                Err(e) => reply.error(errno(&e)),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectory,
    ) {
        self.count();
        let root = self.superblock().root_nid;
        let visited = self.entries(number, offset, |next, nid, kind, name| {
            let kind = attr::file_type(kind.unwrap_or(FileKind::Regular));
            reply.add(attr::number(nid, root), next, kind, name)
        });
        match visited {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectoryPlus,
    ) {
        self.count();
        let visited = self.entries(number, offset, |next, nid, kind, name| {
            let (ttl, attr) = self.entry_attr(nid, kind);
            reply.add(attr.ino, next, name, &ttl, &attr, Generation(0))
        });
        match visited {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: fuser::ReplyXattr) {
        self.count();
        match self.node(number).and_then(|node| node.xattr(name.as_bytes())) {
            Ok(Some(value)) => reply_sized(&value, size, reply),
            Ok(None) => reply.error(Errno::NO_XATTR),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        self.count();
        match self.names(number, request.uid() == 0) {
            Ok(names) => reply_sized(&names, size, reply),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: fuser::ReplyStatfs) {
        self.count();
        let superblock = self.superblock();
        let block_bytes = superblock.block_bytes();
        reply.statfs(superblock.blocks, 0, 0, superblock.inos, 0, block_bytes, 255, block_bytes);
    }
}
