//! The windows that an image records: a decoder that refuses longer distances decodes all clusters.

use super::{build_at, open_checked, options};
use pagefold_codec::cluster::{Decoder, Format, Input, Want, ring_bytes};
use pagefold_image::read::Mapping;
use pagefold_image_build::{Dedupe, Metadata, Options, Tree};
use std::convert::Infallible;
use std::fs;

/// Bytes that do not compress, and repeat after `period`.
fn periodic(period: u64, len: usize, seed: u64) -> Vec<u8> {
    let noise = |i: u64| {
        let z = (i + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56
    };
    (0..len as u64).map(|i| noise(i % period) as u8).collect()
}

/// A stream in memory.
struct Whole<'s>(&'s [u8]);

impl Input for Whole<'_> {
    type Error = Infallible;

    fn read(&mut self, piece: &mut [u8]) -> Result<usize, Infallible> {
        let len = piece.len().min(self.0.len());
        let (now, later) = self.0.split_at(len);
        piece[..len].copy_from_slice(now);
        self.0 = later;
        Ok(len)
    }
}

/// Whether a cluster decodes to `wanted` if no match reaches back further than `window_bytes`.
fn decodes(stream: &[u8], wanted: &[u8], window_bytes: u32) -> bool {
    let format = Format::Lz4 { window_bytes };
    let (mut piece, mut ring, mut found) =
        (vec![0; 4096], vec![0; ring_bytes(format)], vec![0; wanted.len()]);
    let mut decoder = Decoder::new(format).unwrap();
    let decoded = decoder.decode_range(&mut Whole(stream), &mut piece, &mut ring, 0, &mut found, Want::All);
    decoded.is_ok() && found == wanted
}

#[test]
fn lz4_reaches_back_no_further_than_the_image_records() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let mut tree = Tree::new(Metadata::default());
    let periods = [1000, 4000, 5000, 14_000, 17_000, 40_000, 55_000];
    let data: Vec<Vec<u8>> =
        (0..).zip(periods).map(|(seed, period)| periodic(period, 200_000, seed)).collect();
    for (period, data) in periods.iter().zip(&data) {
        tree.add_bytes(period.to_string().as_bytes(), data.clone()).unwrap();
    }
    for compression in ["lz4", "lz4hc:3", "lz4hc:9", "lz4hc:12"] {
        for window in [4095, 16_383, 65_535] {
            let what = format!("{compression}, a window of {window}");
            build_at(
                &path,
                &tree,
                // Extents decode whole clusters then.
                &Options {
                    lz4_window_bytes: window,
                    dedupe: Dedupe::Files,
                    ..options(compression, 65_536, false)
                },
            );
            let image = open_checked(&path, &what);
            assert_eq!(image.superblock().algorithms.lz4_window_bytes, window, "{what}");
            let bytes = fs::read(&path).unwrap();
            let (mut clusters, mut reach_far) = (0, 0);
            for (period, data) in periods.iter().zip(&data) {
                let node = image.find(format!("/{period}").as_bytes()).unwrap();
                for extent in node.extents().map(Result::unwrap) {
                    let Mapping::Compressed(cluster) = extent.mapping else { continue };
                    let start = cluster.at.offset as usize;
                    let stored = &bytes[start..start + cluster.len_bytes as usize];
                    let stream = &stored[stored.iter().position(|byte| *byte != 0).unwrap()..];
                    let wanted = &data[extent.start as usize..extent.end() as usize];
                    assert!(decodes(stream, wanted, window), "{what}: {period}, byte {}", extent.start);
                    clusters += 1;
                    reach_far += u32::from(!decodes(stream, wanted, window * 3 / 4));
                }
            }
            // Most of the window is used, so a decoder that checks nothing would not pass.
            assert!(clusters > 0 && reach_far > 0, "{what}: {reach_far} of {clusters} clusters");
        }
    }
}
