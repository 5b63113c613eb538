//! Files with an index: compressed ones, and those with fragments.

use super::record::InodeTail;
use super::{BLOCK, OpenFile, Writer};
use crate::Result;
use crate::compress::index::Index;
use crate::compress::records::Records;
use crate::compress::workers;
use crate::compression::Compression;
use crate::metadata::inode::{ADDRESS_WIDE, Fields, Storage};
use crate::options::BLOCK_BYTES;
use crate::plan::Planned;
use crate::progress;
use crate::tree::Metadata;
use pagefold_image::format::inode::{LAYOUT_COMPRESSED_COMPACT, LAYOUT_COMPRESSED_FULL};
use pagefold_image::format::zmap::{HEADER_BYTES, MapHeader};
use pagefold_image::read::FileKind;
use std::ops::Range;

impl Writer<'_> {
    /// Places the inode of a file that is a fragment as a whole, at byte `at` of the packed file.
    pub fn put_fragment(&mut self, planned: &Planned, compression: Compression, at: u64) -> Result<()> {
        let len_bytes = self.len_bytes(planned);
        self.summary.count(Some(compression), len_bytes, 0);
        self.used.fragments = true;
        let (head_bytes, _) = self.fields(planned, len_bytes, false)?;
        let mut after = vec![0; (header_place(head_bytes) - head_bytes) as usize];
        after.extend(MapHeader::of_whole_fragment(at).encode());
        let storage = Storage::count(LAYOUT_COMPRESSED_FULL, 0);
        self.put_record(planned, storage, after.as_slice(), 0..0)?;
        Ok(())
    }

    /// Places the inode of the packed file, all of whose segments are appended. The last of its blocks have directories.
    pub fn put_packed(
        &mut self,
        len_bytes: u64,
        fragments: progress::Stored,
        compression: Compression,
        file: &OpenFile,
        directory_blocks: u64,
    ) -> Result<()> {
        // Without files, what is not directories is prefixes of attribute names.
        let has_files = fragments.files > 0;
        let file_blocks = if has_files { file.blocks - directory_blocks } else { 0 };
        self.summary.metadata_bytes = (file.blocks - file_blocks) * BLOCK;
        if has_files {
            let stored_bytes = file_blocks * BLOCK;
            self.summary.add_stored(compression, stored_bytes);
            self.summary.fragments = progress::Stored { stored_bytes, ..fragments };
        }
        self.packed_place = Some(self.put_hidden(len_bytes, compression, file)?);
        Ok(())
    }

    /// Places the inode of a compressed file that has no name, and returns its position in the area.
    pub(super) fn put_hidden(
        &mut self,
        len_bytes: u64,
        compression: Compression,
        file: &OpenFile,
    ) -> Result<u64> {
        let epoch = self.plan.epoch;
        let fields = Fields {
            metadata: Metadata { permissions: 0, mtime: epoch, ..Metadata::default() },
            kind: FileKind::Regular,
            nlink: 1,
            ino: (self.plan.count() + 1 + usize::from(self.packed_place.is_some())) as u32,
            len_bytes,
            xattr_bytes: 0,
            is_wide: false,
            form: self.options.form.inodes,
        };
        let head_bytes = fields.head_bytes(epoch);
        let (storage, after) = self.index_of(head_bytes, len_bytes, compression, file);
        let at = self.space.reserve(head_bytes + after.len_bytes(), 0..0)?;
        let inode = fields.encode(epoch, storage);
        self.space.write(at, &inode);
        let mut next = at + inode.len() as u64;
        after.write(&mut |bytes| {
            self.space.write(next, bytes);
            next += bytes.len() as u64;
        });
        Ok(at)
    }

    pub(super) fn put_compressed(
        &mut self,
        planned: &Planned,
        compression: Compression,
        file: &mut OpenFile,
    ) -> Result<Range<u64>> {
        // A file that is stored after its index as a whole has no block, whatever the next block is.
        let end = file.first_block.map_or(0, |block| block + file.blocks);
        if end > ADDRESS_WIDE {
            return self.put_records(planned, compression, file);
        }
        let len_bytes = self.len_bytes(planned);
        let (head_bytes, _) = self.fields(planned, len_bytes, false)?;
        let (storage, after) = self.index_of(head_bytes, len_bytes, compression, file);
        let tail = after.len_bytes() - file.tail.len() as u64..after.len_bytes();
        self.put_record(planned, storage, &after, tail)
    }

    /// Returns how the inode of a compressed file refers to its index, and what stands after the inode and its attributes,
    /// which take `head_bytes`.
    fn index_of<'f>(
        &mut self,
        head_bytes: u64,
        len_bytes: u64,
        compression: Compression,
        file: &'f OpenFile,
    ) -> (Storage, CompressedTail<'f>) {
        let big = self.options.cluster_bytes > BLOCK_BYTES;
        let (extents, has_references, fragment) = (&file.extents, file.shared_bytes > 0, file.fragment);
        let is_always_full = self.options.form.full_indexes;
        let index = Index { extents, len_bytes, has_references, big, fragment, is_always_full };
        let layout = if index.is_full() { LAYOUT_COMPRESSED_FULL } else { LAYOUT_COMPRESSED_COMPACT };
        let algorithm = compression.method.algorithm() as u8;
        let header = MapHeader::of_clusters(index.advice(), algorithm, file.tail.len() as u16);
        let header = file.fragment.map_or(header, |offset| header.with_fragment(offset));
        // An image with compressed files needs an algorithm, also if the packed file is all that they have, and plain.
        if extents.has_compressed() || self.used.formats.is_empty() {
            self.used.formats.insert(algorithm, workers::format(compression, self.options));
        }
        self.used.big_clusters |= big;
        self.used.tail_packing |= !file.tail.is_empty();
        self.used.fragments |= file.fragment.is_some();
        // The mark of a prefix came with clusters of several files.
        self.used.shared_clusters |= extents.has_prefix();
        let index = FileIndex::Entries(index);
        (Storage::count(layout, file.blocks), CompressedTail { head_bytes, header, index, tail: &file.tail })
    }

    /// Ends a compressed file whose addresses need 48 bits.
    fn put_records(
        &mut self,
        planned: &Planned,
        compression: Compression,
        file: &mut OpenFile,
    ) -> Result<Range<u64>> {
        let tail_bytes = file.tail.len();
        if tail_bytes > 0 {
            self.out.append_padded(std::mem::take(&mut file.tail))?;
            file.blocks += 1;
        }
        let storage = Storage::count(LAYOUT_COMPRESSED_FULL, file.blocks);
        let len_bytes = self.len_bytes(planned);
        let (head_bytes, _) = self.fields(planned, len_bytes, storage.is_wide)?;
        let (extents, first_block) = (&file.extents, file.first_block.unwrap_or(0));
        let algorithm = compression.method.algorithm() as u8;
        let records = Records { extents, len_bytes, first_block, algorithm, tail_bytes };
        let (header, index) = (records.header(), FileIndex::Records(records));
        let after = CompressedTail { head_bytes, header, index, tail: &[] };
        self.used.formats.insert(algorithm, workers::format(compression, self.options));
        self.used.big_clusters |= self.options.cluster_bytes > BLOCK_BYTES;
        self.put_record(planned, storage, &after, 0..0)
    }
}

