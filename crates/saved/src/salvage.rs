//! [`salvage`]: writes a damaged saved disk again, with all that verifies. The rest is lost pages.
//!
//! A page is taken from the newest file whose index names it, if its block verifies. Where a part of the index is damaged,
//! the blocks of the file say which pages it has, and each other page of that part is lost: it may have been in a damaged
//! block, or be zeroes. So no page gets contents that it did not have, those of an older save included.
//!
//! Memory: the header, the root of an index, a leaf, a block, and 32 bytes for each run of pages. Work: that for the pages of
//! the disk and the bytes of the files, and at most [`SCAN_WORK`] times the length of a file to find blocks in it.

use crate::block::{FRAME_LEN, FRAME_LEN_MAX, FrameKind, PageForm};
use crate::error::SavedError;
use crate::header::{CODECS_MAX, CodecRecord, Header};
use crate::index::Run;
use crate::lookup::{Leaf, Lookup, ReadAt, block_of, header_of, read_frame};
use crate::output::Output;
use crate::page_set::PageSet;
use crate::trailer::Totals;
use crate::writer::Writer;
use std::io;
use std::ops::Range;

/// Most pages that are made lost: those of 1 TiB, 2 GiB of entries. A forged header claims more.
const LOST_MAX: u64 = 1 << 28;
/// Bytes that are searched for the beginning of a block at once.
const SCAN_PIECE: usize = 64 << 10;
/// Bytes that a search reads at most, in lengths of the file: each place that looks like a block is read.
const SCAN_WORK: u64 = 16;

/// The reason why nothing can be saved of a saved disk.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The beginning of its newest file, which has the codecs, cannot be used.
    #[error(transparent)]
    Header(#[from] SavedError),
    /// The files of the chain have too many codecs for one file.
    #[error(
        "its files have more than {CODECS_MAX} codecs together; restore the full save that the chain ends with"
    )]
    Codecs,
    /// So many pages do not verify that a new saved disk would not be shorter than the disk.
    #[error("more than {LOST_MAX} pages do not verify, because parts of its index are damaged or missing")]
    Lost,
    /// Writing failed.
    #[error("writing the saved disk: {0}")]
    Write(io::Error),
}

/// The pages of a saved disk that was salvaged.
#[derive(Debug)]
pub struct Salvaged {
    /// The totals of the new saved disk.
    pub totals: Totals,
    /// Pages that did not verify, in order: these are lost in it.
    pub unverified: Vec<Range<u64>>,
}

/// Writes the pages of a chain, the newest file first, as one full save. Files at its end may be missing.
pub fn salvage<F: ReadAt, O: Output>(files: &[F], output: O) -> Result<Salvaged, SalvageError> {
    let (mut headers, mut ends) = (Vec::<Header>::new(), Vec::new());
    for file in files {
        match header_of(file) {
            Ok((header, end)) if headers.last().is_none_or(|child| is_parent(&header, child)) => {
                headers.push(header);
                ends.push(end);
            }
            Err(e) if headers.is_empty() => return Err(e.into()),
            // The contents of it and of those before are lost.
            _ => break,
        }
    }
    let Some(newest) = headers.first() else { return Err(SavedError::NotSaved.into()) };
    let (codecs, places) = union(&headers)?;
    let header = Header { codecs, parent: None, ..newest.clone() };
    let page_count = header.page_count();
    let writer = Writer::new(output, &header).map_err(SalvageError::Write)?;
    let (known, unverified) = (PageSet::default(), PageSet::default());
    let mut target = Target { writer, known, unverified, lost_pages: 0 };
    for (at, (header, places)) in headers.iter().zip(&places).enumerate() {
        let mut file = Source { file: &files[at], header, begin: ends[at], places, target: &mut target };
        let uncertain = file.take_indexed()?;
        if !uncertain.is_empty() {
            file.take_found(&uncertain)?;
            uncertain.ranges().try_for_each(|range| target.lose(range))?;
        }
    }
    if headers.last().is_some_and(|oldest| oldest.parent.is_some()) {
        target.lose(0..page_count)?;
    }
    let unverified = target.unverified.ranges().collect();
    let (totals, _) = target.writer.finish().map_err(SalvageError::Write)?;
    Ok(Salvaged { totals, unverified })
}

/// Whether a file is the parent of another one, by its header. The digest may be in a part that is damaged.
fn is_parent(header: &Header, child: &Header) -> bool {
    let of_child = child.parent.as_ref().map(|parent| (parent.id, parent.depth));
    of_child == Some((header.id, header.depth() + 1)) && header.len_bytes == child.len_bytes
}

