//! The size classes: the class of an object of a given length, and the bytes that it uses there.
//!
//! The steps are 8 bytes up to 1 KiB and 16 above. Rounding up costs 4 and 8 bytes on average, below one per cent of
//! such an object, and there are few classes, each of which has a partly empty last frame.

use crate::frame::FRAME_LEN;

/// The longest object, bytes: a page.
pub const OBJECT_LEN_MAX: usize = 4096;

/// Bytes of the owner word in front of each object.
pub(crate) const OWNER_LEN: usize = 8;

/// The least stride: a hole contains two list links.
const STRIDE_MIN: usize = 16;
const FINE_STEP: usize = 8;
const FINE_MAX: usize = 1024;
const COARSE_STEP: usize = 16;
const STRIDE_MAX: usize = OBJECT_LEN_MAX + OWNER_LEN;
const FINE_COUNT: usize = (FINE_MAX - STRIDE_MIN) / FINE_STEP + 1;
/// Number of classes between the fine ones and the last.
const COARSE_COUNT: usize = (STRIDE_MAX - 1 - FINE_MAX) / COARSE_STEP;

/// The number of classes.
pub(crate) const CLASS_COUNT: usize = FINE_COUNT + COARSE_COUNT + 1;

// An object that starts at the last multiple of 8 in a frame ends in the next one.
const _: () = assert!(FRAME_LEN - 8 + STRIDE_MAX <= 2 * FRAME_LEN);
const _: () = assert!(CLASS_COUNT < 1 << 9);

/// The class of an object of `len_bytes`, 1 to [`OBJECT_LEN_MAX`].
pub(crate) fn class_index(len_bytes: usize) -> usize {
    debug_assert!((1..=OBJECT_LEN_MAX).contains(&len_bytes));
    let need = (len_bytes + OWNER_LEN).max(STRIDE_MIN);
    if need <= FINE_MAX {
        (need - STRIDE_MIN).div_ceil(FINE_STEP)
    } else {
        (FINE_COUNT - 1 + (need - FINE_MAX).div_ceil(COARSE_STEP)).min(CLASS_COUNT - 1)
    }
}

/// Whether an object of `new_len_bytes` uses less memory than one of `old_len_bytes`: whether its class is a smaller
/// one.
pub fn is_smaller_class(new_len_bytes: usize, old_len_bytes: usize) -> bool {
    class_index(new_len_bytes) < class_index(old_len_bytes)
}

/// The bytes that each object of a class uses, including its owner word.
pub(crate) fn stride(class_index: usize) -> usize {
    if class_index < FINE_COUNT {
        STRIDE_MIN + class_index * FINE_STEP
    } else if class_index + 1 < CLASS_COUNT {
        FINE_MAX + (class_index + 1 - FINE_COUNT) * COARSE_STEP
    } else {
        STRIDE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_index_is_the_tightest_class_for_every_length() {
        for len in 1..=OBJECT_LEN_MAX {
            let class = class_index(len);
            let need = len + OWNER_LEN;
            assert!(stride(class) >= need, "length {len}");
            assert!(class == 0 || stride(class - 1) < need, "length {len}");
            assert!(stride(class).is_multiple_of(8));
            let waste_max = if need <= FINE_MAX { FINE_STEP } else { COARSE_STEP };
            assert!(len < 8 || stride(class) - need < waste_max, "length {len}");
        }
        assert_eq!(class_index(OBJECT_LEN_MAX), CLASS_COUNT - 1);
        assert_eq!(stride(CLASS_COUNT - 1), STRIDE_MAX);
    }
}
