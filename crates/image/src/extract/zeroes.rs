//! Finds long runs of zeroes, which extraction skips: a new file reads as zeroes wherever nothing was written.
//!
//! Image builders store the holes of a file as compressed zeroes. Without this, an image of a few megabytes that holds
//! a sparse disk of many gigabytes would take all of these gigabytes after extraction.

use pagefold_codec::same_filled;
use pagefold_page::{PAGE_SIZE, Page};
use std::ops::Range;

/// Shorter runs are written, because each hole costs the target's file system an extent, and a later write into it
/// another.
const MIN_HOLE_BYTES: usize = 64 << 10;

/// Returns the ranges of `bytes` to write, ascending; `at` is the position of `bytes` in the file. Skipped ranges are
/// runs of at least [`MIN_HOLE_BYTES`] zeroes, aligned to pages of the file except at the ends of `bytes`.
pub(super) fn data(at: u64, bytes: &[u8]) -> Vec<Range<usize>> {
    let mut data: Vec<Range<usize>> = Vec::new();
    // All bytes from this one to the current chunk are zeroes.
    let mut zeroes_from = 0;
    for chunk in chunks(at, bytes) {
        if is_zero(&bytes[chunk.clone()]) {
            continue;
        }
        match data.last_mut() {
            Some(last) if chunk.start - zeroes_from < MIN_HOLE_BYTES => last.end = chunk.end,
            None if chunk.start < MIN_HOLE_BYTES => data.push(0..chunk.end),
            _ => data.push(chunk.clone()),
        }
        zeroes_from = chunk.end;
    }
    match data.last_mut() {
        Some(last) if bytes.len() - zeroes_from < MIN_HOLE_BYTES => last.end = bytes.len(),
        None if bytes.len() < MIN_HOLE_BYTES && !bytes.is_empty() => data.push(0..bytes.len()),
        _ => {}
    }
    data
}

/// Cuts the bytes at the page boundaries of the file.
fn chunks(at: u64, bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let first = PAGE_SIZE - (at % PAGE_SIZE as u64) as usize;
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = if start == 0 { first } else { start + PAGE_SIZE };
        let chunk = start..end.min(bytes.len());
        start = chunk.end;
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn is_zero(chunk: &[u8]) -> bool {
    match <&Page>::try_from(chunk) {
        Ok(page) => same_filled(page) == Some(0),
        Err(_) => chunk.iter().all(|&byte| byte == 0),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of one range is what is meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_runs_of_zeroes_are_skipped_and_short_ones_written() {
        let mut bytes = vec![0; 1 << 20];
        assert!(data(0, &bytes).is_empty());
        assert_eq!(data(0, &bytes[..100]), [0..100]);
        assert!(data(0, &[]).is_empty());
        bytes[300_000] = 1;
        assert_eq!(data(0, &bytes), [299_008..303_104]);
        bytes[303_200 + MIN_HOLE_BYTES - 8192] = 1;
        assert_eq!(data(0, &bytes), [299_008..303_104 + MIN_HOLE_BYTES - 4096]);
        // Chunks are aligned to the pages of the file, not of the buffer.
        assert_eq!(data(4095, &bytes)[0].start, 300_000 - (300_000 + 4095) % 4096);
        bytes[..4096].fill(1);
        assert_eq!(data(0, &bytes)[0], 0..4096);
    }

    proptest! {
        #[test]
        fn skipped_ranges_are_zero_and_long(
            at in 0u64..10_000,
            spots in prop::collection::vec((0usize..400_000, 1usize..3000), 0..6),
        ) {
            let mut bytes = vec![0u8; 400_000];
            for (start, len) in spots {
                let end = (start + len).min(bytes.len());
                bytes[start..end].fill(7);
            }
            let data = data(at, &bytes);
            let mut data_end = 0;
            for range in &data {
                prop_assert!(range.start < range.end && range.end <= bytes.len());
                prop_assert!(bytes[data_end..range.start].iter().all(|&byte| byte == 0));
                prop_assert!(range.start == data_end && data_end == 0 || range.start - data_end >= MIN_HOLE_BYTES);
                data_end = range.end;
            }
            prop_assert!(bytes[data_end..].iter().all(|&byte| byte == 0));
            prop_assert!(bytes.len() == data_end || bytes.len() - data_end >= MIN_HOLE_BYTES);
        }
    }
}
