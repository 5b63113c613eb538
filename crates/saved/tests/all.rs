//! The format against a slow twin that parses whole files in memory, and damaged files of all kinds.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_saved::{
    CodecRecord, Ends, HEAD_LEN, Head, Header, Outline, PageForm, Parent, PlainOutput, Reader, SavedError,
    ThreadedOutput, Totals, Writer,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek, SeekFrom};

/// A page with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Compressed(u8, Vec<u8>),
    Raw(Box<[u8; 4096]>),
    SameFilled(u64),
    Lost,
}

impl Form {
    fn of(form: PageForm<'_>) -> Self {
        match form {
            PageForm::Compressed { codec, bytes } => Form::Compressed(codec, bytes.to_vec()),
            PageForm::Raw(page) => Form::Raw(Box::new(*page)),
            PageForm::SameFilled(word) => Form::SameFilled(word),
            PageForm::Lost => Form::Lost,
        }
    }

    fn as_form(&self) -> PageForm<'_> {
        match self {
            Form::Compressed(codec, bytes) => PageForm::Compressed { codec: *codec, bytes },
            Form::Raw(page) => PageForm::Raw(page),
            Form::SameFilled(word) => PageForm::SameFilled(*word),
            Form::Lost => PageForm::Lost,
        }
    }
}

type Pages = BTreeMap<u64, Form>;

fn header() -> Header {
    let zstd = CodecRecord {
        name: "zstd".into(),
        level: Some(-3),
        window_bits: None,
        dictionary: Some(b"a dictionary".to_vec()),
    };
    let codecs = vec![CodecRecord { name: "lz4".into(), ..CodecRecord::default() }, zstd];
    Header { len_bytes: 1 << 40, codecs, id: *b"0123456789abcdef", saved_unix_s: 1_700_000_000, parent: None }
}

fn write<'a>(pages: impl IntoIterator<Item = (&'a u64, &'a Form)>) -> (Totals, Vec<u8>) {
    let mut writer = Writer::new(PlainOutput::new(Vec::new()), &header()).unwrap();
    for (page, form) in pages {
        writer.add(*page, form.as_form()).unwrap();
    }
    let (totals, output) = writer.finish().unwrap();
    (totals, output.into_inner())
}

