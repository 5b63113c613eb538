//! Placing inodes, with their attributes and what stands after them.

use super::Writer;
use super::metabox::Position;
use crate::form::InodeForm;
use crate::metadata::inode::{Fields, Storage};
use crate::plan::Planned;
use crate::{BuildError, Result};
use pagefold_image::read::FileKind;
use std::ops::Range;

/// The bytes that follow an inode and its attributes: an index, or the end of its contents. They may not fit into memory.
pub(super) trait InodeTail {
    /// Its length.
    fn len_bytes(&self) -> u64;
    /// Passes all of it to `put`, piece after piece.
    fn write(&self, put: &mut dyn FnMut(&[u8]));
}

impl InodeTail for [u8] {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        put(self);
    }
}

impl Writer<'_> {
    /// Writes an inode, its attributes and its `tail`, of which the bytes `inline` must not cross a block. Returns the place
    /// of `inline` in the area of inodes.
    pub(super) fn put_record(
        &mut self,
        planned: &Planned,
        storage: Storage,
        tail: &(impl InodeTail + ?Sized),
        inline: Range<u64>,
    ) -> Result<Range<u64>> {
        let len_bytes = self.len_bytes(planned);
        let (head_bytes, xattrs) = self.fields(planned, len_bytes, storage.is_wide)?;
        let inline = head_bytes + inline.start..head_bytes + inline.end;
        let is_regular = self.tree.kind(planned.id) == FileKind::Regular;
        let is_plain = is_regular && (storage.is_chunks() || !inline.is_empty());
        let place = self.reserve(head_bytes + tail.len_bytes(), inline.clone(), is_plain)?;
        self.numbers.set(planned.id, place);
        self.write_head(planned, len_bytes, place, storage, &xattrs);
        let mut at = head_bytes;
        tail.write(&mut |bytes| {
            self.write_at(place, at, bytes);
            at += bytes.len() as u64;
        });
        debug_assert_eq!(at, head_bytes + tail.len_bytes());
        // A tail that duplicates share is never in the metabox.
        let at = place.at();
        Ok(if place.is_in_metabox() { 0..0 } else { at + inline.start..at + inline.end })
    }

    pub(super) fn write_head(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        place: Position,
        storage: Storage,
        xattrs: &[u8],
    ) {
        self.summary.inodes += 1;
        let fields = Fields {
            ino: self.summary.inodes as u32,
            ..self.raw_fields(planned, len_bytes, xattrs, storage.is_wide)
        };
        let inode = fields.encode(self.plan.epoch, storage);
        self.write_at(place, 0, &inode);
        self.write_at(place, inode.len() as u64, xattrs);
    }

    /// Returns the bytes of an inode with its attributes, and the attributes.
    pub(super) fn fields(&self, planned: &Planned, len_bytes: u64, is_wide: bool) -> Result<(u64, Vec<u8>)> {
        let xattrs = self.pool.encode(self.tree, planned)?;
        let fields = self.raw_fields(planned, len_bytes, &xattrs, is_wide);
        if fields.form == InodeForm::Compact && fields.exceeds_compact() {
            let what = "its inode cannot be compact: owner, group, number of names or length is too large";
            return Err(BuildError::refused(&planned.path(self.tree), what));
        }
        Ok((fields.head_bytes(self.plan.epoch), xattrs))
    }

    pub(super) fn raw_fields(
        &self,
        planned: &Planned,
        len_bytes: u64,
        xattrs: &[u8],
        is_wide: bool,
    ) -> Fields {
        Fields {
            metadata: self.tree.plain_metadata(planned.id),
            kind: self.tree.kind(planned.id),
            nlink: self.plan.nlink(planned.id),
            ino: 0,
            len_bytes,
            xattr_bytes: xattrs.len(),
            is_wide,
            form: self.options.form.inodes,
        }
    }
}
