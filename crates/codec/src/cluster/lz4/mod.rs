//! LZ4 blocks: liblz4 decodes from buffer to buffer and in place (`whole`), this module decodes ranges.
//!
//! liblz4's streaming calls take whole blocks; it decodes a block only from one buffer to another. But a range needs
//! neither the whole input nor the whole output in memory: a window of output is enough. [`block_decoder`] is a state
//! machine that can stop and go on at any byte of its input. It passes runs of sequences that are complete in the input
//! to [`fast`], which decodes nearly all of them. Both write to an [`output`]: a ring for the output to discard,
//! followed by the caller's buffer, with matches that reach back from the one into the other. `copies` has the wide
//! copies.
//!
//! Format: `lz4_Block_format.md` of the LZ4 project.

mod block_decoder;
mod copies;
mod fast;
mod output;
mod whole;

use super::source::{RangeError, Source, Target};
use block_decoder::BlockDecoder;
use output::Output;

pub(super) use whole::{decode_all, decode_prefix};
pub use whole::{decode_lz4_in_place, in_place_margin};

/// Decodes the block of `source` to `target`, whose ring must be longer than the window by a page.
pub(super) fn decode_range<S: Source>(
    window_bytes: usize,
    source: &mut S,
    target: Target<'_>,
) -> Result<(), RangeError<S::Error>> {
    let Target { ring, skip, dst, want } = target;
    let mut decoder = BlockDecoder::new(window_bytes, Output::new(ring, skip, dst), want);
    while !decoder.has_prefix() {
        let src = source.chunk()?;
        if src.is_empty() {
            return Ok(decoder.finish()?);
        }
        decoder.feed(src)?;
        let len = src.len();
        source.consume(len);
    }
    Ok(())
}
