//! Cluster decoders allocate no more than `contiguous_bytes` and `windowed_bytes` promise, and encoders no more than
//! `heap_bytes`.
//!
//! This is a separate program with one test, because it measures the heap of its process: no other test may run in it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "calls of encoders with live buffers")]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod support;

use crate::support::cluster::{PieceInput, compressible, samples};
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use pagefold_codec::cluster::{Decoder, Want, ring_bytes};

/// `struct mallinfo2` of glibc's malloc.h.
#[repr(C)]
struct MallInfo {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

unsafe extern "C" {
    fn mallinfo2() -> MallInfo;
}

/// Returns the bytes of the heap that are in use, by Rust and C.
fn heap_bytes() -> usize {
    let info = unsafe { mallinfo2() };
    info.uordblks + info.hblkhd
}

#[test]
fn decoders_and_encoders_allocate_no_more_than_their_bounds() {
    decoders_allocate_no_more_than_their_bounds();
    encoders_allocate_no_more_than_their_bounds();
}

fn decoders_allocate_no_more_than_their_bounds() {
    const LEN: usize = 2 << 20;
    // The allocator's overhead: a few words for each block, a page for each large one.
    const OVERHEAD_MAX: usize = 16 << 10;
    for sample in samples(&compressible(21, LEN)) {
        let mut out = vec![0; LEN];
        let (mut piece, mut ring) = (vec![0; 4096], vec![0; ring_bytes(sample.format)]);
        let before = heap_bytes();
        let mut decoder = Decoder::new(sample.format).unwrap();
        decoder.decode(&sample.stream, &mut out, Want::All).unwrap();
        let contiguous = heap_bytes() - before;
        let bound = Decoder::contiguous_bytes(sample.format);
        assert!(contiguous <= bound + OVERHEAD_MAX, "{}: {contiguous} of {bound}", sample.label);

        decoder.decode(&sample.stream, &mut out[..LEN / 2], Want::Prefix).unwrap();
        let mut input = PieceInput::new(&sample.stream, &[4096]);
        let dst = &mut out[..LEN / 2];
        decoder.decode_range(&mut input, &mut piece, &mut ring, LEN as u64 / 2, dst, Want::All).unwrap();
        assert!(*dst == sample.plain[LEN / 2..]);
        let windowed = heap_bytes() - before;
        let bound = Decoder::windowed_bytes(sample.format);
        assert!(windowed <= bound + OVERHEAD_MAX, "{}: {windowed} of {bound}", sample.label);
        // The bounds are also near the use, as callers charge them to a budget. One frame needs a window far
        // below its format's.
        let near = bound <= windowed * 2 + OVERHEAD_MAX * 2;
        assert!(near || sample.label.starts_with("zstd 1 "), "{}: {windowed} of {bound}", sample.label);
        println!("{}: {contiguous} whole, {windowed} in a range, of {bound}", sample.label);
        drop(decoder);
        assert!(heap_bytes() <= before + OVERHEAD_MAX, "{}", sample.label);
    }
}

/// Returns the configurations of encoders whose memory differs.
fn encoder_configs() -> Vec<EncoderConfig> {
    let mut configs = Vec::new();
    for window_bytes in [65535, 16383] {
        configs.push(EncoderConfig::Lz4 { window_bytes });
        configs.extend([1, 9, 12].map(|level| EncoderConfig::Lz4Hc { window_bytes, level }));
    }
    for (dict_bytes, level) in [(4096, 0), (1 << 18, 6), (1 << 20, 9)] {
        configs.push(EncoderConfig::MicroLzma { dict_bytes, level, extreme: false });
    }
    configs.extend([1, 2, 9, 10, 12].map(|level| EncoderConfig::Deflate { level }));
    for (max_window_bytes, level) in [(1 << 15, 1), (1 << 19, 3), (1 << 19, 12), (1 << 20, 19)] {
        configs.push(EncoderConfig::Zstd { max_window_bytes, level });
    }
    configs
}

fn encoders_allocate_no_more_than_their_bounds() {
    const OVERHEAD_MAX: usize = 24 << 10;
    let src = compressible(22, 2 << 20);
    let mut dst = vec![0; 1 << 20];
    for config in encoder_configs() {
        let before = heap_bytes();
        let mut encoder = Encoder::new(&config).unwrap();
        for cluster in [4096, 1 << 20, 512] {
            encoder.fit(&src, &mut dst[..cluster]).unwrap();
            encoder.whole(&src[..cluster], &mut dst).unwrap();
        }
        let used = heap_bytes() - before;
        let bound = Encoder::heap_bytes(&config);
        println!("{config:?}: {used} of {bound}");
        assert!(used <= bound + OVERHEAD_MAX, "{config:?}: {used} of {bound}");
        // The bounds are near the use, as callers charge them to a budget.
        assert!(bound <= 2 * used + 4 * OVERHEAD_MAX, "{config:?}: {used} of {bound}");
        drop(encoder);
        assert!(heap_bytes() <= before + OVERHEAD_MAX, "{config:?}");
    }
}