fn read(file: &[u8]) -> Result<(Pages, Totals), SavedError> {
    let mut reader = Reader::with_digest(file)?;
    assert_eq!(reader.header(), &header());
    let mut pages = Pages::new();
    while let Some(block) = reader.next_block()? {
        for (page, form) in block.pages() {
            pages.insert(page, Form::of(form));
        }
    }
    Ok((pages, reader.finish()?))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The slow twin: follows the index of a file that is as it should be, by the description of the format.
fn twin(file: &[u8]) -> Pages {
    let trailer = &file[file.len() - 128..];
    assert_eq!(number(&trailer[56..64]), file.len() as u64);
    assert_eq!(trailer[64..96], Sha256::digest(&file[..file.len() - 128])[..]);
    let frame = |offset: u64| {
        let frame = &file[offset as usize..];
        let len = number(&frame[4..8]) as usize;
        let checked = [&frame[..12], &frame[16..len]].concat();
        assert_eq!(number(&frame[12..16]), u64::from(crc32c_of(&checked)));
        (&frame[..4], number(&frame[8..12]) as usize, &frame[24..len])
    };
    let mut pages = Pages::new();
    let (magic, leaves, root) = frame(number(&trailer[8..16]));
    assert_eq!(magic, b"PGRT");
    for leaf in root.chunks(16).take(leaves) {
        let (magic, runs, body) = frame(number(&leaf[8..]));
        assert_eq!(magic, b"PGIX");
        assert_eq!(number(&leaf[..8]), number(&body[..5]));
        for run in body.chunks(16).take(runs) {
            let (first, count) = (number(&run[..5]), number(&run[5..7]) + 1);
            let (offset, entry) = (number(&run[8..14]), number(&run[14..16]));
            let (magic, entries, body) = frame(offset);
            assert_eq!(magic, b"PGBK");
            for at in 0..count {
                let of = |at: usize| number(&body[at * 8..at * 8 + 8]);
                let kind = |entry: u64| entry >> 52 & 0xf;
                let len = |entry| if kind(entry) == 3 { 0 } else { (entry >> 40 & 0xfff) as usize + 1 };
                let index = (entry + at) as usize;
                let start = entries * 8 + (0..index).map(|before| len(of(before))).sum::<usize>();
                let bytes = &body[start..start + len(of(index))];
                assert_eq!(of(index) & 0xff_ffff_ffff, first + at);
                let form = match kind(of(index)) {
                    0 => Form::Compressed((of(index) >> 56) as u8, bytes.to_vec()),
                    1 => Form::Raw(Box::new(bytes.try_into().unwrap())),
                    2 => Form::SameFilled(number(bytes)),
                    _ => Form::Lost,
                };
                assert_eq!(pages.insert(first + at, form), None);
            }
        }
    }
    pages
}

/// CRC-32C, bit by bit.
fn crc32c_of(bytes: &[u8]) -> u32 {
    let step = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

fn form() -> impl Strategy<Value = Form> {
    let bytes = |len| proptest::collection::vec(any::<u8>(), len);
    prop_oneof![
        4 => (0..2u8, (1..4096usize).prop_flat_map(bytes)).prop_map(|(codec, b)| Form::Compressed(codec, b)),
        1 => any::<u8>().prop_map(|byte| Form::Raw(Box::new([byte; 4096]))),
        2 => any::<u64>().prop_map(Form::SameFilled),
        1 => Just(Form::Lost),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Pages in any order are read as they were written, by both readers.
    #[test]
    fn pages_round_trip(
        pages in proptest::collection::btree_map(prop_oneof![0..300u64, 0..(1u64 << 28)], form(), 0..200),
        order in any::<u64>(),
    ) {
        let mut shuffled: Vec<_> = pages.iter().collect();
        shuffled.sort_by_key(|(page, _)| (*page ^ order).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (order % 64));
        let (totals, file) = write(shuffled);
        prop_assert_eq!(&twin(&file), &pages);
        let (read, read_totals) = read(&file).unwrap();
        prop_assert_eq!(&read, &pages);
        prop_assert_eq!(read_totals, totals);
        prop_assert_eq!(totals.pages, pages.len() as u64);
        let outline = Outline::read(Cursor::new(&file)).unwrap();
        prop_assert_eq!((outline.header, outline.totals), (header(), totals));
    }

    #[test]
    fn any_bytes_are_an_error_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(read(&bytes).is_err());
        prop_assert!(Outline::read(Cursor::new(&bytes)).is_err());
    }
}

/// A small file with all parts.
fn small() -> Vec<u8> {
    let pages = [
        (1, Form::Compressed(0, vec![7; 30])),
        (2, Form::Compressed(1, vec![9; 11])),
        (5, Form::SameFilled(0xabab)),
        (6, Form::Lost),
    ];
    write(pages.iter().map(|(page, form)| (page, form))).1
}

#[test]
fn a_file_that_was_cut_anywhere_is_refused_with_the_place() {
    let file = small();
    for len in 0..file.len() {
        match read(&file[..len]).unwrap_err() {
            SavedError::Truncated { offset } => assert_eq!(offset, len as u64),
            other => panic!("{len}: {other}"),
        }
        match Outline::read(Cursor::new(&file[..len])).unwrap_err() {
            SavedError::Truncated { offset } => assert!(offset <= len as u64),
            other => panic!("{len}: {other}"),
        }
    }
    let longer = [&file[..], b"x"].concat();
    let error = read(&longer).unwrap_err();
    assert!(matches!(error, SavedError::Damaged { offset, .. } if offset == file.len() as u64), "{error}");
}

#[test]
fn every_flipped_bit_is_found_without_the_digest() {
    let file = small();
    let all = |file: &[u8]| Reader::open(file).and_then(Reader::finish);
    all(&file).unwrap();
    for bit in 0..file.len() * 8 {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(all(&damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn newer_versions_and_unknown_features_are_named() {
    let mut file = small();
    file[8] = 2;
    assert!(matches!(read(&file).unwrap_err(), SavedError::Newer { version: 2 }));
    file[8] = 1;
    file[16] = 0b110;
    assert!(matches!(read(&file).unwrap_err(), SavedError::Features { bits: 0b110 }));
    // A feature that a reader may ignore changes the checksum alone.
    file[16] = 0;
    file[24] = 1;
    let mut input = &file[..HEAD_LEN];
    let head = Head::read::<SavedError>(&mut |bytes| {
        input.read_exact(bytes).map_err(|source| SavedError::Read { offset: 0, source })
    });
    assert_eq!(head.unwrap().len_bytes(), 1 << 40);
    assert!(matches!(read(b"not a saved disk, but a text that is as long as the head of one has to be, which is ninety-six bytes").unwrap_err(), SavedError::NotSaved));
}

/// An incremental save names its parent in the fixed part of its header, which is verified as the rest.
#[test]
fn an_incremental_save_names_its_parent() {
    let parent = Parent { id: [3; 16], digest: [4; 32], depth: 31, name: "a name.saved".into() };
    let header = Header { parent: Some(parent.clone()), ..header() };
    let write = |header: &Header| {
        let mut writer = Writer::new(PlainOutput::new(Vec::new()), header).unwrap();
        writer.add(7, PageForm::SameFilled(0)).unwrap();
        let (totals, output) = writer.finish().unwrap();
        (totals, output.into_inner())
    };
    let (totals, file) = write(&header);
    let mut reader = Reader::with_digest(&file[..]).unwrap();
    assert_eq!(reader.header(), &header);
    assert_eq!(reader.next_block().unwrap().unwrap().pages().next(), Some((7, PageForm::SameFilled(0))));
    assert_eq!(reader.finish().unwrap(), totals);
    let ends = Ends::read(Cursor::new(&file)).unwrap();
    assert_eq!((ends.head.parent(), ends.head.depth(), ends.totals), (Some(&parent), 31, totals));
    assert_eq!(Outline::read(Cursor::new(&file)).unwrap().header, header);
    assert!(parent.is([3; 16], 30, [4; 32]));
    assert!(!parent.is([2; 16], 30, [4; 32]) && !parent.is([3; 16], 31, [4; 32]));
    assert!(!parent.is([3; 16], 30, [5; 32]));
    // Each bit of it is verified.
    for bit in 8 * 96..8 * 392 {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Reader::open(&damaged[..]).is_err(), "{bit}");
    }
    // A name is no path, and a chain is bounded.
    let names = ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"];
    let parents = names.map(|name| Parent { name: name.into(), ..parent.clone() });
    let depths = [0, 32, u32::MAX].map(|depth| Parent { depth, ..parent.clone() });
    for bad in parents.into_iter().chain(depths) {
        let (_, file) = write(&Header { parent: Some(bad.clone()), ..header.clone() });
        assert!(matches!(Reader::open(&file[..]), Err(SavedError::Damaged { .. })), "{bad:?}");
        assert!(Ends::read(Cursor::new(&file)).is_err());
    }
    for len in 0..392 {
        assert!(matches!(Ends::read(Cursor::new(&file[..len])), Err(SavedError::Truncated { .. })));
    }
}

/// The frame at `offset` with another body, and a checksum that fits.
fn reseal(file: &mut [u8], offset: usize) {
    let len = number(&file[offset + 4..offset + 8]) as usize;
    let checked = [&file[offset..offset + 12], &file[offset + 16..offset + len]].concat();
    file[offset + 12..offset + 16].copy_from_slice(&crc32c_of(&checked).to_le_bytes());
}

#[test]
fn a_forged_file_is_refused_before_it_costs_work_or_memory() {
    let file = small();
    let block = number(&file[12..16]) as usize;
    assert_eq!(&file[block..block + 4], b"PGBK");
    let leaf = block + number(&file[block + 4..block + 8]) as usize;
    assert_eq!(&file[leaf..leaf + 4], b"PGIX");
    let damaged = |at: usize, byte: u8, frame: usize, what: &str| {
        let mut forged = file.clone();
        forged[at] = byte;
        reseal(&mut forged, frame);
        let error = read(&forged).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    // Entries: a page behind the end, an unknown kind, a codec without a record, another length.
    damaged(block + 24 + 4, 0xff, block, "behind the end");
    damaged(block + 24 + 6, 0x0f << 4, block, "an entry");
    damaged(block + 24 + 7, 9, block, "codec");
    damaged(block + 24 + 5, 60, block, "contradict");
    // A count of entries that the block has no room for, and a frame that is longer than frames are.
    damaged(block + 9, 1, block, "longer than the block");
    let mut forged = file.clone();
    forged[block + 7] = 0x7f;
    assert!(read(&forged).unwrap_err().to_string().contains("length of a block"));
    // A run of many more pages than there are, and one in another order.
    damaged(leaf + 24 + 6, 0x10, leaf, "more pages than the blocks");
    damaged(leaf + 24, 200, leaf, "not in order");
    damaged(leaf + 24 + 8, 1, leaf, "does not fit the blocks");
}

/// Every byte of every frame with another value, and a checksum that fits: the result is an error, or pages that the disk
/// has.
#[test]
fn no_forged_byte_of_a_frame_panics_or_leads_beyond_the_disk() {
    let file = small();
    let mut frame = number(&file[12..16]) as usize;
    let mut forged_bytes = 0;
    while file[frame..].starts_with(b"PG") {
        let len = number(&file[frame + 4..frame + 8]) as usize;
        for at in frame..frame + len {
            for change in [1, 0x0f, 0x80, 0xff] {
                let mut forged = file.clone();
                forged[at] ^= change;
                if number(&forged[frame + 4..frame + 8]) as usize == len {
                    reseal(&mut forged, frame);
                }
                if let Ok((pages, _)) = read_without_digest(&forged) {
                    assert!(pages.keys().all(|page| *page < header().page_count()));
                }
                forged_bytes += 1;
            }
        }
        frame += len;
    }
    assert!(forged_bytes > 600, "{forged_bytes}");
}

fn read_without_digest(file: &[u8]) -> Result<(Pages, Totals), SavedError> {
    let mut reader = Reader::open(file)?;
    let mut pages = Pages::new();
    while let Some(block) = reader.next_block()? {
        pages.extend(block.pages().map(|(page, form)| (page, Form::of(form))));
    }
    Ok((pages, reader.finish()?))
}

/// A page twice in the blocks is not hidden by an index that has it once.
#[test]
fn a_page_that_is_there_twice_is_found() {
    let forms = [(3, Form::SameFilled(1)), (3, Form::SameFilled(2))];
    let file = write(forms.iter().map(|(page, form)| (page, form))).1;
    assert!(read(&file).is_err());
}

#[test]
fn threads_write_the_same_bytes_and_report_errors() {
    let pages: Pages =
        (0..2000).map(|page| (page, Form::Compressed(0, vec![page as u8; 700 + page as usize]))).collect();
    let (totals, plain) = write(&pages);
    let mut file = tempfile();
    let mut writer =
        Writer::new(ThreadedOutput::start(file.try_clone().unwrap()).unwrap(), &header()).unwrap();
    for (page, form) in &pages {
        writer.add(*page, form.as_form()).unwrap();
    }
    assert_eq!(writer.finish().unwrap().0, totals);
    let mut threaded = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut threaded).unwrap();
    assert!(threaded == plain);
    // A full medium ends the save with its error.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut writer = Writer::new(ThreadedOutput::start(full).unwrap(), &header()).unwrap();
    let added = pages.iter().try_for_each(|(page, form)| writer.add(*page, form.as_form()));
    let error = added.and_then(|()| writer.finish().map(drop)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28));
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("pagefold-saved-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
    std::fs::remove_file(path).unwrap();
    file.unwrap()
}

#[test]
fn the_overhead_is_small() {
    let in_order: Pages = (0..5000).map(|page| (page, Form::Compressed(0, vec![1; 1000]))).collect();
    let (totals, file) = write(&in_order);
    let overhead = (file.len() as u64 - totals.payload_bytes) as f64 / 5000.0;
    assert!(overhead < 9.0, "{overhead} bytes a page in order");
    let mut shuffled: Vec<_> = in_order.iter().collect();
    shuffled.sort_by_key(|(page, _)| page.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (totals, file) = write(shuffled);
    let overhead = (file.len() as u64 - totals.payload_bytes) as f64 / 5000.0;
    assert!(overhead < 26.0, "{overhead} bytes a page in a random order");
}
