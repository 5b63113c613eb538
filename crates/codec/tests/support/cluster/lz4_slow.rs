//! An LZ4 decoder that works a byte at a time, written from the format's document: the reference for the fast decoders.
//!
//! It depends on nothing, so that fuzz targets can include it.

/// Selects whether the stream must end with the output, or only its beginning is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    All,
    Prefix,
}

/// Decodes the first `len` bytes of output; returns `None` where the stream is corrupt before they are complete.
///
/// With [`Extent::All`] the stream must decode to exactly `len` bytes and obey the format's rules for the end of a
/// block: the last sequence is literals only, the last 5 bytes are literals, and the last match
/// begins at least 12 bytes before the end.
///
/// A match at offset 0, which the format does not allow, is a run of zeroes, as for liblz4 and the kernel.
pub fn decode(stream: &[u8], len: usize, window: usize, extent: Extent) -> Option<Vec<u8>> {
    decode_and_mark(stream, len, window, extent).map(|(out, _)| out)
}

/// Decodes as [`decode`] does, and returns also the number of bytes of output that liblz4 decodes to the same.
///
/// It is all of them but for one case: liblz4 copies the matches that reach the last 12 bytes of a prefix byte by byte,
/// and one at offset 0 onto itself. From its beginning on, the prefix then holds zeroes or bytes of the stream.
pub fn decode_and_mark(stream: &[u8], len: usize, window: usize, extent: Extent) -> Option<(Vec<u8>, usize)> {
    let mut out: Vec<u8> = Vec::new();
    let mut same = len;
    let mut bytes = stream.iter().copied();
    let full = |out: &Vec<u8>| extent == Extent::Prefix && out.len() == len;
    if full(&out) {
        return Some((out, same));
    }
    loop {
        let token = bytes.next()?;
        let mut literals = usize::from(token >> 4);
        if literals == 15 {
            loop {
                let byte = bytes.next()?;
                literals += usize::from(byte);
                if byte != 255 {
                    break;
                }
            }
        }
        for _ in 0..literals {
            if out.len() == len {
                return None;
            }
            out.push(bytes.next()?);
            if full(&out) {
                return Some((out, same));
            }
        }
        if extent == Extent::All && bytes.len() == 0 {
            return (out.len() == len).then_some((out, same));
        }
        if extent == Extent::All && out.len() + 12 > len {
            return None;
        }
        let offset = usize::from(bytes.next()?) | usize::from(bytes.next()?) << 8;
        if offset > window || offset > out.len() {
            return None;
        }
        let mut matched = usize::from(token & 15) + 4;
        if matched == 19 {
            loop {
                let byte = bytes.next()?;
                matched += usize::from(byte);
                if byte != 255 {
                    break;
                }
            }
        }
        if extent == Extent::Prefix && offset == 0 && out.len() + matched + 12 > len {
            same = same.min(out.len());
        }
        for _ in 0..matched {
            if out.len() == len {
                return None;
            }
            out.push(if offset == 0 { 0 } else { out[out.len() - offset] });
            if full(&out) {
                return Some((out, same));
            }
        }
        if extent == Extent::All && out.len() + 5 > len {
            return None;
        }
    }
}
