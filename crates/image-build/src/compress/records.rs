//! The index of a compressed file whose addresses need more than 32 bits: a record for each extent.
//!
//! The form is that of "Extent records" in `docs/formats/erofs.md`. Only such records have longer addresses, and only
//! images with the feature 48bit have records. They take more room than entries: 16 bytes an extent, or 32 in a file of
//! more than 4 GiB.

use super::extents::ExtentTable;
use super::stored::Stored;
use crate::options::BLOCK_BYTES;
use pagefold_image::format::zmap::{MapHeader, RawExtentRecord, StoredLength};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A file, as its records describe it.
pub struct Records<'a> {
    /// The extents; the first begins at byte 0.
    pub extents: &'a ExtentTable,
    /// Length of the file, bytes; not 0.
    pub len_bytes: u64,
    /// Block of the first cluster; the others follow it.
    pub first_block: u64,
    /// Number of the algorithm.
    pub algorithm: u8,
    /// Stored bytes of the last extent if that is [`Stored::Inline`]: the format has no inline extents in records, so
    /// these bytes stand at the beginning of the block after the others.
    pub tail_bytes: usize,
}

impl Records<'_> {
    /// The header of the index.
    pub fn header(&self) -> MapHeader {
        MapHeader::of_records(self.record_bits(), self.extents.all().count() as u64)
    }

    /// Bytes that [`write`](Self::write) passes on.
    pub fn encoded_bytes(&self, start: u64) -> u64 {
        self.gap_bytes(start) + ((self.extents.all().count() as u64) << self.record_bits())
    }

    /// Passes the records to `put`, after zeroes up to the first; `start` is the offset of the header's end in the image, of
    /// which only the remainder by 32 counts.
    pub fn write(&self, start: u64, put: &mut dyn FnMut(&[u8])) {
        put(&[0; 32][..self.gap_bytes(start) as usize]);
        let mut physical = self.first_block * BLOCK;
        for extent in self.extents.all().iter() {
            let (stored_bytes, is_compressed) = match extent.stored {
                Stored::Compressed { blocks } => (u64::from(blocks) * BLOCK, true),
                Stored::Plain => (BLOCK, false),
                Stored::Inline { compressed } => (self.tail_bytes as u64, compressed),
                // Images with records have no packed file.
                Stored::Fragment => (0, false),
            };
            let format = if is_compressed { self.algorithm + 1 } else { 0 };
            let raw = RawExtentRecord {
                plen: StoredLength::of(stored_bytes as u32, format).0.into(),
                pstart_lo: (physical as u32).into(),
                pstart_hi: ((physical >> 32) as u32).into(),
                lstart_lo: (extent.start as u32).into(),
                lstart_hi: ((extent.start >> 32) as u32).into(),
            };
            // A record of 16 bytes has no upper half of the offset, which is zero, and one of 32 bytes has padding.
            let mut record = [0; 32];
            record[..RawExtentRecord::LEN].copy_from_slice(&raw.encode());
            put(&record[..1 << self.record_bits()]);
            physical += stored_bytes;
        }
    }

    /// Zeroes before the first record.
    fn gap_bytes(&self, start: u64) -> u64 {
        start.next_multiple_of(1 << self.record_bits()) - start
    }

    /// log2 of a record's bytes.
    fn record_bits(&self) -> u8 {
        if self.len_bytes > u64::from(u32::MAX) { 5 } else { 4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::extents::Placed;
    use pagefold_image::Nid;
    use pagefold_image::read::zmap::{IndexForm, ZContext, ZMap};
    use pagefold_image::read::{Algorithm, Mapping, SliceBytes};

    const FIRST_BLOCK: u64 = 1 << 33;

    /// The first byte, the stored bytes, and whether they are compressed, of all extents as the reader finds them.
    fn read_back(records: &Records<'_>, start: u64) -> Vec<(u64, u64, u64, bool)> {
        let mut image = vec![0; start as usize];
        image.extend(records.header().encode());
        records.write(start + 8, &mut |bytes| image.extend(bytes));
        assert_eq!(image.len() as u64 - start - 8, records.encoded_bytes(start + 8));
        let context = ZContext {
            block_bits: 12,
            zero_padding: true,
            extent_records: true,
            fragments: false,
            algorithms: 1 << Algorithm::Zstd as u8,
            max_cluster_bytes: 1 << 20,
            nid_for_errors: Nid(1),
        };
        let bytes = SliceBytes::image(&image);
        let at = pagefold_image::Address::image(start);
        let map = ZMap::open(&bytes, &context, IndexForm::Full, at, records.len_bytes).unwrap();
        let mut found = Vec::new();
        let mut offset = 0;
        while offset < records.len_bytes {
            let extent = map.extent_at(&bytes, offset).unwrap();
            found.push(match extent.mapping {
                Mapping::Compressed(cluster) => {
                    (extent.start, cluster.at.offset, u64::from(cluster.len_bytes), true)
                }
                Mapping::Plain(at) => (extent.start, at.offset, extent.len_bytes, false),
                other => panic!("{other:?}"),
            });
            offset = extent.end();
        }
        found
    }

    #[test]
    fn files_of_any_length_come_back() {
        let large = 6 << 30;
        for (second, start) in [(9000, 64), (large, 64), (9000, 72), (large, 40)] {
            // Twelve MiB are the most that a compressed extent has.
            let steps = (0..second / (8 << 20)).map(|n| n * (8 << 20)).filter(|at| *at > 0);
            let placed = |start, stored| Placed { start, block: 0, stored, is_prefix: false };
            let compressed = |start| placed(start, Stored::Compressed { blocks: 3 });
            let mut extents: Vec<Placed> = [0].into_iter().chain(steps).map(compressed).collect();
            let clusters = extents.len() as u64;
            extents.push(placed(second, Stored::Plain));
            extents.push(placed(second + 4096, Stored::Inline { compressed: true }));
            let mut table = ExtentTable::default();
            extents.iter().for_each(|extent| table.push(extent).unwrap());
            let records = Records {
                extents: &table,
                len_bytes: second + 4096 + 500,
                first_block: FIRST_BLOCK,
                algorithm: Algorithm::Zstd as u8,
                tail_bytes: 77,
            };
            let found = read_back(&records, start);
            assert_eq!(found[0], (0, FIRST_BLOCK * 4096, 3 * 4096, true));
            let plain = (FIRST_BLOCK + clusters * 3) * 4096;
            assert_eq!(
                found[clusters as usize..],
                [(second, plain, 4096, false), (second + 4096, plain + 4096, 77, true)]
            );
        }
    }
}
