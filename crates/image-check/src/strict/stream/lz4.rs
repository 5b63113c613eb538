//! The distances of an LZ4 block's matches.

/// Returns the first distance above `window`, or above the bytes before it, in the first `len` bytes of a block's
/// output. A block that ends early has no further distances; decoding reports it.
pub(super) fn too_far(block: &[u8], window: u64, len: u64) -> Option<u64> {
    let (mut at, mut done) = (0, 0u64);
    while done < len {
        let token = *block.get(at)?;
        at += 1;
        let literals = length(block, &mut at, token >> 4)?;
        at = at.checked_add(literals)?;
        done += literals as u64;
        let low = *block.get(at)?;
        let high = *block.get(at + 1)?;
        at += 2;
        let distance = u64::from(u16::from_le_bytes([low, high]));
        if done < len && (distance > window || distance > done) {
            return Some(distance);
        }
        done += length(block, &mut at, token & 15)? as u64 + 4;
    }
    None
}

/// Reads the rest of a length whose first four bits are `first`.
fn length(block: &[u8], at: &mut usize, first: u8) -> Option<usize> {
    let mut len = usize::from(first);
    if first < 15 {
        return Some(len);
    }
    loop {
        let byte = *block.get(*at)?;
        *at += 1;
        len += usize::from(byte);
        if byte < 255 {
            return Some(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four literals, a match of four bytes four back, and a last run of five literals.
    const BLOCK: [u8; 13] = [0x40, b'a', b'b', b'c', b'd', 4, 0, 0x50, 1, 2, 3, 4, 5];

    #[test]
    fn distances_beyond_the_window_and_the_beginning_are_found() {
        assert_eq!(too_far(&BLOCK, 4, u64::MAX), None);
        assert_eq!(too_far(&BLOCK, 3, u64::MAX), Some(4));
        assert_eq!(too_far(&BLOCK, 3, 4), None);
        let mut early = BLOCK;
        early[5] = 5;
        assert_eq!(too_far(&early, 65_535, u64::MAX), Some(5));
    }
}
