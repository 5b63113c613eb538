//! Indexes built from lists of extents, with structures that no test image has: second heads, logical clusters larger
//! than a block, long extents, all sizes of extent records.

use super::build::{Built, Piece, Spec, Tail, context, records, spec};
use super::{Slice, twin};
use pagefold_image::read::{Bytes, Cursor, Extent, IndexForm, Mapping, ZContext, ZMap};
use pagefold_image::{Address, ImageError};
use proptest::prelude::*;
use std::cell::Cell;

/// Compares the extents that an index was built from with those of the slow twin and those that lookups find.
fn check(built: &Built) -> Result<(), TestCaseError> {
    let Built { data, context, form, tail, size, extents } = built;
    prop_assert_eq!(&twin::all_extents(data, context, *form, *tail, *size), extents);
    let bytes = Slice(data);
    let map = ZMap::open(&bytes, context, *form, *tail, *size).unwrap();
    for extent in extents {
        let step = (extent.len_bytes / 32).max(257);
        let within = (extent.start..extent.end()).step_by(step as usize);
        for offset in within.chain([extent.end() - 1]) {
            let found = map.extent_at(&bytes, offset);
            prop_assert!(found.is_ok(), "byte {}: {:?}, wanted {:?}", offset, found, extent);
            prop_assert_eq!(found.unwrap(), *extent, "byte {}", offset);
        }
    }
    prop_assert!(map.extent_at(&bytes, *size).is_err());
    // Look up in ascending order, and then backwards.
    let mut cursor = Cursor::default();
    for extent in extents.iter().chain(extents.iter().rev().step_by(3)) {
        prop_assert_eq!(map.extent_near(&bytes, extent.start, &mut cursor).unwrap(), *extent);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn lookups_find_the_extents_that_the_index_was_built_from(spec in spec()) {
        check(&spec.build())?;
    }

    #[test]
    fn lookups_find_the_extents_that_the_records_were_built_from(spec in spec(), bits in 0..4_u8) {
        // Indexes of records have no inline extents.
        let tail = if matches!(spec.tail, Tail::Inline(_)) { Tail::None } else { spec.tail };
        check(&records(&Spec { tail, ..spec }, bits))?;
    }

    #[test]
    fn a_whole_file_fragment_is_one_extent(offset in 0..1_u64 << 62, size in 1..1_u64 << 62) {
        let data = [vec![0; 32], (offset | 1 << 63).to_le_bytes().to_vec()].concat();
        let extents = vec![Extent { start: 0, len_bytes: size, mapping: Mapping::Fragment { offset } }];
        let tail = Address::image(29);
        let context = context(12, true);
        check(&Built { data, context, form: IndexForm::Full, tail, size, extents })?;
    }
}

/// A compact index with 4 KiB blocks, clusters of many blocks, and no tail.
fn plain_spec(pieces: Vec<Piece>) -> Spec {
    Spec {
        form: IndexForm::Compact,
        block_bits: 12,
        lcluster_bits: 12,
        big: [true; 2],
        short: true,
        padded: true,
        interlaced: false,
        marker: true,
        offset: 96,
        algorithms: [0, 3],
        tail: Tail::None,
        pieces,
        end: 99,
    }
}

fn pieces(count: usize, gap: u64) -> Vec<Piece> {
    let piece = Piece { gap, within: 0, kind: 1, blocks: 3, block: 1000, partial: false };
    (0..count).map(|i| Piece { within: 37 * i as u32 + 1, ..piece }).collect()
}

/// Counts reads.
struct Counted<'a>(Slice<'a>, Cell<u64>);

impl Bytes for Counted<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        assert!(buf.len() <= 512);
        self.1.set(self.1.get() + 1);
        self.0.read_at(at, buf)
    }
}

