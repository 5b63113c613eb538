//! Answers to the kernel's requests for a mounted image.
//!
//! Nothing in an image ever changes, so every answer may be kept for ever, files and directories need not be
//! opened (the kernel then keeps their pages across opens by itself), and `forget` forgets nothing: a number
//! leads to its inode without a table. What the kernel keeps it does not ask again; what is asked is read
//! through the image, on the thread that received the request, in memory of the image's budget.
//!
//! Modes, owners and access lists are checked by the kernel, for which it asks for the lists as attributes.

use super::attr::{self, errno};
use super::buffer::{DECODING_ROOM_BYTES, with_reply_buffer};
use super::nodes::Nodes;
use crate::read::inode::Inode;
use crate::read::{FileKind, Superblock};
use crate::{Image, ImageError, Nid, Node};
use fuser::{Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, Request};
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// For what must be asked again.
const NEVER: Duration = Duration::ZERO;

/// The longest name, bytes.
const NAME_BYTES_MAX: usize = 255;

/// Requests that the kernel may have in flight on its own behalf, such as those that read ahead.
const MAX_BACKGROUND: u16 = 64;

/// What is used if the kernel has it. With `DO_READDIRPLUS` and without `AUTO`, directories always come with
/// the attributes of their entries.
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

/// The file system.
pub(super) struct ImageFs {
    nodes: Nodes,
    read_bytes: usize,
    enforces: bool,
    open_unneeded: bool,
    opendir_unneeded: bool,
    requests: Arc<AtomicU64>,
    /// Its peer is at its end when this file system has been dropped.
    _alive: UnixStream,
}

impl ImageFs {
    /// `enforces`: the kernel is to ask for access lists and to go by them, not by modes alone. That is for others than the
    /// user who mounts; without, every look at a file costs less.
    pub(super) fn new(image: Image, read_bytes: usize, enforces: bool, alive: UnixStream) -> Self {
        ImageFs {
            enforces,
            nodes: Nodes::new(image),
            read_bytes,
            open_unneeded: false,
            opendir_unneeded: false,
            requests: Arc::default(),
            _alive: alive,
        }
    }

    /// Counts the kernel's requests, round trips of programs that use the mount.
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

    /// Attributes by the inode alone: what the index of a compressed file says matters when it is read.
    fn attr(&self, nid: Nid) -> Result<FileAttr, ImageError> {
        let core = &self.nodes.image().0.core;
        Ok(attr::attr(&Inode::read(core, self.superblock(), nid)?, self.superblock()))
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<Option<FileAttr>, ImageError> {
        // The kernel looks `.` up, also in files, to find what a network client has a handle of.
        let found = match name.as_bytes() {
            b"." => Some(self.nid(parent)),
            name => self.node(parent)?.lookup_nid(name)?,
        };
        found.map(|nid| self.attr(nid)).transpose()
    }

    /// All of `len` bytes, as far as the file has them.
    fn read_into(
        &self,
        number: INodeNo,
        offset: u64,
        len: usize,
        buffer: &mut [u8],
    ) -> Result<usize, ImageError> {
        self.node(number)?.read_with_room(offset, len, buffer)
    }

    /// Hands entries from `position` on to `add` until it says that there is no more room.
    fn entries(
        &self,
        directory: INodeNo,
        position: u64,
        mut add: impl FnMut(u64, Nid, Option<FileKind>, &OsStr) -> bool,
    ) -> Result<(), ImageError> {
        let mut any = false;
        let visited = self.node(directory)?.visit_entries(position, |next, entry| {
            // A file whose entry is broken cannot be had by any name. The others can, and programs that meet an error would
            // give up all of the directory; so it is only counted.
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
        // What was found before an error is handed over; whoever goes on behind it meets the error first.
        if any { Ok(()) } else { visited }
    }

    /// What the kernel gets of an entry together with its name.
    fn entry_attr(&self, nid: Nid, kind: Option<FileKind>) -> (Duration, FileAttr) {
        match self.attr(nid) {
            Ok(attr) => (FOREVER, attr),
            // Whoever wants this file is told when he asks for it; the others are there.
            Err(_) => (NEVER, attr::unknown(nid, kind.unwrap_or(FileKind::Regular), self.superblock())),
        }
    }

    /// Names of attributes, each with a NUL. Those that only the administrator may read are listed for him alone.
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

/// An attribute, or list of them, to one who has room for `size` bytes, or asks for its length with 0.
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
            // What an older kernel lacks costs time, not truth.
            let _ = config.add_capabilities(flag);
        }
        if self.enforces {
            let no_lists =
                |_| io::Error::new(io::ErrorKind::Unsupported, "the kernel's FUSE has no access lists");
            config.add_capabilities(InitFlags::FUSE_POSIX_ACL).map_err(no_lists)?;
        }
        let capabilities = config.capabilities();
        self.open_unneeded = capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.opendir_unneeded = capabilities.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        // It also says how many pages a read may have.
        config.set_max_write(self.read_bytes as u32).map_err(|_| invalid())?;
        config.set_max_background(MAX_BACKGROUND).map_err(|_| invalid())?;
        if let Err(most) = config.set_max_readahead(self.read_bytes as u32) {
            config.set_max_readahead(most).map_err(|_| invalid())?;
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
            // Number 0: there is none, and the kernel may keep that.
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
            // Longer than was agreed on: a short answer would be taken for the end of the file.
            return reply.error(Errno::EINVAL);
        }
        let len = size as usize;
        with_reply_buffer(len + DECODING_ROOM_BYTES, |buffer| {
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
