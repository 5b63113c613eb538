//! References to clusters that an earlier file has, or an earlier part of the same file.

use super::{BLOCK, OpenFile, Writer};
use crate::Result;
use crate::chunks::Reference;
use crate::compress::extents::{Extents, Placed};
use crate::compress::stored::{Segment, Stored};
use crate::plan::Planned;
use std::ops::Range;
use std::time::Duration;

impl Writer<'_> {
    /// Adds a reference to a file whose extents so far end where it begins; `last` has the bytes of its last block. Returns
    /// false, and does nothing, if the contents do not lie in extents that the file can refer to.
    pub fn add_reference(
        &mut self,
        planned: &Planned,
        file: &mut OpenFile,
        reference: &Reference,
        last: &[u8],
    ) -> Result<bool> {
        let end = if reference.source == planned.id {
            let Some(found) = resolve(&file.extents.all(), reference, reference.start) else {
                return Ok(false);
            };
            // The extents are before those that are appended.
            for number in found.numbers.clone() {
                let extent = found.extent(&file.extents.all(), number);
                file.extents.push(&extent)?;
            }
            found.end
        } else {
            let Some(original) = self.originals.get(reference.source) else { return Ok(false) };
            let (source, source_end) = (original.extents(), self.tree.content_bytes(reference.source));
            let Some(found) = resolve(&source, reference, source_end) else { return Ok(false) };
            for number in found.numbers.clone() {
                file.extents.push(&found.extent(&source, number))?;
            }
            found.end
        };
        file.shared_bytes += end - reference.start;
        self.used.shared_clusters = true;
        match last.get(last.len().saturating_sub((reference.end - end) as usize)..) {
            Some(rest) if !rest.is_empty() => {
                let segment = Segment::of_plain_block(end, rest);
                self.append_segment(file, segment, Duration::ZERO)?;
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The extents that have the contents of a reference.
struct Resolved<'r> {
    reference: &'r Reference,
    /// Their numbers in the file that has them.
    numbers: Range<usize>,
    /// Where the last of them ends in the file that refers.
    end: u64,
    /// The end of the extents so far of the file that has them, bytes.
    source_len_bytes: u64,
}

impl Resolved<'_> {
    /// The end of the reference in the file that has the contents.
    fn source_end(&self) -> u64 {
        self.reference.source_start + (self.reference.end - self.reference.start)
    }

    /// Where an extent of that file ends.
    fn extent_end(&self, source: &Extents<'_>, number: usize) -> u64 {
        match number + 1 < source.count() {
            true => source.get(number + 1).start,
            false => self.source_len_bytes,
        }
    }

    /// The place in the file that refers of a byte of the other.
    fn in_reference(&self, at: u64) -> u64 {
        self.reference.start + (at.min(self.source_end()) - self.reference.source_start)
    }

    /// The extent of this number, with its place in the file that refers.
    fn extent(&self, source: &Extents<'_>, number: usize) -> Placed {
        let extent = source.get(number);
        let is_compressed = extent.stored != Stored::Plain;
        let is_cut_off = is_compressed && self.extent_end(source, number) > self.source_end();
        Placed { start: self.in_reference(extent.start), is_prefix: extent.is_prefix || is_cut_off, ..extent }
    }
}

/// Finds the extents that have the contents of a reference; `None` if `source`, the file that has the contents, does not have
/// them in extents that can lie where the reference is. Its extents so far end at byte `source_len_bytes`.
///
/// Up to a block is missing at the end if the last extent would have one entry of the index, and a cluster of several
/// blocks, which needs two.
fn resolve<'r>(
    source: &Extents<'_>,
    reference: &'r Reference,
    source_len_bytes: u64,
) -> Option<Resolved<'r>> {
    let source_end = reference.source_start + reference.end.checked_sub(reference.start)?;
    let (first, after) = (source.first_from(reference.source_start), source.first_from(source_end));
    if first >= after || source.get(first).start != reference.source_start {
        return None;
    }
    let (numbers, end) = (first..after, reference.end);
    let found = Resolved { reference, numbers, end, source_len_bytes };
    for number in first..after {
        let extent = source.get(number);
        let start = found.in_reference(extent.start);
        let entries = found.in_reference(found.extent_end(source, number)) / BLOCK - start / BLOCK;
        match extent.stored {
            Stored::Compressed { blocks } if entries < 1 + u64::from(blocks > 1) => {
                let is_last = number + 1 == after;
                return is_last.then_some(Resolved { numbers: first..number, end: start, ..found });
            }
            Stored::Plain if entries == 0 => return None,
            Stored::Compressed { .. } | Stored::Plain => {}
            Stored::Inline { .. } | Stored::Fragment => return None,
        }
    }
    (source_len_bytes >= source_end).then_some(found)
}