#[test]
fn a_sequential_reader_needs_few_reads() {
    let forms = [IndexForm::Full, IndexForm::Compact];
    let entries = forms.map(|form| Spec { form, ..plain_spec(pieces(1000, 8)) }.build());
    let of_4 = records(&plain_spec(pieces(1000, 1)), 0);
    for built in entries.iter().chain([&of_4]) {
        let bytes = Counted(Slice(&built.data), Cell::new(0));
        let map = ZMap::open(&bytes, &built.context, built.form, built.tail, built.size).unwrap();
        let mut cursor = Cursor::default();
        for extent in &built.extents {
            assert_eq!(map.extent_near(&bytes, extent.start, &mut cursor).unwrap(), *extent);
        }
        let reads = bytes.1.get();
        assert!(reads < 1300, "{reads} reads for 1000 extents");
    }
}

/// The error of opening an index, or else of looking up byte `offset`.
fn fault(built: &Built, offset: u64) -> (Address, String) {
    let bytes = Slice(&built.data);
    let map = ZMap::open(&bytes, &built.context, built.form, built.tail, built.size);
    match map.and_then(|map| map.extent_at(&bytes, offset)) {
        Err(ImageError::Corrupt { at, what }) => (at, what.into_owned()),
        other => panic!("not refused as corrupt: {other:?}"),
    }
}

/// Builds an index of the full form at byte 96, so that entry `k` is at `112 + 8 * k`.
fn full(spec: Spec) -> Built {
    Spec { form: IndexForm::Full, ..spec }.build()
}

#[test]
fn contradictions_are_refused_with_their_address() {
    let good = full(plain_spec(pieces(10, 4)));
    let entry = |k: usize| 112 + 8 * k;
    let changed = |at: usize, bytes: &[u8]| {
        let mut built = good.clone();
        built.data[at..at + bytes.len()].copy_from_slice(bytes);
        built
    };
    let cases: [(&str, Built, u64, usize); 9] = [
        ("leads nowhere", changed(entry(2) + 4, &[0, 0]), 2 << 12, 2),
        ("leads nowhere", changed(entry(2) + 4, &[3, 0]), 2 << 12, 2),
        ("leads nowhere", changed(entry(0), &[2, 0, 0, 0, 1, 0]), 0, 0),
        ("point back", changed(entry(6) + 4, &[6, 0]), 6 << 12, 0),
        ("number of blocks", changed(entry(6) + 4, &[1, 8]), 4 << 12 | 0xfff, 6),
        ("number of blocks", changed(entry(5) + 4, &[0, 8]), 4 << 12 | 0xfff, 5),
        ("1 MiB", changed(entry(5) + 4, &[1, 9]), 4 << 12 | 0xfff, 4),
        ("outside of its logical cluster", changed(entry(4) + 2, &[0, 16]), 4 << 12, 4),
        ("outside of its logical cluster", changed(entry(0) + 2, &[1, 0]), 0, 0),
    ];
    for (i, (what, built, offset, k)) in cases.iter().enumerate() {
        let (at, message) = fault(built, *offset);
        assert!(message.contains(what) && message.contains("inode 42"), "case {i}: {message}");
        assert_eq!(at, Address::image(entry(*k) as u64), "case {i}: {message}");
    }
}

#[test]
fn extents_beyond_the_limits_of_the_image_are_refused() {
    let good = full(plain_spec(pieces(10, 4)));
    let with = |context: ZContext| Built { context, ..good.clone() };
    let small = with(ZContext { max_cluster_bytes: 8192, ..good.context });
    assert!(fault(&small, 0).1.contains("longer than the image's longest"));
    let unlisted = with(ZContext { algorithms: 0xe, ..good.context });
    assert!(fault(&unlisted, 0).1.contains("does not list"));
    let unknown = full(Spec { algorithms: [9, 0], ..plain_spec(pieces(1, 4)) });
    assert!(fault(&unknown, 0).1.contains("unknown"));
    let fragment = full(Spec { tail: Tail::Fragment(77), ..plain_spec(pieces(1, 4)) });
    let alone = Built { context: ZContext { fragments: false, ..fragment.context }, ..fragment };
    assert!(fault(&alone, 0).1.contains("no packed file"));
}

