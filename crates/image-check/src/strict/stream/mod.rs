//! Rules of the bytes of clusters: padding, and what can be judged without decoding.
//!
//! The ordinary check decodes all extents. It does not notice what its decoders tolerate, and that is judged here.

mod deflate;
mod lz4;
mod zstd;

use super::context::Strict;
use super::extent::Extent;
use pagefold_image::format::features::incompat;
use pagefold_image::{Address, Result, Space, rules};

/// Judges the stored bytes of an extent, the first that uses its cluster.
pub(super) fn check(strict: &mut Strict<'_>, extent: &Extent, is_interlaced: bool) -> Result<()> {
    let mut bytes = std::mem::take(&mut strict.cluster);
    bytes.resize(extent.stored_bytes as usize, 0); // at most 1 MiB
    let source = match extent.at.space {
        Space::Metabox => strict.image.metadata(),
        Space::Device(_) => strict.image.stored(),
    };
    let read = source.read_at(extent.at, &mut bytes);
    if read.is_ok() {
        match extent.algorithm {
            None => check_plain(strict, extent, is_interlaced, &bytes),
            Some(number) => check_compressed(strict, extent, number, &bytes),
        }
    }
    strict.cluster = bytes;
    read
}

/// Judges the bytes of a plain cluster after its extent. With shared clusters, another extent may use them.
fn check_plain(strict: &Strict<'_>, extent: &Extent, is_interlaced: bool, bytes: &[u8]) {
    if extent.partial || is_interlaced || strict.has_incompat(incompat::DEDUPE) {
        return;
    }
    let rest = bytes.get(extent.len_bytes as usize..).unwrap_or_default();
    if let Some(first) = rest.iter().position(|byte| *byte != 0) {
        let at = Address { offset: extent.at.offset + extent.len_bytes + first as u64, ..extent.at };
        strict.fault(&rules::PLAIN_FILL, at, "bytes after the extent of a plain cluster");
    }
}

fn check_compressed(strict: &Strict<'_>, extent: &Extent, number: u8, bytes: &[u8]) {
    let is_padded = strict.has_incompat(incompat::ZERO_PADDING);
    let padding = if is_padded { bytes.iter().take_while(|byte| **byte == 0).count() } else { 0 };
    let limit = if extent.inline { 0 } else { strict.block_bytes() as usize - 1 };
    if padding > limit || padding == bytes.len() {
        let what = format!("{padding} zeroes precede a stream in a cluster of {} bytes", bytes.len());
        return strict.fault(&rules::STREAM_PADDING, extent.at, what);
    }
    let at = Address { offset: extent.at.offset + padding as u64, ..extent.at };
    let stream = &bytes[padding..];
    let is_whole = is_padded && !extent.partial;
    match number {
        0 => {
            let len = if is_whole { u64::MAX } else { extent.len_bytes };
            if let Some(distance) = lz4::too_far(stream, strict.limits.lz4_window, len) {
                let window = strict.limits.lz4_window;
                let what = format!("a match that reaches back {distance} bytes, with a window of {window}");
                strict.fault(&rules::LZ4_WINDOW, at, what);
            }
        }
        1 if !is_lzma_properties(!stream[0]) => {
            let what = format!("a stream that begins with {:#04x}", stream[0]);
            strict.fault(&rules::LZMA_FIRST, at, what);
        }
        2 => {
            if let Some(distance) = deflate::too_far(stream, strict.limits.deflate_window, extent.len_bytes) {
                let window = strict.limits.deflate_window;
                let what = format!("a match that reaches back {distance} bytes, with a window of {window}");
                strict.fault(&rules::DEFLATE_WINDOW, at, what);
            }
        }
        3 => {
            let len = if is_whole { Some(extent.len_bytes) } else { None };
            if let Err(what) = zstd::check(stream, strict.limits.zstd_window, len) {
                strict.fault(&rules::ZSTD_FRAME, at, what);
            }
        }
        _ => {}
    }
}

/// Whether this is a properties byte of LZMA, `(pb * 5 + lp) * 9 + lc`, as MicroLZMA may have it.
fn is_lzma_properties(byte: u8) -> bool {
    let (lc, lp) = (byte % 9, byte / 9 % 5);
    byte < 9 * 5 * 5 && lc + lp <= 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_at_most_four_bits_of_context() {
        assert!(is_lzma_properties(0x5d));
        assert!(is_lzma_properties(4 * 9));
        assert!(!is_lzma_properties(4 * 9 + 1));
        assert!(!is_lzma_properties(225));
    }
}
