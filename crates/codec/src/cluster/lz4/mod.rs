//! LZ4 blocks: liblz4 from buffer to buffer and in place, our own decoder for ranges.

mod whole;

use super::source::Source;
use super::{RangeError, Want};

pub(super) use whole::{decode_all, decode_prefix};
pub use whole::{decode_lz4_in_place, in_place_margin};

pub(super) const NAME: &str = "lz4";

/// Stands in for the decoder of ranges.
pub(super) fn range<S: Source>(
    _window_bytes: usize,
    _source: &mut S,
    _ring: &mut [u8],
    _skip: u64,
    _dst: &mut [u8],
    _want: Want,
) -> Result<(), RangeError<S::Error>> {
    Err(crate::CodecError::NoMemory { codec: NAME }.into())
}