#[test]
fn extents_beyond_12_mib_are_refused() {
    let longest = (12 << 20) >> 12;
    let mut spec = plain_spec(pieces(1, longest));
    spec.end = 4095;
    let built = full(spec.clone());
    assert_eq!(built.size, 12 << 20);
    check(&built).unwrap();
    spec.pieces[0].gap += 1;
    assert!(fault(&full(spec.clone()), 0).1.contains("12 MiB"));
    // Fragments have no such limit.
    spec.tail = Tail::Fragment(5);
    spec.pieces[0].gap *= 3;
    check(&full(spec.clone())).unwrap();
    check(&spec.build()).unwrap();

    let mut plain = full(plain_spec(pieces(2, 1)));
    plain.data[112] = 0;
    assert!(fault(&plain, 0).1.contains("plain"));
}

#[test]
fn inline_extents_do_not_cross_blocks() {
    let mut built = full(Spec { tail: Tail::Inline(9), ..plain_spec(pieces(3, 2)) });
    check(&built).unwrap();
    let room = 4096 - (built.data.len() - 10);
    built.data[98..100].copy_from_slice(&(room as u16).to_le_bytes());
    assert!(ZMap::open(&Slice(&built.data), &built.context, built.form, built.tail, built.size).is_ok());
    built.data[98..100].copy_from_slice(&(room as u16 + 1).to_le_bytes());
    assert!(fault(&built, 0).1.contains("crosses a block"));
    built.data[98..100].fill(0);
    assert!(fault(&built, 0).1.contains("no bytes"));
}

#[test]
fn addresses_beyond_48_bits_of_blocks_are_refused() {
    let mut spec = plain_spec(pieces(2, 2));
    spec.pieces.iter_mut().for_each(|piece| piece.within = 1);
    let mut built = records(&spec, 2);
    let record = 112; // 104 up to a multiple of 16
    let last = (1_u64 << 60) - 12289;
    built.data[record + 4..record + 12].copy_from_slice(&last.to_le_bytes());
    let map = ZMap::open(&Slice(&built.data), &built.context, built.form, built.tail, built.size).unwrap();
    assert!(map.extent_at(&Slice(&built.data), 0).is_ok());
    built.data[record + 4..record + 12].copy_from_slice(&(last + 1).to_le_bytes());
    let (at, what) = fault(&built, 0);
    assert!(what.contains("beyond all addresses"), "{what}");
    assert_eq!(at, Address::image(record as u64));
}

#[test]
fn a_plain_inline_block_is_not_rotated() {
    // 498 entries end at a block's end, and a whole block follows.
    let mut spec = plain_spec(pieces(498, 1));
    (spec.interlaced, spec.tail, spec.end) = (true, Tail::Inline(4095), u32::MAX);
    spec.pieces.iter_mut().for_each(|piece| piece.within = 0);
    spec.pieces[497].kind = 0;
    let built = full(spec);
    assert_eq!(built.data.len(), 8192);
    assert_eq!(built.extents[497].mapping, Mapping::Plain(Address::image(4096)));
    check(&built).unwrap();
}

/// An endless index: a header without advice, one head, and non-head entries.
struct Endless {
    back: u16,
    reads: Cell<u64>,
}

impl Bytes for Endless {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        self.reads.set(self.reads.get() + 1);
        for (i, byte) in buf.iter_mut().enumerate() {
            let position = at.offset + i as u64;
            let entry = u64::from(self.back) << 32 | 2;
            *byte = match position {
                0..16 => 0,
                16 => 1,
                17..24 => 0,
                _ => (entry >> (8 * (position % 8))) as u8,
            };
        }
        Ok(())
    }
}

#[test]
fn lookups_in_endless_indexes_are_bounded() {
    for (back, offset) in [(1, 1 << 39), (1, 0), (2047, 1 << 39), (!0x800, 1 << 39)] {
        let bytes = Endless { back, reads: Cell::new(0) };
        let map =
            ZMap::open(&bytes, &context(12, true), IndexForm::Full, Address::image(0), 1 << 40).unwrap();
        assert!(matches!(map.extent_at(&bytes, offset), Err(ImageError::Corrupt { .. })));
        let reads = bytes.reads.get();
        assert!(reads < 3100, "{reads} reads");
    }
}
