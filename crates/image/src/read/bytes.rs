//! Helpers for reading by address.

use super::Bytes;
use crate::{Address, ImageError, Result};

/// Reads `N` bytes from `at`.
pub fn array_at<const N: usize>(bytes: &dyn Bytes, at: Address) -> Result<[u8; N]> {
    let mut array = [0; N];
    bytes.read_at(at, &mut array)?;
    Ok(array)
}

/// Returns the address `len_bytes` after `at`. An overflow means a corrupt image.
pub(crate) fn advance(at: Address, len_bytes: u64) -> Result<Address> {
    at.checked_add(len_bytes).ok_or_else(|| ImageError::corrupt(at, "an address beyond all numbers"))
}
