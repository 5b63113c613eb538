//! Support for the tests of cluster decoders: data, encoders of each format, and a slow LZ4 decoder.

#![allow(clippy::undocumented_unsafe_blocks, reason = "calls of encoders with live buffers")]
#![allow(dead_code, reason = "each test uses a part")]

pub mod lz4_blocks;
pub mod lz4_slow;

use liblzma_sys as lzma;
use pagefold_codec::cluster::{Decoder, Format, Input, RangeError, Want, ring_bytes};

/// A stream of some format and the data that it decodes to.
#[derive(Clone)]
pub struct Sample {
    pub label: String,
    pub format: Format,
    pub stream: Vec<u8>,
    pub plain: Vec<u8>,
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Makes data that compresses: runs, text, repeats from near and far, and noise.
pub fn compressible(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed | 1 << 40);
    let mut data: Vec<u8> = Vec::with_capacity(len + 512);
    while data.len() < len {
        match random.below(8) {
            0 => data.extend(std::iter::repeat_n(random.next() as u8, 1 + random.below(400))),
            1 | 2 => data.extend((0..1 + random.below(60)).map(|_| random.next() as u8)),
            3 => data.extend(b"all the pages of the folded image "[..1 + random.below(34)].iter()),
            _ if data.is_empty() => data.push(7),
            kind => {
                let reach = if kind == 4 { 40 } else { 70_000 };
                let distance = 1 + random.below(data.len().min(reach));
                for _ in 0..4 + random.below(90) {
                    data.push(data[data.len() - distance]);
                }
            }
        }
    }
    data.truncate(len);
    data
}

pub fn lz4_fast(plain: &[u8]) -> Vec<u8> {
    let mut out = vec![0; plain.len() + plain.len() / 255 + 64];
    let len = unsafe {
        lz4_sys::LZ4_compress_default(
            plain.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            plain.len() as i32,
            out.len() as i32,
        )
    };
    assert!(len > 0);
    out.truncate(len as usize);
    out
}

pub fn lz4_high(plain: &[u8], level: i32) -> Vec<u8> {
    let mut out = vec![0; plain.len() + plain.len() / 255 + 64];
    let len = unsafe {
        lz4_sys::LZ4_compress_HC(
            plain.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            plain.len() as i32,
            out.len() as i32,
            level,
        )
    };
    assert!(len > 0);
    out.truncate(len as usize);
    out
}

/// Decodes with liblz4; `None` unless the stream decodes to `len` bytes.
pub fn lz4_library(stream: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; len];
    let decoded = unsafe {
        lz4_sys::LZ4_decompress_safe(
            stream.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            stream.len() as i32,
            len as i32,
        )
    };
    (decoded == len as i32).then_some(out)
}

