//! Measures the speed of cluster decoders, in MB/s of output, on pieces of the given files.
//!
//! `cluster_speed FILE...` cuts the files into pieces of 128 KiB, which compress to clusters of about 64 KiB. It
//! decodes them whole, in place, and in a range that skips nothing, half, or all but a page.

#![allow(clippy::unwrap_used, reason = "a measurement that fails has no result")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "calls of encoders with live buffers")]

#[path = "../tests/support/cluster/mod.rs"]
mod cluster_kit;

use cluster_kit::{PieceInput, Sample};
use pagefold_codec::cluster::{Decoder, Format, Want, decode_lz4_in_place, in_place_margin, ring_bytes};
use std::time::{Duration, Instant};

const PIECE: usize = 128 << 10;
const MEASURE_MIN: Duration = Duration::from_millis(700);

fn main() {
    let data: Vec<u8> = std::env::args().skip(1).flat_map(|file| std::fs::read(file).unwrap()).collect();
    let pieces: Vec<&[u8]> = data.chunks_exact(PIECE).take(64).collect();
    type Encode = fn(&[u8]) -> Vec<u8>;
    let kinds: [(&str, Format, Encode); 6] = [
        ("lz4", Format::Lz4 { window_bytes: 65535 }, cluster_kit::lz4_fast),
        ("lz4hc", Format::Lz4 { window_bytes: 65535 }, |plain| cluster_kit::lz4_high(plain, 9)),
        ("lz4 16K", Format::Lz4 { window_bytes: 16383 }, |plain| {
            cluster_kit::lz4_blocks::encode(plain, 16383)
        }),
        ("deflate", Format::Deflate, |plain| cluster_kit::deflate(plain, 6)),
        ("zstd", Format::Zstd { max_window_bytes: 1 << 20 }, |p| cluster_kit::zstd(p, 3, 19, true, false)),
        ("microlzma", Format::MicroLzma { dict_bytes: 1 << 18 }, |plain| {
            cluster_kit::microlzma(plain, 6, 1 << 18, (3, 0, 2))
        }),
    ];
    println!("{} pieces; MB/s of decoded output", pieces.len());
    println!("format     ratio  whole  prefix  in place  range 0  range 1/2  range page");
    for (label, format, encode) in kinds {
        let samples: Vec<Sample> = pieces
            .iter()
            .map(|plain| Sample { label: label.into(), format, stream: encode(plain), plain: plain.to_vec() })
            .collect();
        let stored: usize = samples.iter().map(|sample| sample.stream.len()).sum();
        let mut decoder = Decoder::new(format).unwrap();
        let mut out = vec![0; PIECE];
        let whole = speed(&samples, |s| decoder.decode(&s.stream, &mut out, Want::All).unwrap());
        let prefix = speed(&samples, |s| decoder.decode(&s.stream, &mut out, Want::Prefix).unwrap());
        let in_place = match format {
            Format::Lz4 { .. } => in_place(&samples),
            _ => 0.0,
        };
        let mut piece = vec![0; 64 << 10];
        let mut ring = vec![0; ring_bytes(format)];
        let mut range = |skip: usize| {
            speed(&samples, |s| {
                let mut input = PieceInput::new(&s.stream, &[64 << 10]);
                let dst = &mut out[skip..];
                decoder.decode_range(&mut input, &mut piece, &mut ring, skip as u64, dst, Want::All).unwrap();
            })
        };
        println!(
            "{label:<10} {:>5.2} {whole:>6.0} {prefix:>7.0} {in_place:>9.0} {:>8.0} {:>10.0} {:>11.0}",
            (samples.len() * PIECE) as f64 / stored as f64,
            range(0),
            range(PIECE / 2),
            range(PIECE - 4096),
        );
    }
}

fn in_place(samples: &[Sample]) -> f64 {
    let work_len = samples.iter().map(|s| PIECE + in_place_margin(s.stream.len())).max().unwrap();
    let mut work = vec![0; work_len];
    speed(samples, |s| {
        let at = work_len - s.stream.len();
        work[at..].copy_from_slice(&s.stream);
        decode_lz4_in_place(&mut work, s.stream.len(), PIECE).unwrap();
    })
}

/// Returns the MB/s of the fastest of several rounds over all samples.
fn speed(samples: &[Sample], mut decode: impl FnMut(&Sample)) -> f64 {
    let (begin, mut best) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < MEASURE_MIN {
        let round = Instant::now();
        samples.iter().for_each(&mut decode);
        best = best.min(round.elapsed());
    }
    (samples.len() * PIECE) as f64 / best.as_secs_f64() / 1e6
}
