//! A saved disk of any bytes: reading it ends, needs memory for one block, and returns only pages that the disk has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_saved::{Outline, PageForm, PlainOutput, Reader, Writer};
use std::collections::BTreeSet;
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    let _ = Outline::read(Cursor::new(data));
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
    let (totals, output) = writer.finish().unwrap();
    assert_eq!(totals.pages, pages.len() as u64);
    let again = Reader::with_digest(&output.into_inner()[..]).unwrap().finish().unwrap();
    assert_eq!(again, totals);
});
