//! LZ4 blocks: liblz4 from buffer to buffer and in place, our own decoder for ranges.
//!
//! liblz4 decodes in pieces only by having two or more *blocks*, and one block only from one buffer to
//! another. A range of a block needs neither its whole input nor its whole output: a window of output is
//! enough. So [`machine`] is a decoder that stops and goes on at any byte of its input; [`output`] is a ring
//! followed by the caller's buffer, with matches that reach back across both; [`fast`] decodes the sequences
//! that need none of this care, which are nearly all.
//!
//! Format: `lz4_Block_format.md` of the LZ4 project.

mod copies;
mod fast;
mod machine;
mod output;
mod whole;

use super::source::Source;
use super::{RangeError, Want};
use machine::Machine;
use output::Output;

pub(super) use whole::{decode_all, decode_prefix};
pub use whole::{decode_lz4_in_place, in_place_margin};

pub(super) const NAME: &str = "lz4";

/// Decodes the block of `source`: `skip` bytes into `ring`, and what follows into `dst`.
///
/// `ring` is longer than the window by a page.
pub(super) fn range<S: Source>(
    window_bytes: usize,
    source: &mut S,
    ring: &mut [u8],
    skip: u64,
    dst: &mut [u8],
    want: Want,
) -> Result<(), RangeError<S::Error>> {
    let output = Output::new(ring, skip, dst);
    let mut machine = Machine::new(window_bytes, output, want);
    while !machine.has_prefix() {
        let src = source.chunk()?;
        if src.is_empty() {
            return Ok(machine.end()?);
        }
        machine.feed(src)?;
        let len = src.len();
        source.take(len);
    }
    Ok(())
}
