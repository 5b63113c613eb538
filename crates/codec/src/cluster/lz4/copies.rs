//! The copies of the LZ4 decoder's fast path: 8 or 16 bytes at a time.
//!
//! This module is safe Rust: slices check each step's bounds. Raw pointers with one check for all steps would make the
//! decoder about a fifth faster, which does not justify `unsafe` on untrusted input.

/// Bytes of a wide copy. A copy writes fewer bytes than this past its end.
pub(super) const WIDE: usize = 16;

/// Copies [`WIDE`] bytes from `from` of `src` to `at` of `out`.
#[inline(always)]
pub(super) fn copy_short(src: &[u8], from: usize, out: &mut [u8], at: usize) -> Option<()> {
    let wide = *src.get(from..)?.first_chunk::<WIDE>()?;
    *out.get_mut(at..)?.first_chunk_mut::<WIDE>()? = wide;
    Some(())
}

/// Copies to each byte of `at..stop` of `out` the byte that is `offset` before it, and writes up to 15 bytes more.
///
/// `offset` is at least 8. Returns `None` where it reaches before the buffer, or the wide copies would pass its end.
#[inline(always)]
pub(super) fn copy_back(out: &mut [u8], offset: usize, at: usize, stop: usize) -> Option<()> {
    let from = at.checked_sub(offset)?;
    match offset >= WIDE {
        true => copy_steps::<WIDE>(out, from, at, stop),
        false => copy_steps::<8>(out, from, at, stop),
    }
}

/// Copies `N` bytes at a time from `from` to `at` until `stop` is reached. `from` is at least `N` before `at`, so that
/// each step's source is already written.
#[inline(always)]
fn copy_steps<const N: usize>(out: &mut [u8], mut from: usize, mut at: usize, stop: usize) -> Option<()> {
    while at < stop {
        let step = *out.get(from..)?.first_chunk::<N>()?;
        *out.get_mut(at..)?.first_chunk_mut::<N>()? = step;
        from += N;
        at += N;
    }
    Some(())
}

/// Copies from `from` of `src` to `at..stop` of `out`, and writes up to 15 bytes more. `src` is another buffer than
/// `out`.
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