pub fn deflate(plain: &[u8], level: i32) -> Vec<u8> {
    let mut encoder = libdeflater::Compressor::new(libdeflater::CompressionLvl::new(level).unwrap());
    let mut out = vec![0; encoder.deflate_compress_bound(plain.len())];
    let len = encoder.deflate_compress(plain, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Compresses to a frame with this window, with or without content size and checksum.
pub fn zstd(plain: &[u8], level: i32, window_log: u32, size: bool, checksum: bool) -> Vec<u8> {
    use zstd_safe::CParameter;
    let mut encoder = zstd_safe::CCtx::create();
    encoder.set_parameter(CParameter::CompressionLevel(level)).unwrap();
    encoder.set_parameter(CParameter::WindowLog(window_log)).unwrap();
    encoder.set_parameter(CParameter::ContentSizeFlag(size)).unwrap();
    encoder.set_parameter(CParameter::ChecksumFlag(checksum)).unwrap();
    let mut out = vec![0; zstd_safe::compress_bound(plain.len())];
    let len = encoder.compress2(&mut out[..], plain).unwrap();
    out.truncate(len);
    out
}

unsafe extern "C" {
    fn lzma_microlzma_encoder(stream: *mut lzma::lzma_stream, options: *const lzma::lzma_options_lzma)
    -> u32;
}

pub fn microlzma(plain: &[u8], preset: u32, dict_bytes: u32, (lc, lp, pb): (u32, u32, u32)) -> Vec<u8> {
    let mut out = vec![0; plain.len() * 2 + 1000];
    // SAFETY: calls of liblzma in their documented order on a zeroed stream and live buffers.
    let len = unsafe {
        let mut options: lzma::lzma_options_lzma = std::mem::zeroed();
        assert_eq!(lzma::lzma_lzma_preset(&mut options, preset), 0);
        options.dict_size = dict_bytes;
        (options.lc, options.lp, options.pb) = (lc, lp, pb);
        let mut stream: lzma::lzma_stream = std::mem::zeroed();
        assert_eq!(lzma_microlzma_encoder(&mut stream, &options), 0);
        (stream.next_in, stream.avail_in) = (plain.as_ptr(), plain.len());
        (stream.next_out, stream.avail_out) = (out.as_mut_ptr(), out.len());
        assert_eq!(lzma::lzma_code(&mut stream, lzma::LZMA_FINISH), lzma::LZMA_STREAM_END);
        assert_eq!(stream.total_in, plain.len() as u64);
        let len = stream.total_out as usize;
        lzma::lzma_end(&mut stream);
        len
    };
    out.truncate(len);
    out
}

/// Compresses the data in every format, with several settings each.
pub fn samples(plain: &[u8]) -> Vec<Sample> {
    let mut all = Vec::new();
    let mut add = |label: &str, format, stream| {
        let label = format!("{label}, {} bytes", plain.len());
        all.push(Sample { label, format, stream, plain: plain.to_vec() });
    };
    let lz4 = |window_bytes| Format::Lz4 { window_bytes };
    add("lz4", lz4(65535), lz4_fast(plain));
    add("lz4hc", lz4(65535), lz4_high(plain, 9));
    for window in [1, 100, 4096, 5000, 16384] {
        add(&format!("lz4 window {window}"), lz4(window), lz4_blocks::encode(plain, window as usize));
    }
    for level in [1, 6, 12] {
        add(&format!("deflate {level}"), Format::Deflate, deflate(plain, level));
    }
    let frame = |max_window_bytes| Format::Zstd { max_window_bytes };
    add("zstd 3", frame(1 << 20), zstd(plain, 3, 19, true, false));
    add("zstd 15 unsized", frame(1 << 15), zstd(plain, 15, 15, false, false));
    add("zstd 1 checked", frame(1 << 20), zstd(plain, 1, 10, false, true));
    if !plain.is_empty() {
        let dict = |dict_bytes| Format::MicroLzma { dict_bytes };
        add("microlzma 6", dict(1 << 20), microlzma(plain, 6, 1 << 20, (3, 0, 2)));
        add("microlzma 1", dict(4096), microlzma(plain, 1, 4096, (0, 2, 0)));
        add("microlzma 3", dict(40_000), microlzma(plain, 3, 40_000, (4, 0, 4)));
    }
    all
}

/// Delivers a stream in pieces of the lengths `lens`, over and over; the read of piece `fail_at` fails.
pub struct PieceInput<'a> {
    pub rest: &'a [u8],
    pub lens: &'a [usize],
    pub delivered: usize,
    pub fail_at: usize,
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Injected(pub usize);

impl<'a> PieceInput<'a> {
    pub fn new(stream: &'a [u8], lens: &'a [usize]) -> Self {
        PieceInput { rest: stream, lens, delivered: 0, fail_at: usize::MAX }
    }
}

impl Input for PieceInput<'_> {
    type Error = Injected;

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Injected> {
        assert!(!buf.is_empty());
        if self.delivered == self.fail_at {
            return Err(Injected(self.delivered));
        }
        let len = self.lens[self.delivered % self.lens.len()].min(buf.len()).min(self.rest.len());
        self.delivered += 1;
        buf[..len].copy_from_slice(&self.rest[..len]);
        self.rest = &self.rest[len..];
        Ok(len)
    }
}

/// Runs `decode_range` into a new buffer, and checks that nothing around the buffers is written.
pub fn range(
    decoder: &mut Decoder,
    input: &mut PieceInput<'_>,
    skip: usize,
    len: usize,
    want: Want,
) -> Result<Vec<u8>, RangeError<Injected>> {
    const GUARD: usize = 64;
    let mut piece = vec![0x11; 1 + input.lens.iter().max().unwrap() + GUARD];
    let piece_len = piece.len() - GUARD;
    let mut ring = vec![0x22; ring_bytes(decoder.format()) + GUARD];
    let ring_len = ring.len() - GUARD;
    let mut out = vec![0x33; GUARD + len + GUARD];
    let result = decoder.decode_range(
        input,
        &mut piece[..piece_len],
        &mut ring[..ring_len],
        skip as u64,
        &mut out[GUARD..GUARD + len],
        want,
    );
    assert_eq!(piece[piece_len..], [0x11; GUARD]);
    assert_eq!(ring[ring_len..], [0x22; GUARD]);
    assert_eq!(out[..GUARD], [0x33; GUARD]);
    assert_eq!(out[GUARD + len..], [0x33; GUARD]);
    result.map(|()| out[GUARD..GUARD + len].to_vec())
}

/// Runs `decode` into a new buffer, and checks that nothing around it is written.
pub fn whole(decoder: &mut Decoder, stream: &[u8], len: usize, want: Want) -> Option<Vec<u8>> {
    const GUARD: usize = 64;
    let mut out = vec![0x33; GUARD + len + GUARD];
    let result = decoder.decode(stream, &mut out[GUARD..GUARD + len], want);
    assert_eq!(out[..GUARD], [0x33; GUARD]);
    assert_eq!(out[GUARD + len..], [0x33; GUARD]);
    result.ok().map(|()| out[GUARD..GUARD + len].to_vec())
}
