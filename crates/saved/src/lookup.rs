//! [`Lookup`]: finds single pages of a saved disk by its index, for a restore that goes on while the disk is used.
//!
//! The root of the index stays in memory; the caller keeps leaves and blocks as long as it wants. Each part is verified by its
//! checksum when it is read. Whatever a file claims, a read takes memory for one part, and the root is bounded by
//! [`LEAVES_MAX`]. The index decides which pages there are: blocks that it does not name are not read.

use crate::block::{Block, FRAME_LEN, FRAME_LEN_MAX, FrameHeader, FrameKind, header_checksum};
use crate::bytes::u64_at;
use crate::error::SavedError;
use crate::header::Header;
use crate::index::{RUN_LEN, Run};
use crate::reader::read_header;
use crate::trailer::{TRAILER_LEN, Totals, Trailer};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Most leaves of an index: a full one has 4096 runs.
pub const LEAVES_MAX: usize = 1 << 22;

/// A file that is read at any place.
pub trait ReadAt {
    /// Fills `bytes` from byte `offset` on.
    fn fill_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Its present length, bytes.
    fn len_bytes(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn fill_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// The place of a page in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where its block begins, bytes.
    pub offset: u64,
    /// The number of its entry in the block.
    pub entry: u64,
}

/// The header, the totals and the root of the index of a saved disk.
#[derive(Debug)]
pub struct Lookup {
    header: Header,
    totals: Totals,
    root_offset: u64,
    /// The first page of each leaf, and where the leaf begins in the file.
    leaves: Vec<(u64, u64)>,
}

/// A leaf of the index: runs of pages, in order.
#[derive(Debug)]
pub struct Leaf(pub(crate) Vec<Run>);

/// The bytes of a verified block of pages.
#[derive(Debug)]
pub struct BlockBytes {
    frame: Vec<u8>,
    count: usize,
    page_count: u64,
    codec_count: usize,
}

impl Lookup {
    /// Reads header, trailer and the root of the index.
    pub fn open(file: &impl ReadAt) -> Result<Self, SavedError> {
        let (header, end) = header_of(file)?;
        let trailer = read_trailer(file, end)?;
        if trailer.id != header.id {
            let what = "its last part is that of another saved disk";
            return Err(SavedError::Damaged { offset: trailer.totals.len_bytes, what });
        }
        let root_offset = trailer.root_offset;
        let end = trailer.totals.len_bytes - TRAILER_LEN as u64;
        let damaged = |what| SavedError::Damaged { offset: root_offset, what };
        let (kind, count, root) = read_frame(file, root_offset, end)?;
        let is_possible = root.len() == count.saturating_mul(RUN_LEN) && count as u64 <= header.page_count();
        if kind != FrameKind::Root || !is_possible || count > LEAVES_MAX {
            return Err(damaged("the root of the index is impossible"));
        }
        let leaves: Vec<_> =
            root.chunks_exact(RUN_LEN).map(|leaf| (u64_at(leaf, 0), u64_at(leaf, 8))).collect();
        // So a root that claims more leaves than the disk has pages takes no memory.
        let pages = header.page_count();
        if !leaves.is_sorted_by(|a, b| a.0 < b.0) || leaves.last().is_some_and(|leaf| leaf.0 >= pages) {
            return Err(damaged("the leaves of the index are not in order"));
        }
        Ok(Lookup { header, totals: trailer.totals, root_offset, leaves })
    }

