//! Files with an index: compressed ones, and those with fragments.

use super::{BLOCK, OpenFile, Writer};
use crate::build::BuildError;
use crate::build::compress::index::Index;
use crate::build::compress::records::Records;
use crate::build::compress::workers;
use crate::build::metadata::inode::{ADDRESS_WIDE, Fields, Storage};
use crate::build::options::{BLOCK_BYTES, Compression};
use crate::build::plan::Planned;
use crate::build::progress;
use crate::build::tree::Metadata;
use crate::format::inode::{LAYOUT_COMPRESSED_COMPACT, LAYOUT_COMPRESSED_FULL};
use crate::format::zmap::{HEADER_BYTES, MapHeader};
use crate::read::FileKind;
use std::ops::Range;

impl Writer<'_> {
    /// Places the inode of a file that is a fragment as a whole, at byte `at` of the packed file.
    pub fn put_fragment(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        compression: Compression,
        at: u64,
    ) -> Result<(), BuildError> {
        self.summary.count(Some(compression), len_bytes, 0);
        self.used.fragments = true;
        let (head_bytes, _) = self.fields(planned, len_bytes, false)?;
        let (_, mut behind) = header_place(head_bytes);
        behind.extend(MapHeader::of_whole_fragment(at).encode());
        self.put_record(planned, len_bytes, Storage::count(LAYOUT_COMPRESSED_FULL, 0), &behind, 0..0)?;
        Ok(())
    }

    /// Places the inode of the packed file, all of whose segments are appended. The last of its blocks have directories.
    pub fn put_packed(
        &mut self,
        len_bytes: u64,
        fragments: progress::Stored,
        compression: Compression,
        file: OpenFile,
        directory_blocks: u64,
    ) -> Result<(), BuildError> {
        // Without files, what is not directories is prefixes of attribute names.
        let has_files = fragments.files > 0;
        let file_blocks = if has_files { file.blocks - directory_blocks } else { 0 };
        self.summary.metadata_bytes = (file.blocks - file_blocks) * BLOCK;
        if has_files {
            let stored_bytes = file_blocks * BLOCK;
            self.summary.add_stored(compression, stored_bytes);
            self.summary.fragments = progress::Stored { stored_bytes, ..fragments };
        }
        self.packed_place = Some(self.put_hidden(len_bytes, compression, &file)?);
        Ok(())
    }

    /// Places the inode of a compressed file that has no name, and returns its position in the area.
    pub(super) fn put_hidden(
        &mut self,
        len_bytes: u64,
        compression: Compression,
        file: &OpenFile,
    ) -> Result<u64, BuildError> {
        let epoch = self.plan.epoch;
        let fields = Fields {
            metadata: Metadata { permissions: 0, mtime: epoch, ..Metadata::default() },
            kind: FileKind::Regular,
            nlink: 1,
            ino: (self.plan.count() + 1 + usize::from(self.packed_place.is_some())) as u32,
            len_bytes,
            xattr_bytes: 0,
            is_wide: false,
        };
        let head_bytes = fields.head_bytes(epoch);
        let (storage, behind, _) = self.encode_index(head_bytes, len_bytes, compression, file);
        let at = self.space.reserve(head_bytes + behind.len() as u64, 0..0)?;
        let inode = fields.encode(epoch, storage);
        self.space.write(at, &inode);
        self.space.write(at + inode.len() as u64, &behind);
        Ok(at)
    }

    pub(super) fn put_compressed(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        compression: Compression,
        file: &mut OpenFile,
    ) -> Result<Range<u64>, BuildError> {
        // A file that is stored behind its index as a whole has no block, whatever the next block is.
        let end = file.first_block.map_or(0, |block| block + file.blocks);
        if end > ADDRESS_WIDE {
            return self.put_records(planned, len_bytes, compression, file);
        }
        let (head_bytes, _) = self.fields(planned, len_bytes, false)?;
        let (storage, behind, tail) = self.encode_index(head_bytes, len_bytes, compression, file);
        self.put_record(planned, len_bytes, storage, &behind, tail)
    }

    /// Encodes the index of a compressed file, and what stands behind it. Returns how the inode refers to it, the bytes
    /// behind the inode and its attributes, which take `head_bytes`, and which of them lie within a block.
    fn encode_index(
        &mut self,
        head_bytes: u64,
        len_bytes: u64,
        compression: Compression,
        file: &OpenFile,
    ) -> (Storage, Vec<u8>, Range<usize>) {
        let big = self.options.cluster_bytes > BLOCK_BYTES;
        let (extents, has_references, fragment) = (&file.extents, file.shared_bytes > 0, file.fragment);
        let index = Index { extents, len_bytes, has_references, big, fragment };
        let layout = if index.is_full() { LAYOUT_COMPRESSED_FULL } else { LAYOUT_COMPRESSED_COMPACT };
        let algorithm = compression.method.algorithm() as u8;
        let header = MapHeader::of_clusters(index.advice(), algorithm, file.tail.len() as u16);
        let header = file.fragment.map_or(header, |offset| header.with_fragment(offset));
        let (header_at, mut behind) = header_place(head_bytes);
        behind.extend(header.encode());
        behind.extend(index.encode(header_at + HEADER_BYTES));
        let tail = behind.len()..behind.len() + file.tail.len();
        behind.extend(&file.tail);
        // An image with compressed files needs an algorithm, also if the packed file is all that they have, and plain.
        if file.extents.iter().any(|extent| extent.stored.is_compressed()) || self.used.formats.is_empty() {
            self.used.formats.insert(algorithm, workers::format(compression, self.options));
        }
        self.used.big_clusters |= big;
        self.used.tail_packing |= !tail.is_empty();
        self.used.fragments |= file.fragment.is_some();
        // The mark of a prefix came with clusters of several files.
        self.used.shared_clusters |= file.extents.iter().any(|extent| extent.is_prefix);
        (Storage::count(layout, file.blocks), behind, tail)
    }

    /// Ends a compressed file whose addresses need 48 bits.
    fn put_records(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        compression: Compression,
        file: &mut OpenFile,
    ) -> Result<Range<u64>, BuildError> {
        let tail_bytes = file.tail.len();
        if tail_bytes > 0 {
            self.out.append_padded(std::mem::take(&mut file.tail))?;
            file.blocks += 1;
        }
        let storage = Storage::count(LAYOUT_COMPRESSED_FULL, file.blocks);
        let (head_bytes, _) = self.fields(planned, len_bytes, storage.is_wide)?;
        let (header_at, mut behind) = header_place(head_bytes);
        let (extents, first_block) = (&file.extents, file.first_block.unwrap_or(0));
        let algorithm = compression.method.algorithm() as u8;
        let records = Records { extents, len_bytes, first_block, algorithm, tail_bytes };
        behind.extend(records.header().encode());
        behind.extend(records.encode(header_at + HEADER_BYTES));
        self.used.formats.insert(algorithm, workers::format(compression, self.options));
        self.used.big_clusters |= self.options.cluster_bytes > BLOCK_BYTES;
        self.put_record(planned, len_bytes, storage, &behind, 0..0)
    }
}

/// The offset of the header of an index behind an inode that takes `head_bytes` with its attributes, and the bytes between
/// them.
fn header_place(head_bytes: u64) -> (u64, Vec<u8>) {
    let at = head_bytes.next_multiple_of(HEADER_BYTES);
    (at, vec![0; (at - head_bytes) as usize])
}
