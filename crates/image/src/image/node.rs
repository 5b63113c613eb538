//! [`Node`]: an inode of an image, with operations on its contents, entries and attributes.

use super::Image;
use crate::clusters::{ClusterExtent, ReadRange};
use crate::core::{Contents, FileReader};
use crate::read::dir::{Directory, Entry};
use crate::read::inode::Inode;
use crate::read::xattr::{Xattr, Xattrs};
use crate::read::{Cursor, Extent, FileKind, Mapping};
use crate::work::{CountedBytes, WorkLimit};
use crate::{ImageError, Nid, Result, Space};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// Extents that cannot be read after which [`Node::read_readable`] gives up on the rest of the buffer.
const READ_ERRORS_MAX: u32 = 16;

/// Low bits of a position in a directory that hold the index of the entry in its block; the high bits hold the number
/// of the block. A block of 64 KiB has 5461 entries at most.
const INDEX_BITS: u32 = 13;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// The longest target that a symbolic link may have, bytes.
pub const MAX_LINK_BYTES: u64 = 4095;

/// An inode of an image. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    image: Image,
    contents: Contents,
}

impl Node {
    pub(crate) fn open(image: &Image, nid: Nid) -> Result<Self> {
        let core = &image.0.core;
        let inode = Inode::read(core, &core.superblock, nid)?;
        let contents = core.contents(inode)?;
        Ok(Node { image: image.clone(), contents })
    }

    /// The image that contains the inode.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The inode and the header of its index.
    pub(crate) fn reader<'a>(&'a self, work: &'a WorkLimit) -> FileReader<'a> {
        self.image.0.core.reader(&self.contents, work)
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The fields of the inode: kind, mode, owner, times, layout.
    pub fn inode(&self) -> &Inode {
        &self.contents.inode
    }

    /// The inode's number.
    pub fn nid(&self) -> Nid {
        self.contents.inode.nid
    }

    /// The type of file.
    pub fn kind(&self) -> FileKind {
        self.contents.inode.kind
    }

    /// Length of the contents, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.contents.inode.size
    }

    /// The work that a call of the library may cost.
    fn work_of_call(&self) -> WorkLimit {
        WorkLimit::of_image(self.image.stored_bytes())
    }