/// The index of a compressed file, and the end of the file that stands after it.
struct CompressedTail<'f> {
    /// Bytes of the inode with its attributes.
    head_bytes: u64,
    header: MapHeader,
    index: FileIndex<'f>,
    tail: &'f [u8],
}

/// An index in one of its two forms.
enum FileIndex<'f> {
    Entries(Index<'f>),
    Records(Records<'f>),
}

impl InodeTail for CompressedTail<'_> {
    fn len_bytes(&self) -> u64 {
        let header_end = header_place(self.head_bytes) + HEADER_BYTES;
        let index_bytes = match &self.index {
            FileIndex::Entries(index) => index.encoded_bytes(header_end),
            FileIndex::Records(records) => records.encoded_bytes(header_end),
        };
        header_end - self.head_bytes + index_bytes + self.tail.len() as u64
    }

    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        let header_at = header_place(self.head_bytes);
        put(&[0; HEADER_BYTES as usize][..(header_at - self.head_bytes) as usize]);
        put(&self.header.encode());
        match &self.index {
            FileIndex::Entries(index) => index.write(header_at + HEADER_BYTES, put),
            FileIndex::Records(records) => records.write(header_at + HEADER_BYTES, put),
        }
        put(self.tail);
    }
}

/// The offset of the header of an index after an inode that takes `head_bytes` with its attributes.
fn header_place(head_bytes: u64) -> u64 {
    head_bytes.next_multiple_of(HEADER_BYTES)
}