/// The codecs of all files, each once, and the place of each file's codecs among them.
fn union(headers: &[Header]) -> Result<(Vec<CodecRecord>, Vec<Vec<u8>>), SalvageError> {
    let mut codecs: Vec<CodecRecord> = Vec::new();
    let mut places = Vec::new();
    for header in headers {
        let mut of_file = Vec::new();
        for codec in &header.codecs {
            let place = codecs.iter().position(|other| other == codec).unwrap_or(codecs.len());
            if place == codecs.len() {
                codecs.push(codec.clone());
            }
            of_file.push(place as u8);
        }
        places.push(of_file);
    }
    if codecs.len() > CODECS_MAX { Err(SalvageError::Codecs) } else { Ok((codecs, places)) }
}

/// The saved disk that is written.
struct Target<O> {
    writer: Writer<O>,
    /// Pages that were written.
    known: PageSet,
    unverified: PageSet,
    lost_pages: u64,
}

impl<O: Output> Target<O> {
    fn put(&mut self, page: u64, form: PageForm<'_>) -> Result<(), SalvageError> {
        self.known.insert(page..page + 1);
        self.writer.add(page, form).map_err(SalvageError::Write)
    }

    /// Makes all pages of the range lost that were not written.
    fn lose(&mut self, range: Range<u64>) -> Result<(), SalvageError> {
        for gap in self.known.gaps(range) {
            self.lost_pages = self.lost_pages.saturating_add(gap.end - gap.start);
            if self.lost_pages > LOST_MAX {
                return Err(SalvageError::Lost);
            }
            for page in gap.clone() {
                self.writer.add(page, PageForm::Lost).map_err(SalvageError::Write)?;
            }
            self.known.insert(gap.clone());
            self.unverified.insert(gap);
        }
        Ok(())
    }
}

/// A file that pages are taken from.
struct Source<'a, F, O> {
    file: &'a F,
    header: &'a Header,
    /// Where the blocks begin, bytes.
    begin: u64,
    /// The places of its codecs in the new header.
    places: &'a [u8],
    target: &'a mut Target<O>,
}

impl<F: ReadAt, O: Output> Source<'_, F, O> {
    /// Takes the pages that the index names. Returns the ranges of which it cannot be read.
    fn take_indexed(&mut self) -> Result<PageSet, SalvageError> {
        let mut uncertain = PageSet::default();
        let page_count = self.header.page_count();
        let Some(lookup) = Lookup::open(self.file).ok().filter(|lookup| lookup.header() == self.header)
        else {
            uncertain.insert(0..page_count);
            return Ok(uncertain);
        };
        for number in 0..lookup.leaf_count() {
            match lookup.read_leaf(self.file, number) {
                Ok(leaf) => self.take_leaf(&lookup, leaf)?,
                Err(_) => {
                    let start = lookup.first_page(number).unwrap_or(page_count);
                    uncertain.insert(start..lookup.first_page(number + 1).unwrap_or(page_count));
                }
            }
        }
        Ok(uncertain)
    }

    /// Takes the pages of a leaf, block by block.
    fn take_leaf(&mut self, lookup: &Lookup, Leaf(mut runs): Leaf) -> Result<(), SalvageError> {
        runs.sort_unstable_by_key(|run| (run.offset, run.entry));
        for of_block in runs.chunk_by(|a, b| a.offset == b.offset) {
            if let Ok(bytes) = lookup.read_block(self.file, of_block[0].offset)
                && let Ok(block) = bytes.block()
            {
                self.take_runs(of_block, block.pages())?;
            }
            // Also pages that the block does not have, although the index says so.
            of_block.iter().try_for_each(|run| self.target.lose(run.page..run.page + run.count))?;
        }
        Ok(())
    }

    fn take_runs<'b>(
        &mut self,
        runs: &[Run],
        pages: impl Iterator<Item = (u64, PageForm<'b>)>,
    ) -> Result<(), SalvageError> {
        let mut runs = runs.iter().peekable();
        for (entry, (page, form)) in (0..).zip(pages) {
            while runs.next_if(|run| run.entry + run.count <= entry).is_some() {}
            let Some(run) = runs.peek() else { return Ok(()) };
            if run.entry <= entry && page == run.page + (entry - run.entry) {
                self.take(page, form)?;
            }
        }
        Ok(())
    }

    /// Takes the pages of these ranges from the blocks that can be found in the file.
    fn take_found(&mut self, wanted: &PageSet) -> Result<(), SalvageError> {
        let Ok(end) = self.file.len_bytes() else { return Ok(()) };
        let mut offset = self.begin;
        let mut work = end.saturating_mul(SCAN_WORK);
        while let Some(candidate) = next_frame(self.file, offset, end) {
            offset = candidate + 8;
            let Ok((kind, count, frame)) = read_frame(self.file, candidate, end) else {
                // It may have read as much as the longest frame.
                work = work.saturating_sub(FRAME_LEN_MAX as u64);
                if work == 0 {
                    return Ok(());
                }
                continue;
            };
            if kind != FrameKind::Pages {
                continue;
            }
            offset = candidate + (FRAME_LEN + frame.len()) as u64;
            let Ok(bytes) = block_of(self.header, frame, count) else { continue };
            let Ok(block) = bytes.block() else { continue };
            for (page, form) in block.pages() {
                if wanted.contains(page) {
                    self.take(page, form)?;
                }
            }
        }
        Ok(())
    }

    /// Takes a page, unless a newer file has it.
    fn take(&mut self, page: u64, form: PageForm<'_>) -> Result<(), SalvageError> {
        if self.target.known.contains(page) {
            return Ok(());
        }
        let form = match form {
            PageForm::Compressed { codec, bytes } => match self.places.get(usize::from(codec)) {
                Some(&codec) => PageForm::Compressed { codec, bytes },
                None => return Ok(()),
            },
            form => form,
        };
        match form {
            // In a full save, a page without an entry is one of zeroes.
            PageForm::SameFilled(0) => {
                self.target.known.insert(page..page + 1);
                Ok(())
            }
            form => self.target.put(page, form),
        }
    }
}