    /// Fills `buf` with the contents from `offset` on, and returns the number of bytes read, which is less than the
    /// length of `buf` only at the end of the file. The rest of `buf` is undefined then.
    ///
    /// Waits for memory if the budget is used up. If any of the bytes cannot be read, the whole read fails.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_within(offset, buf, &self.work_of_call())
    }

    /// As [`Node::read_at`], within the limit of a longer piece of work.
    pub fn read_within(&self, offset: u64, buf: &mut [u8], work: &WorkLimit) -> Result<usize> {
        self.read_with_scratch(offset, buf.len(), buf, work)
    }

    /// Reads as [`Node::read_at`] does, but extent by extent if that fails: what cannot be read is zeroes in `buf`, and
    /// is passed to `on_error` with the error. Returns the number of bytes filled, fewer than `buf` has only at the end
    /// of the file.
    pub fn read_readable(
        &self,
        offset: u64,
        buf: &mut [u8],
        on_error: &mut dyn FnMut(Range<u64>, &ImageError),
    ) -> usize {
        self.read_readable_within(offset, buf, on_error, &self.work_of_call())
    }

    /// As [`Node::read_readable`], within the limit of a longer piece of work.
    pub(crate) fn read_readable_within(
        &self,
        offset: u64,
        buf: &mut [u8],
        on_error: &mut dyn FnMut(Range<u64>, &ImageError),
        work: &WorkLimit,
    ) -> usize {
        if let Ok(read) = self.read_within(offset, buf, work) {
            return read;
        }
        let end = offset.saturating_add(buf.len() as u64).min(self.len_bytes()).max(offset);
        let (mut at, mut errors) = (offset, 0);
        while at < end {
            let extent = self.extent_within(at, work);
            // Without an extent, nothing says where the next one begins. After many errors nobody needs the rest, and a
            // hostile image could make each of them expensive.
            let next = extent.as_ref().ok().and_then(Option::as_ref).filter(|_| errors < READ_ERRORS_MAX);
            let extent_end = next.map_or(end, |extent| extent.end().clamp(at + 1, end));
            let part = &mut buf[(at - offset) as usize..(extent_end - offset) as usize];
            let read = extent.and_then(|_| self.read_within(at, part, work));
            if let Err(error) = read {
                part.fill(0);
                on_error(at..extent_end, &error);
                errors += 1;
            }
            at = extent_end;
        }
        (end - offset) as usize
    }

    /// As [`Node::read_at`], for the first `len` bytes of `buf`; the rest is scratch for decoding in place.
    pub(crate) fn read_with_scratch(
        &self,
        offset: u64,
        len: usize,
        buf: &mut [u8],
        work: &WorkLimit,
    ) -> Result<usize> {
        let left = self.len_bytes().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        if len == 0 {
            return Ok(0);
        }
        if !self.kind().has_contents() {
            return Err(ImageError::NoContents { nid: self.nid(), kind: self.kind().name() });
        }
        let (begun, core) = (Instant::now(), &self.image.0.core);
        let hint =
            self.image.0.streams.record_read(self.nid(), offset..offset + len as u64, self.len_bytes());
        self.read_ahead(hint.ahead);
        let counters = &core.clusters.decoding.counters;
        counters.reads.add(1);
        let range = ReadRange { from: offset, len_bytes: len, more_follows: hint.more_follows };
        let read = self.reader(work).read_with_scratch(range, buf);
        core.clusters.latency.record(begun.elapsed());
        match read {
            Ok(()) => counters.asked_bytes.add(len as u64),
            Err(_) => counters.errors.add(1),
        }
        read.map(|()| len)
    }

    /// Queues the clusters of a range that a sequential reader will probably read next. Errors are ignored here: the
    /// read that reaches them returns them.
    fn read_ahead(&self, range: Range<u64>) {
        let prefetcher = self.image.0.prefetcher.as_ref().filter(|prefetcher| !prefetcher.has_ended());
        let (Some(prefetcher), core) = (prefetcher, &self.image.0.core) else { return };
        let (mut at, mut cursor) = (range.start, Cursor::default());
        let work = WorkLimit::of_request(core.stored_bytes(), || false);
        while at < range.end {
            let Ok(extent) = self.reader(&work).extent_near(at, &mut cursor) else { return };
            at = extent.end();
            let Mapping::Compressed(cluster) = extent.mapping else { continue };
            let cluster_extent = ClusterExtent { cluster, decoded_bytes: extent.len_bytes };
            if cluster.at.space != Space::Metabox && !prefetcher.push(cluster_extent) {
                core.clusters.decoding.counters.readahead_dropped.add(1);
            }
        }
    }

    /// Finds the extent that contains byte `offset`; `None` at or after the end of the file.
    pub fn extent_at(&self, offset: u64) -> Result<Option<Extent>> {
        self.extent_within(offset, &self.work_of_call())
    }

    /// As [`Node::extent_at`], within the limit of a longer piece of work.
    pub fn extent_within(&self, offset: u64, work: &WorkLimit) -> Result<Option<Extent>> {
        self.extent_near(offset, &mut Cursor::default(), work)
    }

    /// As [`Node::extent_within`], for a caller that walks the file from its beginning.
    pub(crate) fn extent_near(
        &self,
        offset: u64,
        cursor: &mut Cursor,
        work: &WorkLimit,
    ) -> Result<Option<Extent>> {
        match self.kind().has_contents() && offset < self.len_bytes() {
            true => self.reader(work).extent_near(offset, cursor).map(Some),
            false => Ok(None),
        }
    }

    /// Iterates over the extents of a file from its beginning; none if it has no contents. Ends after an error. More
    /// extents than the image can hold are [`ImageError::TooMuchWork`].
    ///
    /// Cheaper than one [`Node::extent_at`] per extent: some indexes have to be summed up from their beginning.
    pub fn extents(&self) -> Extents<'_> {
        self.extents_with(Work::OfCall(self.work_of_call()))
    }

    /// As [`Node::extents`], within the limit of a longer piece of work.
    pub(crate) fn extents_within<'a>(&'a self, work: &'a WorkLimit) -> Extents<'a> {
        self.extents_with(Work::Of(work))
    }

    fn extents_with<'a>(&'a self, work: Work<'a>) -> Extents<'a> {
        let end = if self.kind().has_contents() { self.len_bytes() } else { 0 };
        Extents { node: self, at: 0, end, cursor: Cursor::default(), work }
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind() != FileKind::Symlink {
            return Err(ImageError::NoContents { nid: self.nid(), kind: self.kind().name() });
        }
        if self.len_bytes() > MAX_LINK_BYTES {
            let what = format!("a symbolic link of {} bytes", self.len_bytes());
            return Err(ImageError::corrupt(self.contents.inode.address, what));
        }
        let mut target = vec![0; self.len_bytes() as usize];
        self.reader(&self.work_of_call()).read(0, &mut target, false)?;
        Ok(target)
    }

    /// Finds the inode of this name in a directory.
    pub fn lookup(&self, name: &[u8]) -> Result<Node> {
        match self.lookup_nid(name, &self.work_of_call())? {
            Some(nid) => self.image.node(nid),
            None => Err(ImageError::NotFound { name: name.to_vec() }),
        }
    }

    /// Finds the number of the inode of this name in a directory; `None` if there is no such entry.
    pub(crate) fn lookup_nid(&self, name: &[u8], work: &WorkLimit) -> Result<Option<Nid>> {
        let directory = Directory::of(self.image.superblock(), self.inode())?;
        let mut read = |number, block: &mut [u8]| self.read_block(number, block, work);
        let found = directory.lookup(name, &mut Vec::new(), &mut read)?;
        Ok(found.map(|found| found.nid))
    }

    /// Calls `visit` for each entry of a directory from `position` on (0: all), in stored order and with `.` and `..`,
    /// until `visit` breaks. `visit` gets the position after the entry and the entry.
    ///
    /// A corrupt entry is passed as an error, and the walk goes on. A corrupt block ends the walk with an error, after
    /// the entries before it were visited.
    pub(crate) fn visit_entries_within(
        &self,
        position: u64,
        work: &WorkLimit,
        mut visit: impl FnMut(u64, Result<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = Directory::of(self.image.superblock(), self.inode())?;
        let (first_block, mut index) = (position >> INDEX_BITS, (position & INDEX_MASK) as usize);
        let mut buffer = Vec::new();
        for number in first_block..directory.blocks() {
            let mut read = |number, block: &mut [u8]| self.read_block(number, block, work);
            let block = directory.read_block(number, &mut buffer, &mut read)?;
            while index < block.count() {
                work.step()?;
                let next = if index + 1 < block.count() {
                    (number << INDEX_BITS) | (index as u64 + 1)
                } else {
                    (number + 1) << INDEX_BITS
                };
                if visit(next, block.entry(index)).is_break() {
                    return Ok(());
                }
                index += 1;
            }
            index = 0;
        }
        Ok(())
    }

    /// Iterates over the entries of a directory, without `.` and `..`, with one block in memory at a time.
    pub fn entries(&self) -> Result<Entries<'_>> {
        Directory::of(self.image.superblock(), self.inode())?;
        Ok(Entries { node: self, position: Some(0), ready: VecDeque::new(), work: self.work_of_call() })
    }

    /// Fills `block`, which has the right length, with block `number` of the directory.
    pub fn read_block(&self, number: u64, block: &mut [u8], work: &WorkLimit) -> Result<()> {
        let start = number * u64::from(self.image.superblock().block_bytes());
        self.reader(work).read(start, block, true)
    }

    /// Reads all extended attributes.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.with_xattrs(&self.work_of_call(), |xattrs| xattrs.list())
    }

    /// Calls `visit` for each extended attribute, with whether the inode's name filter wrongly excludes it: a lookup
    /// by name does not find such an attribute.
    pub fn visit_xattrs(&self, work: &WorkLimit, visit: impl FnMut(Xattr, bool)) -> Result<()> {
        self.with_xattrs(work, |xattrs| xattrs.visit(visit))
    }

    /// Reads the names of all extended attributes, in the order of [`Node::xattrs`].
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        self.xattr_names_within(&self.work_of_call())
    }

    /// As [`Node::xattr_names`], within the limit of a longer piece of work.
    pub(crate) fn xattr_names_within(&self, work: &WorkLimit) -> Result<Vec<Vec<u8>>> {
        self.with_xattrs(work, |xattrs| xattrs.names())
    }

    /// Reads the value of one extended attribute; `None` if there is none of that name.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.xattr_within(name, &self.work_of_call())
    }

    /// As [`Node::xattr`], within the limit of a longer piece of work.
    pub(crate) fn xattr_within(&self, name: &[u8], work: &WorkLimit) -> Result<Option<Vec<u8>>> {
        self.with_xattrs(work, |xattrs| xattrs.get(name))
    }

    /// Calls `read` with the extended attributes.
    pub(crate) fn with_xattrs<T>(
        &self,
        work: &WorkLimit,
        read: impl FnOnce(&Xattrs<'_>) -> Result<T>,
    ) -> Result<T> {
        let core = &self.image.0.core;
        let bytes = CountedBytes { bytes: core, work };
        read(&Xattrs::open(&bytes, &core.superblock, &core.prefixes, &self.contents.inode)?)
    }
}

