//! Reads the length of a zstd frame's window from its header, before libzstd decodes the frame.
//!
//! libzstd's buffer-to-buffer call needs no window and does not check its length; its streaming calls allocate the
//! window. Both must accept the same frames, within a memory bound that is known beforehand, so [`Decoder`] checks the
//! window itself. A frame with a longer window than the format allows is refused as corrupt. Format: RFC 8878, 3.1.1.
//!
//! [`Decoder`]: super::Decoder

/// Length of the longest header: magic, descriptor, window, dictionary id, content size.
pub(super) const HEADER_MAX_BYTES: usize = 4 + 1 + 1 + 4 + 8;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The meaning of the first bytes of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A frame with a window of this length in bytes.
    Frame { window_bytes: u64 },
    /// The header is longer than the bytes.
    Short,
    /// Not a frame, or a frame that needs a dictionary.
    Bad,
}

/// Reads the frame header at the front of `bytes`.
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
        // The window of a single segment is the content. Sizes of two bytes count from 256.
        None => number(size) + if size_len == 2 { 256 } else { 0 },
    };
    Header::Frame { window_bytes }
}

/// Reads a little-endian number of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_lengths_follow_the_format() {
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
    fn incomplete_headers_are_short_and_complete_ones_are_frames() {
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
