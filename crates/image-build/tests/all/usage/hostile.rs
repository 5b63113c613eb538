//! Images whose lengths lie: the report takes little memory and time, or is left out.

use super::usage_of;
use crate::support::features::memory;
use crate::support::handmade::{
    File, HUGE, REGULAR, image_of, make_compressed, put_chunks, unused, unused_after,
};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::usage::UsagePart;
use pagefold_image::walk::Limits;
use pagefold_image::{Image, Options, ReadAhead};
use std::sync::Arc;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn open(bytes: &[u8], memory_bytes: u64) -> Image {
    let options = Options { memory_bytes, read_ahead: ReadAhead::Off, ..Options::default() };
    Image::open(memory(bytes), options).unwrap()
}

/// Four files of impossible lengths, of which each claims all that is behind its first block.
fn image_of_lies() -> Vec<u8> {
    let large = |size| File { size, ..File::regular(b"short") };
    let files = vec![large(HUGE), large(i64::MAX as u64), large(HUGE - 1), large(1 << 40)];
    image_of(&NAMES.map(|name| (name, REGULAR)), files)
}

#[test]
fn impossible_lengths_are_cut_at_the_end_of_the_image() {
    let bytes = image_of_lies();
    let usage = usage_of(&open(&bytes, 64 << 20));
    assert_eq!(usage.total_bytes(), bytes.len() as u64);
    // The first file has all blocks behind the directory.
    assert_eq!(usage.part_bytes(UsagePart::Plain), 4 * 4096);
    assert_eq!(usage.largest[0].stored_bytes, 4 * 4096);
    assert_eq!(usage.saved_bytes, (3 + 2 + 1) * 4096);
}

#[test]
fn a_compressed_file_of_an_impossible_length_is_no_more_than_the_image() {
    let mut bytes = image_of_lies();
    make_compressed(&mut bytes, 7, 1);
    let image = open(&bytes, 64 << 20);
    let usage = TreeStats::of_image(&image, &Limits::default()).unwrap().usage.unwrap();
    assert_eq!(usage.total_bytes(), bytes.len() as u64);
}

/// A file of chunks of one block with a gap behind each, so that claims cannot be merged.
#[test]
fn without_memory_for_the_claims_the_report_is_left_out() {
    const CHUNKS: usize = 60_000;
    let array: Vec<u8> = (0..CHUNKS as u32).flat_map(|n| (1000 + 2 * n).to_le_bytes()).collect();
    let mut files = vec![File::hole(0o100_644, (CHUNKS * 4096) as u64)];
    files.extend((0..unused_after(array.len())).map(|_| unused()));
    let mut bytes = image_of(&[("f", REGULAR)], files);
    put_chunks(&mut bytes, 1, &array);
    let medium = MemoryBacking::new((1000 + 2 * CHUNKS) * 4096);
    medium.write_at(0, &bytes).unwrap();
    let medium: Arc<dyn Backing> = Arc::new(medium);
    let stats = |memory_bytes| {
        let options = Options { memory_bytes, read_ahead: ReadAhead::Off, ..Options::default() };
        let image = Image::open(medium.clone(), options).unwrap();
        let stats = TreeStats::of_image(&image, &Limits::default()).unwrap();
        assert_eq!(stats.findings.errors(), 0, "{:?}", stats.findings);
        assert_eq!(image.stats().budget.in_use_bytes, image.stats().cached_bytes, "charges are returned");
        assert_eq!(stats.mappings[1].count, CHUNKS as u64 + 1);
        stats
    };
    let usage = stats(64 << 20).usage.unwrap();
    assert_eq!(usage.part_bytes(UsagePart::Plain), CHUNKS as u64 * 4096);
    assert_eq!(usage.total_bytes(), medium.len_bytes());
    assert_eq!(stats(2 << 20).usage, None);
}