/// An entry of a directory, with its own copy of the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, 1 to 255 bytes without `/` and NUL.
    pub name: Vec<u8>,
    /// The inode's number.
    pub nid: Nid,
    /// The type of file according to the entry. The inode's own type is authoritative.
    pub kind: Option<FileKind>,
}

/// The extents of a file; see [`Node::extents`].
pub struct Extents<'a> {
    node: &'a Node,
    at: u64,
    end: u64,
    cursor: Cursor,
    work: Work<'a>,
}

/// The limit of an iteration.
enum Work<'a> {
    OfCall(WorkLimit),
    Of(&'a WorkLimit),
}

impl Work<'_> {
    fn limit(&self) -> &WorkLimit {
        match self {
            Work::OfCall(work) => work,
            Work::Of(work) => work,
        }
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let found = self.node.reader(self.work.limit()).extent_near(self.at, &mut self.cursor);
        self.at = found.as_ref().map_or(self.end, Extent::end);
        Some(found)
    }
}

/// The entries of a directory; see [`Node::entries`]. A corrupt entry is returned as an error between the others;
/// after the error of a corrupt block the iterator ends.
pub struct Entries<'a> {
    node: &'a Node,
    position: Option<u64>,
    ready: VecDeque<Result<DirEntry>>,
    work: WorkLimit,
}

impl Entries<'_> {
    fn read_block(&mut self, position: u64) -> Result<()> {
        let block = position >> INDEX_BITS;
        self.position = None;
        let (ready, next_position) = (&mut self.ready, &mut self.position);
        self.node.visit_entries_within(position, &self.work, |next, entry| {
            if !entry.as_ref().is_ok_and(|entry| entry.name == b"." || entry.name == b"..") {
                ready.push_back(entry.map(|entry| DirEntry {
                    name: entry.name.to_vec(),
                    nid: entry.nid,
                    kind: entry.kind,
                }));
            }
            if next >> INDEX_BITS == block {
                return ControlFlow::Continue(());
            }
            *next_position = Some(next);
            ControlFlow::Break(())
        })
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(entry);
            }
            let position = self.position?;
            if let Err(error) = self.read_block(position) {
                self.position = None;
                // Behind the entries before it.
                self.ready.push_back(Err(error));
            }
        }
    }
}
