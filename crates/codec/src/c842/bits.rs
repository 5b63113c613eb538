//! Reading and writing of bits, the most significant bit of a byte first.

use super::error::C842Error;

/// Most bits of one call.
pub(super) const BITS_MAX: u32 = 32;

/// Reads bits from bytes.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits read.
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        BitReader { bytes, at: 0 }
    }

    /// Takes the next `count` bits, at most [`BITS_MAX`] and at least 1, as a number.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> Result<u32, C842Error> {
        let end = self.at + count as usize;
        if end > self.bytes.len() * 8 {
            return Err(C842Error::InputOverrun);
        }
        let word = self.word_at(self.at / 8);
        let number = word << (self.at % 8) >> (64 - count);
        self.at = end;
        Ok(number as u32)
    }

    /// The 8 bytes at `at`, and zeros for those after the end.
    #[inline(always)]
    fn word_at(&self, at: usize) -> u64 {
        let tail = self.bytes.get(at..).unwrap_or_default();
        if let Some(word) = tail.first_chunk() {
            return u64::from_be_bytes(*word);
        }
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(tail) {
            *to = *from;
        }
        u64::from_be_bytes(word)
    }

    /// Bytes of the source.
    pub(super) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bits that were not taken: their number, and whether all are 0. At most 64 are looked at.
    pub(super) fn rest(&self) -> (usize, bool) {
        let count = self.bytes.len() * 8 - self.at;
        (count, self.word_at(self.at / 8) << (self.at % 8) == 0)
    }
}

/// Writes bits to bytes.
pub(super) struct BitWriter<'a> {
    bytes: &'a mut [u8],
    /// Bytes written.
    len: usize,
    /// The bits that are not yet in `bytes`; the last one is the lowest.
    pending: u64,
    /// Their number, below [`BITS_MAX`].
    pending_count: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        BitWriter { bytes, len: 0, pending: 0, pending_count: 0 }
    }

    /// Writes the low `count` bits of a number, at most [`BITS_MAX`]; its other bits are 0.
    #[inline(always)]
    pub(super) fn put(&mut self, number: u32, count: u32) -> Result<(), C842Error> {
        self.pending = self.pending << count | u64::from(number);
        self.pending_count += count;
        if self.pending_count >= BITS_MAX {
            self.pending_count -= BITS_MAX;
            let word = (self.pending >> self.pending_count) as u32;
            let room = self.bytes.get_mut(self.len..).and_then(|tail| tail.first_chunk_mut());
            *room.ok_or(C842Error::OutputOverrun)? = word.to_be_bytes();
            self.len += 4;
        }
        Ok(())
    }

    /// Writes zeros until the length is a multiple of `align` bytes, itself one of 4, and returns the length.
    pub(super) fn finish(mut self, align: usize) -> Result<usize, C842Error> {
        if self.pending_count > 0 {
            self.put(0, BITS_MAX - self.pending_count)?;
        }
        while !self.len.is_multiple_of(align) {
            self.put(0, BITS_MAX)?;
        }
        Ok(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let numbers: Vec<(u32, u32)> =
            (0..200u32).map(|i| (i % 32 + 1, i.wrapping_mul(0x9e37_79b1) >> (31 - i % 32))).collect();
        let mut bytes = [0xff; 500];
        let mut writer = BitWriter::new(&mut bytes);
        numbers.iter().for_each(|&(count, number)| writer.put(number, count).unwrap());
        let len = writer.finish(8).unwrap();
        let total: u32 = numbers.iter().map(|(count, _)| count).sum();
        assert_eq!(len, total.div_ceil(64) as usize * 8);
        let mut reader = BitReader::new(&bytes[..len]);
        for (count, number) in numbers {
            assert_eq!(reader.take(count), Ok(number));
        }
        assert_eq!(reader.rest(), (len * 8 - total as usize, true));
    }

    #[test]
    fn bits_are_in_the_order_of_the_format() {
        let mut bytes = [0; 8];
        let mut writer = BitWriter::new(&mut bytes);
        for (number, count) in [(0b101, 3), (0x1e, 5), (0xabc, 12), (0xd, 4)] {
            writer.put(number, count).unwrap();
        }
        assert_eq!(writer.finish(4), Ok(4));
        assert_eq!(bytes, [0b1011_1110, 0xab, 0xcd, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn both_ends_are_checked() {
        let mut reader = BitReader::new(&[0x12, 0x34, 0x56]);
        assert_eq!(reader.take(20), Ok(0x12345));
        assert_eq!(reader.rest(), (4, false));
        assert_eq!(reader.take(5), Err(C842Error::InputOverrun));
        assert_eq!(reader.take(4), Ok(6));
        assert_eq!(reader.take(1), Err(C842Error::InputOverrun));
        let mut bytes = [0; 7];
        let mut writer = BitWriter::new(&mut bytes);
        writer.put(1, 32).unwrap();
        writer.put(1, 31).unwrap();
        assert_eq!(writer.put(1, 1), Err(C842Error::OutputOverrun));
    }
}
