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
    let mut out: Vec<u8> = Vec::new();
    let mut bytes = stream.iter().copied();
    let full = |out: &Vec<u8>| extent == Extent::Prefix && out.len() == len;
    if full(&out) {
        return Some(out);
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
                return Some(out);
            }
        }
        if extent == Extent::All && bytes.len() == 0 {
            return (out.len() == len).then_some(out);
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
        for _ in 0..matched {
            if out.len() == len {
                return None;
            }
            out.push(if offset == 0 { 0 } else { out[out.len() - offset] });
            if full(&out) {
                return Some(out);
            }
        }
        if extent == Extent::All && out.len() + 5 > len {
            return None;
        }
    }
}
