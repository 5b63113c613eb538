//! A saved disk of any bytes: reading it ends, needs memory for one block, and returns only pages that the disk has. If it can
//! be read whole, its index finds the same pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_saved::{Lookup, Outline, PageForm, PlainOutput, ReadAt, Reader, Writer, salvage};
use std::collections::BTreeSet;
use std::io::{self, Cursor, ErrorKind};

/// A file in memory.
struct Bytes<'a>(&'a [u8]);

impl ReadAt for Bytes<'_> {
    fn fill_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        bytes.copy_from_slice(rest.get(..bytes.len()).ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

/// The pages that the index names, each of which is in the block that it names; `None` if a part cannot be read.
fn indexed(data: &[u8]) -> Option<BTreeSet<u64>> {
    let file = Bytes(data);
    let lookup = Lookup::open(&file).ok()?;
    let mut found = BTreeSet::new();
    for number in 0..lookup.leaf_count() {
        let leaf = lookup.read_leaf(&file, number).ok()?;
        // A run of a forged index may have 65536 pages.
        for page in leaf.pages().take(data.len()) {
            assert!(page < lookup.header().page_count() && found.insert(page));
            assert_eq!(lookup.leaf_of(page), Some(number));
            let place = leaf.find(page)?;
            let block = lookup.read_block(&file, place.offset).ok()?;
            let (other, _) = block.block().ok()?.pages().nth(place.entry as usize)?;
            (other == page).then_some(())?;
        }
    }
    Some(found)
}

fuzz_target!(|data: &[u8]| {
    let _ = Outline::read(Cursor::new(data));
    let indexed = indexed(data);
    // A salvaged saved disk is a whole one.
    let mut new = Vec::new();
    if Outline::read(Cursor::new(data)).is_ok_and(|outline| outline.header.page_count() < 1 << 12)
        && let Ok(salvaged) = salvage(&[Bytes(data)], PlainOutput::new(&mut new))
    {
        assert_eq!(Reader::with_digest(&new[..]).unwrap().finish().unwrap(), salvaged.totals);
    }
    let Ok(mut reader) = Reader::with_digest(data) else { return };
    let header = reader.header().clone();
    let mut pages = BTreeSet::new();
    let mut writer = Writer::new(PlainOutput::new(Vec::new()), &header).unwrap();
    while let Ok(Some(block)) = reader.next_block() {
        for (page, form) in block.pages() {
            assert!(page < header.page_count());
            if let PageForm::Compressed { codec, bytes } = form {
                assert!(usize::from(codec) < header.codecs.len() && (1..4096).contains(&bytes.len()));
            }
            // Pages that can be read can be written, and read again.
            if pages.insert(page) {
                writer.add(page, form).unwrap();
            }
        }
    }
    if reader.finish().is_ok() {
        assert_eq!(indexed.as_ref(), Some(&pages));
    }
    let (totals, output) = writer.finish().unwrap();
    assert_eq!(totals.pages, pages.len() as u64);
    let again = Reader::with_digest(&output.into_inner()[..]).unwrap().finish().unwrap();
    assert_eq!(again, totals);
});