    /// Whether the file still has the header and the trailer that were read.
    pub fn is_same(&self, file: &impl ReadAt) -> bool {
        Lookup::open(file).is_ok_and(|other| other.header == self.header && other.totals == self.totals)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The totals in the trailer.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The number of leaves.
    pub fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// The number of the leaf that has the page, if any has.
    pub fn leaf_of(&self, page: u64) -> Option<usize> {
        self.leaves.partition_point(|(first, _)| *first <= page).checked_sub(1)
    }

    /// The first page of a leaf.
    pub fn first_page(&self, leaf: usize) -> Option<u64> {
        self.leaves.get(leaf).map(|(first, _)| *first)
    }

    /// Reads a leaf, by its number.
    pub fn read_leaf(&self, file: &impl ReadAt, leaf: usize) -> Result<Leaf, SavedError> {
        let Some(&(first, offset)) = self.leaves.get(leaf) else { return Ok(Leaf(Vec::new())) };
        let damaged = |what| SavedError::Damaged { offset, what };
        let (kind, count, body) = read_frame(file, offset, self.root_offset)?;
        if kind != FrameKind::Leaf || count == 0 || body.len() != count * RUN_LEN {
            return Err(damaged("a leaf of the index is impossible"));
        }
        let runs: Option<Vec<_>> = body.chunks_exact(RUN_LEN).map(Run::decode).collect();
        let runs = runs.ok_or(damaged("a run of the index is impossible"))?;
        let end = self.first_page(leaf + 1).unwrap_or(self.header.page_count()).min(self.header.page_count());
        let mut next = first;
        for run in &runs {
            if run.page < next || run.page + run.count > end {
                return Err(damaged("the runs of the index are not in order"));
            }
            next = run.page + run.count;
        }
        Ok(Leaf(runs))
    }

    /// Reads the block at byte `offset`.
    pub fn read_block(&self, file: &impl ReadAt, offset: u64) -> Result<BlockBytes, SavedError> {
        let damaged = |what| SavedError::Damaged { offset, what };
        let (kind, count, frame) = read_frame(file, offset, self.root_offset)?;
        if kind != FrameKind::Pages {
            return Err(damaged("no block of pages begins here"));
        }
        block_of(&self.header, frame, count).map_err(damaged)
    }
}

impl Leaf {
    /// The place of a page.
    pub fn find(&self, page: u64) -> Option<Place> {
        let run = self.runs_from(page).next()?;
        (run.page <= page).then(|| Place { offset: run.offset, entry: run.entry + (page - run.page) })
    }

    /// The first page from `page` on that is there.
    pub fn next_page(&self, page: u64) -> Option<u64> {
        self.runs_from(page).next().map(|run| run.page.max(page))
    }

    /// All pages, in order.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|run| run.page..run.page + run.count)
    }

    fn runs_from(&self, page: u64) -> impl Iterator<Item = &Run> {
        let at = self.0.partition_point(|run| run.page + run.count <= page);
        self.0[at..].iter()
    }
}

impl BlockBytes {
    /// The block.
    pub fn block(&self) -> Result<Block<'_>, SavedError> {
        let parsed = Block::parse(&self.frame, self.count, self.page_count, self.codec_count);
        // It was parsed before.
        parsed.map_err(|what| SavedError::Damaged { offset: 0, what })
    }
}

/// Reads the header. Returns where it ends, too.
pub(crate) fn header_of(file: &impl ReadAt) -> Result<(Header, u64), SavedError> {
    let mut offset = 0;
    let header = read_header(&mut |bytes| {
        fill(file, bytes, offset)?;
        offset += bytes.len() as u64;
        Ok(())
    })?;
    Ok((header, offset))
}

/// The block with this body, of `count` pages.
pub(crate) fn block_of(header: &Header, frame: Vec<u8>, count: usize) -> Result<BlockBytes, &'static str> {
    let (page_count, codec_count) = (header.page_count(), header.codecs.len());
    Block::parse(&frame, count, page_count, codec_count)?;
    Ok(BlockBytes { frame, count, page_count, codec_count })
}

/// Reads the frame at byte `offset`, which ends at byte `end` or before, and verifies its checksum. Returns its kind, the
/// number of its entries and its body.
pub(crate) fn read_frame(
    file: &impl ReadAt,
    offset: u64,
    end: u64,
) -> Result<(FrameKind, usize, Vec<u8>), SavedError> {
    let damaged = |what| SavedError::Damaged { offset, what };
    let mut bytes = [0; FRAME_LEN];
    let space = end.checked_sub(offset).filter(|space| *space >= FRAME_LEN as u64);
    let space = space.ok_or(damaged("the place of a block is impossible"))?;
    fill(file, &mut bytes, offset)?;
    let header = FrameHeader::decode(&bytes).ok_or(damaged("no block begins here"))?;
    let len_max = match header.kind {
        FrameKind::Root => FRAME_LEN + LEAVES_MAX * RUN_LEN,
        FrameKind::Pages | FrameKind::Leaf => FRAME_LEN_MAX,
    };
    let is_possible = (FRAME_LEN..=len_max).contains(&header.len) && header.len as u64 <= space;
    if !is_possible || !header.len.is_multiple_of(8) {
        return Err(damaged("the length of a block is impossible"));
    }
    let mut body = vec![0; header.len - FRAME_LEN];
    fill(file, &mut body, offset + FRAME_LEN as u64)?;
    match crc32c::crc32c_append(header_checksum(&bytes), &body) == header.checksum {
        true => Ok((header.kind, header.count, body)),
        false => Err(damaged("the checksum of a block is wrong")),
    }
}