/// The next place from `offset` on where a block of pages may begin.
fn next_frame(file: &impl ReadAt, mut offset: u64, end: u64) -> Option<u64> {
    let mut piece = vec![0; SCAN_PIECE];
    while offset < end {
        let len = (end - offset).min(SCAN_PIECE as u64) as usize;
        // A part of a medium that cannot be read is passed over.
        if file.fill_at(&mut piece[..len], offset).is_ok()
            && let Some(at) = piece[..len].chunks(8).position(|word| word.starts_with(b"PGBK"))
        {
            return Some(offset + at as u64 * 8);
        }
        offset += len as u64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parent, PlainOutput, Reader};
    use std::collections::{BTreeMap, BTreeSet};

    const PAGES: u64 = 20_000;

    /// A saved disk in memory: pages by number with a word, in an order that is not that of the disk.
    fn saved(pages: &BTreeMap<u64, u64>, parent: Option<&[u8]>, depth: u32) -> Vec<u8> {
        let parent = parent.map(|bytes| {
            let lookup = Lookup::open(&bytes.to_vec()).unwrap();
            let (id, digest) = (lookup.header().id, lookup.totals().digest);
            Parent { id, digest, depth, name: "before".into() }
        });
        // A different order of codecs in each file.
        let name = |name: &str| CodecRecord { name: name.into(), ..CodecRecord::default() };
        let mut codecs = vec![name("lz4"), name("zstd")];
        codecs.rotate_left(depth as usize % 2);
        let header = Header { parent, codecs, ..Header::new(PAGES << 12, [depth as u8 + 1; 16]) };
        let mut writer = Writer::new(PlainOutput::new(Vec::new()), &header).unwrap();
        let late = |page: &u64| page.is_multiple_of(7);
        for (page, word) in
            pages.iter().filter(|(page, _)| late(page)).chain(pages.iter().filter(|(page, _)| !late(page)))
        {
            let bytes = [word.to_le_bytes(), page.to_le_bytes()].concat();
            let form = match word % 3 {
                0 => PageForm::SameFilled(*word),
                // Always by "lz4".
                _ => PageForm::Compressed { codec: (depth % 2) as u8, bytes: &bytes },
            };
            writer.add(*page, form).unwrap();
        }
        writer.finish().unwrap().1.into_inner()
    }

    /// The contents of a full save: words by page, and the lost pages.
    fn read(bytes: &[u8]) -> (BTreeMap<u64, u64>, BTreeSet<u64>) {
        let mut reader = Reader::with_digest(bytes).unwrap();
        let header = reader.header().clone();
        assert!(header.parent.is_none());
        let (mut words, mut lost) = (BTreeMap::new(), BTreeSet::new());
        while let Some(block) = reader.next_block().unwrap() {
            for (page, form) in block.pages() {
                let word = match form {
                    PageForm::SameFilled(word) => word,
                    PageForm::Compressed { codec, bytes } => {
                        assert_eq!(header.codecs[usize::from(codec)].name, "lz4");
                        assert_eq!(bytes[8..], page.to_le_bytes());
                        u64::from_le_bytes(bytes[..8].try_into().unwrap())
                    }
                    PageForm::Raw(_) => panic!(),
                    PageForm::Lost => {
                        assert!(lost.insert(page));
                        continue;
                    }
                };
                assert!(words.insert(page, word).is_none());
            }
        }
        reader.finish().unwrap();
        (words, lost)
    }

    fn salvaged(files: &[Vec<u8>]) -> (BTreeMap<u64, u64>, BTreeSet<u64>) {
        let mut bytes = Vec::new();
        let found = salvage(files, PlainOutput::new(&mut bytes)).unwrap();
        let (words, lost) = read(&bytes);
        assert!(found.unverified.iter().cloned().flatten().eq(lost.iter().copied()));
        assert_eq!(found.totals.lost_pages, lost.len() as u64);
        (words, lost)
    }

    /// A chain, the newest first, with the words of all pages in it.
    fn chain() -> (Vec<Vec<u8>>, BTreeMap<u64, u64>) {
        let (mut files, mut truth) = (Vec::<Vec<u8>>::new(), BTreeMap::new());
        for (depth, step) in [2, 5, 9].into_iter().enumerate() {
            let word =
                |page: u64| if depth > 0 && page.is_multiple_of(4) { 0 } else { page << 8 | depth as u64 };
            let pages: BTreeMap<_, _> =
                (1..PAGES).filter(|page| page % step == 1).map(|page| (page, word(page))).collect();
            files.insert(0, saved(&pages, files.first().map(Vec::as_slice), depth as u32));
            truth.extend(pages);
        }
        truth.retain(|_, word| *word != 0);
        (files, truth)
    }

    #[test]
    fn an_intact_chain_is_merged() {
        let (files, truth) = chain();
        assert_eq!(salvaged(&files), (truth, BTreeSet::new()));
    }

    /// Whatever bytes change, a page has its contents or is lost, and few are lost but where the index is gone.
    #[test]
    fn damage_costs_pages_and_changes_none() {
        let (files, truth) = chain();
        let (mut few, mut headers) = (0, 0);
        for which in 0..files.len() {
            for at in (0..files[which].len()).step_by(1501) {
                let mut damaged = files.clone();
                damaged[which][at] ^= 0x20;
                let mut bytes = Vec::new();
                if salvage(&damaged, PlainOutput::new(&mut bytes)).is_err() {
                    assert!(which == 0 && at < 1000, "byte {at} of {which}");
                    headers += 1;
                    continue;
                }
                let (words, lost) = read(&bytes);
                for page in 0..PAGES {
                    let is_right = words.get(&page) == truth.get(&page);
                    assert!(is_right || lost.contains(&page), "byte {at} of {which}: page {page}");
                    assert!(!(lost.contains(&page) && words.contains_key(&page)));
                }
                few += u32::from(lost.len() < PAGES as usize / 2);
            }
        }
        assert!(few > 50 && headers > 0, "{few} {headers}");
    }

    #[test]
    fn an_end_that_is_missing_costs_the_pages_that_are_not_found() {
        let (files, truth) = chain();
        // Without a part that says which pages there are, those of older saves are not taken.
        let mut cut = files.clone();
        let len = cut[0].len() - 100;
        cut[0].truncate(len);
        let (words, lost) = salvaged(&cut);
        let in_newest = (1..PAGES).filter(|page| page % 9 == 1);
        assert!(in_newest.clone().all(|page| words.get(&page) == truth.get(&page) && !lost.contains(&page)));
        assert_eq!(lost.len() as u64, PAGES - in_newest.count() as u64);
        // A chain whose full save is missing has its own pages.
        let (words, lost) = salvaged(&files[..1]);
        assert!(words.iter().all(|(page, word)| truth.get(page) == Some(word)) && lost.len() > 10_000);
        // So has one with a file of another chain in it.
        let other = [files[0].clone(), files[2].clone()];
        assert_eq!(salvaged(&other), (words, lost));
        assert!(salvage(&[vec![0u8; 5000]], PlainOutput::new(Vec::new())).is_err());
        // A file that claims a large disk, and has no index.
        let header = Header::new(1 << 45, [1; 16]).encode();
        let refused = salvage(&[header], PlainOutput::new(Vec::new()));
        assert!(matches!(refused, Err(SalvageError::Lost)));
    }

    /// Places that look like blocks cost bounded work.
    #[test]
    fn a_file_full_of_beginnings_of_blocks_is_given_up() {
        let (files, _) = chain();
        let mut hostile = files[2].clone();
        hostile.truncate(header_of(&hostile).unwrap().1 as usize);
        let mut frame = b"PGBK".to_vec();
        frame.extend((200u32 << 10).to_le_bytes());
        hostile.extend(frame.repeat(100_000));
        let (words, lost) = salvaged(&[hostile]);
        assert!(words.is_empty() && lost.len() as u64 == PAGES);
    }
}
