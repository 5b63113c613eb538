//! The window that a zstd frame asks for, read from its header before any library sees the frame.
//!
//! A library that decodes from buffer to buffer needs no window and so does not look at its length, while
//! one that decodes in pieces allocates it. Both ways must accept the same frames, and memory is to be
//! known beforehand; so the header is judged here. Format: RFC 8878, 3.1.1.

/// The longest header: magic, descriptor, window, dictionary id, content size.
pub(super) const HEADER_MAX_BYTES: usize = 4 + 1 + 1 + 4 + 8;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What the first bytes of a stream say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A frame that needs this window, bytes.
    Frame { window_bytes: u64 },
    /// More bytes are needed to tell.
    Short,
    /// Not a frame, or one that needs a dictionary.
    Bad,
}

/// Reads the header at the front of `bytes`.
pub(super) fn header(bytes: &[u8]) -> Header {
    if !MAGIC.starts_with(bytes) && !bytes.starts_with(&MAGIC) {
        return Header::Bad;
    }
    match bytes.get(4..).and_then(<[u8]>::split_first) {
        None => Header::Short,
        Some((descriptor, fields)) => fields_of(*descriptor, fields),
    }
}

fn fields_of(descriptor: u8, fields: &[u8]) -> Header {
    let single_segment = descriptor & 0x20 != 0;
    let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_len = match descriptor >> 6 {
        0 => usize::from(single_segment),
        code => 1 << code,
    };
    let size_at = usize::from(!single_segment) + dictionary_len;
    let Some(fields) = fields.get(..size_at + size_len) else { return Header::Short };
    let (front, size) = fields.split_at(size_at);
    let (window, dictionary) = front.split_at(usize::from(!single_segment));
    if dictionary.iter().any(|byte| *byte != 0) {
        return Header::Bad;
    }
    let window_bytes = match window.first() {
        Some(byte) => {
            let base = 1u64 << (10 + (byte >> 3));
            base + (base >> 3) * u64::from(byte & 7)
        }
        // A single segment is its own window. Sizes of two bytes begin at 256.
        None => number(size) + if size_len == 2 { 256 } else { 0 },
    };
    Header::Frame { window_bytes }
}

/// A little-endian number of at most 8 bytes. One of 8 bytes near the top is still far above any limit.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_format() {
        let window = |tail: &[u8]| header(&[&MAGIC, tail].concat());
        assert_eq!(window(&[0, 0]), Header::Frame { window_bytes: 1024 });
        assert_eq!(window(&[0, 10 << 3]), Header::Frame { window_bytes: 1 << 20 });
        assert_eq!(window(&[0, 10 << 3 | 1]), Header::Frame { window_bytes: (1 << 20) + (1 << 17) });
        assert_eq!(window(&[0xdc, 31 << 3, 0, 0, 0, 0, 0, 0, 0, 0]), Header::Frame { window_bytes: 1 << 41 });
        assert_eq!(window(&[0x20, 77]), Header::Frame { window_bytes: 77 });
        assert_eq!(window(&[0x60, 1, 2]), Header::Frame { window_bytes: 256 + 0x201 });
        assert_eq!(window(&[0xa0, 1, 2, 3, 4]), Header::Frame { window_bytes: 0x0403_0201 });
        assert_eq!(
            window(&[0xe0, 255, 255, 255, 255, 255, 255, 255, 255]),
            Header::Frame { window_bytes: u64::MAX }
        );
        assert_eq!(window(&[0x21, 1, 2]), Header::Bad);
        assert_eq!(window(&[0x21, 0, 2]), Header::Frame { window_bytes: 2 });
    }

    #[test]
    fn every_header_is_short_until_it_is_whole() {
        for descriptor in 0..=255 {
            let bytes = [&MAGIC[..], &[descriptor], &[0; 13]].concat();
            let whole = (0..=HEADER_MAX_BYTES).find(|len| header(&bytes[..*len]) != Header::Short).unwrap();
            assert!((6..=HEADER_MAX_BYTES).contains(&whole), "{descriptor}: {whole}");
            assert!(matches!(header(&bytes[..whole]), Header::Frame { .. }));
        }
        assert_eq!(header(&[]), Header::Short);
        assert_eq!(header(&[0x28, 0xb5, 0x2e]), Header::Bad);
    }
}