/// Reads the trailer of a file whose header ends at byte `header_end`.
fn read_trailer(file: &impl ReadAt, header_end: u64) -> Result<Trailer, SavedError> {
    let len = file.len_bytes().map_err(|source| SavedError::Read { offset: header_end, source })?;
    let start = len.checked_sub(TRAILER_LEN as u64).filter(|start| *start >= header_end);
    let start = start.ok_or(SavedError::Truncated { offset: len })?;
    let mut bytes = [0; TRAILER_LEN];
    fill(file, &mut bytes, start)?;
    Trailer::decode_end(&bytes, start)
}

fn fill(file: &impl ReadAt, bytes: &mut [u8], offset: u64) -> Result<(), SavedError> {
    file.fill_at(bytes, offset).map_err(|source| match source.kind() {
        ErrorKind::UnexpectedEof => SavedError::Truncated { offset },
        _ => SavedError::Read { offset, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageForm, PlainOutput, Writer};
    use std::collections::BTreeMap;

    impl ReadAt for Vec<u8> {
        fn fill_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
            let rest = self.get(offset as usize..).unwrap_or_default();
            let part = rest.get(..bytes.len()).ok_or(ErrorKind::UnexpectedEof)?;
            bytes.copy_from_slice(part);
            Ok(())
        }

        fn len_bytes(&self) -> io::Result<u64> {
            Ok(self.len() as u64)
        }
    }

    const PAGES: u64 = 100_000;

    /// A saved disk with pages in this order, each of which repeats its number.
    fn saved(pages: impl Iterator<Item = u64>) -> Vec<u8> {
        let header = Header::new(PAGES << 12, [7; 16]);
        let mut writer = Writer::new(PlainOutput::new(Vec::new()), &header).unwrap();
        pages.for_each(|page| writer.add(page, PageForm::SameFilled(page)).unwrap());
        writer.finish().unwrap().1.into_inner()
    }

    /// The word of a page, found by the index.
    fn find(lookup: &Lookup, file: &Vec<u8>, page: u64) -> Result<Option<u64>, SavedError> {
        let Some(leaf) = lookup.leaf_of(page) else { return Ok(None) };
        let Some(place) = lookup.read_leaf(file, leaf)?.find(page) else { return Ok(None) };
        let bytes = lookup.read_block(file, place.offset)?;
        let found = bytes.block()?.pages().nth(place.entry as usize);
        match found {
            Some((found, PageForm::SameFilled(word))) if found == page => Ok(Some(word)),
            _ => panic!("the index does not fit the block"),
        }
    }

    #[test]
    fn each_page_is_found_and_no_other() {
        // Every third page is missing; some come early, as those that writers have captured. Many runs: several leaves.
        let early: Vec<_> = (0..2000).map(|n| (n * 7919) % PAGES).filter(|page| page % 3 != 0).collect();
        let rest = (0..PAGES).filter(|page| page % 3 != 0 && !early.contains(page));
        let file = saved(early.iter().copied().chain(rest));
        let lookup = Lookup::open(&file).unwrap();
        assert!(lookup.leaf_count() > 2 && lookup.is_same(&file));
        let mut all = BTreeMap::new();
        for leaf in 0..lookup.leaf_count() {
            let leaf = lookup.read_leaf(&file, leaf).unwrap();
            all.extend(leaf.pages().map(|page| (page, leaf.find(page).unwrap().offset)));
        }
        assert!(all.keys().copied().eq((0..PAGES).filter(|page| page % 3 != 0)));
        for page in (0..PAGES).step_by(997).chain([PAGES - 1, PAGES, u64::MAX]) {
            let expected = (page % 3 != 0 && page < PAGES).then_some(page);
            assert_eq!(find(&lookup, &file, page).unwrap(), expected, "{page}");
        }
    }

    /// Whatever bytes change, a page has its contents, or reading fails.
    #[test]
    fn damage_is_an_error_and_never_other_contents() {
        let pages = || (0..5000).filter(|page| page % 2 == 0);
        let file = saved(pages());
        let whole = Lookup::open(&file).unwrap();
        let mut errors = 0;
        for at in (0..file.len()).step_by(97) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            let opened = Lookup::open(&damaged);
            errors += u32::from(opened.is_err());
            for lookup in opened.iter().chain([&whole]) {
                for page in (0..5000).step_by(250) {
                    match find(lookup, &damaged, page) {
                        Ok(found) => assert_eq!(found, Some(page), "byte {at}"),
                        Err(_) => errors += 1,
                    }
                }
            }
        }
        assert!(errors > 100, "{errors}");
        for len in (0..file.len()).step_by(501) {
            assert!(matches!(
                Lookup::open(&file[..len].to_vec()),
                Err(SavedError::Truncated { .. } | SavedError::Damaged { .. })
            ));
        }
    }
}
