//! The copies of the fast LZ4 decoder: whole words at a time, with one check for all of a copy's steps.
//!
//! Each function checks what its pointers need, and copies nothing where that does not hold. What the
//! callers know about sequences makes decoding right, but it is not what memory safety rests on.

/// Bytes of a wide copy; a copy writes less than this much behind its end.
pub(super) const WIDE: usize = 16;

/// Copies [`WIDE`] bytes from `from` of `src` to `at` of `out`.
#[inline(always)]
pub(super) fn copy_short(src: &[u8], from: usize, out: &mut [u8], at: usize) -> Option<()> {
    let wide = *src.get(from..)?.first_chunk::<WIDE>()?;
    *out.get_mut(at..)?.first_chunk_mut::<WIDE>()? = wide;
    Some(())
}

/// Writes `at..stop` of `out` with what is `offset` before each byte, and up to 15 bytes more.
///
/// `offset` is at least 8. Fails where `offset` reaches before the buffer, or the wide copies behind it.
#[inline(always)]
pub(super) fn copy_back(out: &mut [u8], offset: usize, at: usize, stop: usize) -> Option<()> {
    if offset > at || at > stop || out.len() < WIDE || stop > out.len() - WIDE {
        return None;
    }
    // SAFETY: `offset <= at <= stop <= out.len() - 16`. A step at `to` is made only while `to < stop`, so it
    // writes `to..to + 16`, which ends before `stop + 16 <= out.len()`; it reads 16 bytes from `to - offset`,
    // which is at least `at - offset >= 0`, and ends no later. `copy` allows the two to overlap.
    unsafe {
        let base = out.as_mut_ptr();
        if offset >= WIDE {
            steps::<WIDE>(base, at - offset, at, stop);
        } else {
            steps::<8>(base, at - offset, at, stop);
        }
    }
    Some(())
}

/// Copies `N` bytes at a time from `from` to `to` until `stop` is reached.
///
/// # Safety
/// `base` may be read and written from `from` and from `to` on for `stop - to` bytes rounded up to `N`.
#[inline(always)]
unsafe fn steps<const N: usize>(base: *mut u8, mut from: usize, mut to: usize, stop: usize) {
    while to < stop {
        // SAFETY: inside what the caller allows; the bytes are loaded before they are stored.
        unsafe {
            let step = base.add(from).cast::<[u8; N]>().read();
            base.add(to).cast::<[u8; N]>().write(step);
        }
        from += N;
        to += N;
    }
}

/// Copies from `from` of `src` to `at..stop` of `out`, and up to 15 bytes more.
#[inline]
pub(super) fn copy_apart(src: &[u8], from: usize, out: &mut [u8], at: usize, stop: usize) -> Option<()> {
    let len = stop.checked_sub(at)?;
    match (src.get(from..)?.get(..len + WIDE), out.get_mut(at..)?.get_mut(..len + WIDE)) {
        (Some(src), Some(out)) => {
            let (src, _) = src.as_chunks::<WIDE>();
            let (out, _) = out.as_chunks_mut::<WIDE>();
            out.iter_mut().zip(src).for_each(|(out, src)| *out = *src);
        }
        _ => out.get_mut(at..stop)?.copy_from_slice(src.get(from..)?.get(..len)?),
    }
    Some(())
}
