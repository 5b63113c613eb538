//! The header block of a member: fixed fields of text and numbers, in the forms of v7, ustar, star and GNU tar.

use super::archive::Block;
use super::fault::refused;
use crate::Result;
use std::ops::Range;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: usize = 156;
const LINK_NAME: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..263;
const DEVICE_MAJOR: Range<usize> = 329..337;
const DEVICE_MINOR: Range<usize> = 337..345;
const PREFIX: Range<usize> = 345..500;
/// star keeps times in the end of the prefix, and marks its headers at their end.
const STAR_PREFIX: Range<usize> = 345..476;
const STAR_MAGIC: Range<usize> = 508..512;

/// A header whose checksum is right.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a>(pub &'a Block);

impl<'a> Header<'a> {
    /// Takes a block that is a header; `None` if its checksum is wrong.
    pub fn new(block: &'a Block) -> Option<Self> {
        let header = Header(block);
        let wanted = header.number(CHECKSUM, "checksum").ok()?;
        let sum = |value: fn(u8) -> i128| -> i128 {
            let spaces = CHECKSUM.len() as i128 * i128::from(b' ');
            let before = block[..CHECKSUM.start].iter().chain(&block[CHECKSUM.end..]);
            before.map(|&byte| value(byte)).sum::<i128>() + spaces
        };
        // Some old programs added the bytes as signed numbers.
        (wanted == sum(i128::from) || wanted == sum(|byte| i128::from(byte as i8))).then_some(header)
    }

    /// The letter of the member's type.
    pub fn letter(self) -> u8 {
        self.0[TYPE]
    }

    /// The member's name, with its prefix.
    pub fn name(self) -> Vec<u8> {
        let name = self.text(NAME);
        let prefix = match (&self.0[MAGIC], &self.0[STAR_MAGIC]) {
            (b"ustar\0", b"tar\0") => self.text(STAR_PREFIX),
            (b"ustar\0", _) => self.text(PREFIX),
            _ => b"",
        };
        match prefix {
            b"" => name.to_vec(),
            prefix => [prefix, b"/", name].concat(),
        }
    }

    /// The target of a link.
    pub fn link_name(self) -> &'a [u8] {
        self.text(LINK_NAME)
    }

    /// Permissions.
    pub fn permissions(self) -> Result<u16> {
        Ok((self.number(MODE, "mode")? & 0o7777) as u16)
    }

    /// Owner.
    pub fn uid(self) -> Result<u32> {
        id(self.number(UID, "owner")?)
    }

    /// Group.
    pub fn gid(self) -> Result<u32> {
        id(self.number(GID, "group")?)
    }

    /// Bytes of the member's data in the archive.
    pub fn size(self) -> Result<u64> {
        length(self.number(SIZE, "length")?)
    }

    /// Time of the last change, seconds since 1970.
    pub fn mtime(self) -> Result<i64> {
        let seconds = self.number(MTIME, "time")?;
        i64::try_from(seconds).map_err(|_| refused(format!("a time of {seconds} seconds")))
    }

    /// Number of a device.
    pub fn device(self) -> Result<(u64, u64)> {
        let major = length(self.number(DEVICE_MAJOR, "device")?)?;
        Ok((major, length(self.number(DEVICE_MINOR, "device")?)?))
    }

    /// A number at any position, which is not negative; for maps of sparse files.
    pub fn length_at(self, field: Range<usize>) -> Result<u64> {
        length(self.number(field, "number in the map of a sparse file")?)
    }

    /// Text up to the first NUL.
    fn text(self, field: Range<usize>) -> &'a [u8] {
        let bytes = &self.0[field];
        &bytes[..bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())]
    }

    fn number(self, field: Range<usize>, what: &str) -> Result<i128> {
        let bytes = &self.0[field];
        number(bytes).ok_or_else(|| refused(format!("its {what} is '{}'", bytes.escape_ascii())))
    }
}

/// Parses octal digits, or GNU's form for numbers that do not fit: a marked first byte, and a number of two's
/// complement. A blank field is 0, as v7 has it.
fn number(bytes: &[u8]) -> Option<i128> {
    if let Some(&first @ (0x80 | 0xff)) = bytes.first() {
        let sign = if first == 0xff { -1 } else { 0 };
        return Some(bytes[1..].iter().fold(sign, |sum, &byte| sum << 8 | i128::from(byte)));
    }
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes[..end].trim_ascii().iter().try_fold(0, |sum, &byte| match byte {
        b'0'..=b'7' => Some(sum << 3 | i128::from(byte - b'0')),
        _ => None,
    })
}

/// Converts a number of a user or group. The largest number of 32 bits is no user.
pub fn id(number: i128) -> Result<u32> {
    let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| refused(format!("user or group {number}; Linux has 0 to 4294967294")))
}

fn length(number: i128) -> Result<u64> {
    u64::try_from(number).map_err(|_| refused(format!("a length of {number} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_marked() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"77777777"), Some(0o7777_7777));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"644\x009999"), Some(0o644));
        assert_eq!(number(&[0x80, 0, 0, 0, 1, 2, 3, 4]), Some(0x0102_0304));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x9c]), Some(-100));
        for wrong in [&b"8"[..], b"-1", b"0x7", b"6 4", &[0x81, 0, 0]] {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn ids_and_lengths_have_limits() {
        assert_eq!(id(70_000).ok(), Some(70_000));
        assert!(id(-1).is_err() && id(u32::MAX.into()).is_err() && id(1 << 40).is_err());
        assert!(length(-1).is_err() && length(1 << 64).is_err() && length(1 << 63).is_ok());
    }
}
