//! The frame of a zstd cluster: its header, and where it ends.

/// First four bytes of a frame.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of the header of a block.
const BLOCK_HEADER_BYTES: usize = 3;
/// Bytes of the checksum after the last block.
const CHECKSUM_BYTES: usize = 4;

/// Judges a stream: one frame that ends with it. `len` is the content size, if the extent is all of it. The error says
/// what is wrong.
pub(super) fn check(stream: &[u8], max_window: u64, len: Option<u64>) -> Result<(), String> {
    let cut_off = || "a frame that is cut off".to_string();
    let rest = stream.strip_prefix(&MAGIC).ok_or("a stream that does not begin with a frame")?;
    let (&descriptor, rest) = rest.split_first().ok_or_else(cut_off)?;
    let is_single = descriptor & 0x20 != 0;
    if descriptor & 0x03 != 0 || descriptor & 0x08 != 0 {
        return Err("a frame with a dictionary or a reserved bit".to_string());
    }
    let size_bytes = match (descriptor >> 6, is_single) {
        (0, true) => 1,
        (0, false) => return Err("a frame without its content size".to_string()),
        (n, _) => 1 << n,
    };
    let (window, rest) = match is_single {
        true => (0, rest),
        false => {
            let (&byte, rest) = rest.split_first().ok_or_else(cut_off)?;
            let base = 1u64 << (10 + (byte >> 3));
            (base + base / 8 * u64::from(byte & 7), rest)
        }
    };
    let (size, rest) = rest.split_at_checked(size_bytes).ok_or_else(cut_off)?;
    let mut padded = [0; 8];
    padded[..size_bytes].copy_from_slice(size);
    // Sizes of two bytes count from 256.
    let size = u64::from_le_bytes(padded) + if size_bytes == 2 { 256 } else { 0 };
    let window = if is_single { size } else { window };
    if window > max_window {
        return Err(format!("a frame with a window of {window} bytes, and the record allows {max_window}"));
    }
    if let Some(len) = len.filter(|len| *len != size) {
        return Err(format!("a frame of {size} bytes for an extent of {len}"));
    }
    let checksum = if descriptor & 0x04 != 0 { CHECKSUM_BYTES } else { 0 };
    match end_of_blocks(rest).ok_or_else(cut_off)? + checksum {
        end if end == rest.len() => Ok(()),
        end if end > rest.len() => Err(cut_off()),
        end => Err(format!("a frame with {} bytes after it", rest.len() - end)),
    }
}

/// Returns where the last block ends.
fn end_of_blocks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0usize;
    loop {
        let header = bytes.get(at..at + BLOCK_HEADER_BYTES)?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let size = (header >> 3) as usize;
        // A block of type 1 repeats one byte.
        let stored = if header >> 1 & 3 == 1 { 1 } else { size };
        at += BLOCK_HEADER_BYTES + stored;
        if header & 1 != 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(contents: &[u8], with_size: bool) -> Vec<u8> {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::ContentSizeFlag(with_size)).unwrap();
        context.set_parameter(zstd_safe::CParameter::ChecksumFlag(true)).unwrap();
        let mut frame = vec![0; zstd_safe::compress_bound(contents.len())];
        let len = context.compress2(frame.as_mut_slice(), contents).unwrap();
        frame.truncate(len);
        frame
    }

    #[test]
    fn one_whole_frame_with_its_size_is_right() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 7).wrapping_mul(n).to_le_bytes()).collect();
        for len in [1, 255, 256, 70_000, text.len()] {
            let good = frame(&text[..len], true);
            check(&good, 1 << 23, Some(len as u64)).unwrap();
            check(&good, 1 << 23, Some(len as u64 + 1)).unwrap_err();
            check(&[&good[..], &[0]].concat(), 1 << 23, None).unwrap_err();
            check(&good[..good.len() - 1], 1 << 23, None).unwrap_err();
            check(&good[1..], 1 << 23, None).unwrap_err();
            check(&good, 0, None).unwrap_err();
            check(&frame(&text[..len], false), 1 << 23, None).unwrap_err();
        }
    }
}
