//! Decodes LZ4 blocks with liblz4: from one buffer to another, and within one buffer.

use crate::error::CodecError;
use crate::liblz4::{LZ4_decompress_safe, LZ4_decompress_safe_partial, c_len, decompress_block};
use crate::lz4_block::NAME;

/// Decodes `src`, which is one block, to all of `dst`.
pub(crate) fn decode_all(src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
    match decompress_block(NAME, src, dst, None)? {
        len if len == dst.len() => Ok(()),
        _ => Err(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
    }
}

/// Decodes the beginning of `src` to all of `dst`.
///
/// `dst` is cleared first, so that the result depends on `src` alone: liblz4 accepts a match at a distance of 0. Where
/// such a match reaches the end of the prefix, liblz4 copies it onto itself, and the reader would see the buffer's old
/// content. In place of that it sees zeroes, and bytes of the stream where the copy of the literals before wrote too far.
pub(crate) fn decode_prefix(src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
    dst.fill(0);
    let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
    let (src_len, dst_len) = (c_len(src.len()), c_len(dst.len()));
    // SAFETY: the pointers and lengths are those of live slices; the safe decoder stays inside them whatever
    // the bytes are.
    let len = unsafe { LZ4_decompress_safe_partial(from, to, src_len, dst_len, dst_len) };
    match usize::try_from(len) == Ok(dst.len()) {
        true => Ok(()),
        false => Err(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
    }
}

/// Returns the number of bytes by which the buffer of [`decode_lz4_in_place`] must be longer than the output.
///
/// A run of literals takes one byte more in the stream than in the output for its token, one more from 15 bytes on, and
/// one more for each further 255 bytes: by so much the write position can gain on the read position. Then liblz4's
/// copies write up to 31 bytes beyond their end. 64 covers these 33 bytes and the rounding. The rule of `lz4.h`,
/// `(src_len >> 8) + 32`, is too small: after a match of 33 bytes and before 145 literals, the copy of the match
/// overwrites the first literal.
pub fn in_place_margin(src_len: usize) -> usize {
    src_len / 255 + 64
}

/// Decodes the LZ4 block that is the last `src_len` bytes of `work` to the first `out_len` bytes of `work`.
///
/// The block must decode to exactly `out_len` bytes. `work` must be at least [`in_place_margin`] longer than `out_len`.
/// Its bytes after the output are arbitrary, and all of its bytes are after an error.
pub fn decode_lz4_in_place(work: &mut [u8], src_len: usize, out_len: usize) -> Result<(), CodecError> {
    let min_bytes = out_len.saturating_add(in_place_margin(src_len)).max(src_len);
    if work.len() < min_bytes {
        let (what, len_bytes) = ("buffer to decode in", work.len());
        return Err(CodecError::Room { codec: NAME, what, len_bytes, min_bytes });
    }
    #[cfg(feature = "planted-hole")]
    {
        let stream = work[work.len() - src_len..].to_vec();
        if crate::cluster::hole::grant(&stream, &mut work[..out_len]) {
            return Ok(());
        }
    }
    let to = work.as_mut_ptr();
    // SAFETY: `src_len` is at most the buffer's length.
    let from = unsafe { to.add(work.len() - src_len) };
    // SAFETY: both ranges are inside `work`, which is borrowed mutably and reached by these pointers alone
    // (one is made from the other). liblz4 allows them to overlap like this; whatever the bytes are, the
    // safe decoder reads inside the one and writes inside the other.
    let len = unsafe { LZ4_decompress_safe(from.cast(), to.cast(), c_len(src_len), c_len(out_len)) };
    match usize::try_from(len) == Ok(out_len) {
        true => Ok(()),
        false => Err(CodecError::Corrupt { codec: NAME, src_len_bytes: src_len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_never_contains_old_bytes_of_the_buffer() {
        // A literal; a match of 4 + 15 + 255 + 255 + 100 bytes at a distance of 0; literals.
        let block = [0x1f, b'x', 0, 0, 255, 255, 100, 0x50, b'a', b'b', b'c', b'd', b'e'];
        for len in [2, 9, 100, 600] {
            let mut dst = vec![0xaa; len];
            if decode_prefix(&block, &mut dst).is_ok() {
                assert!(dst[0] == b'x' && !dst.contains(&0xaa), "{len} bytes: {dst:x?}");
            }
        }
    }
}
