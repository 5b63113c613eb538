//! The copies of the fast LZ4 decoder: whole words at a time.
//!
//! Safe Rust: each step's slices check that it stays inside. One check for all steps and raw pointers make
//! the decoder about a fifth faster, which is not worth it for input that anybody may have written.

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
/// `offset` is at least 8. Fails where it reaches before the buffer, or the wide copies behind it.
#[inline(always)]
pub(super) fn copy_back(out: &mut [u8], offset: usize, at: usize, stop: usize) -> Option<()> {
    let from = at.checked_sub(offset)?;
    match offset >= WIDE {
        true => steps::<WIDE>(out, from, at, stop),
        false => steps::<8>(out, from, at, stop),
    }
}

/// Copies `N` bytes at a time from `from` to `at` until `stop` is reached. `from` is at least `N` before
/// `at`, so that each step's source is complete.
#[inline(always)]
fn steps<const N: usize>(out: &mut [u8], mut from: usize, mut at: usize, stop: usize) -> Option<()> {
    while at < stop {
        let step = *out.get(from..)?.first_chunk::<N>()?;
        *out.get_mut(at..)?.first_chunk_mut::<N>()? = step;
        from += N;
        at += N;
    }
    Some(())
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
