//! Reads 842 instructions from untrusted input.

use super::bits::BitReader;
use super::crc::crc32;
use super::error::C842Error;
use super::format::*;

/// Decompresses the whole of `src` into the front of `dst` and returns the length written.
///
/// Bytes of `dst` past the result are unspecified; after an error all of `dst` is.
///
/// # Errors
/// Every variant of [`C842Error`]: `src` is not trusted.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, C842Error> {
    let mut input = BitReader::new(src);
    let mut output = Output { bytes: dst, len: 0 };
    loop {
        let opcode = input.take(OPCODE_BITS)?;
        match opcode {
            OP_PHRASE => {
                let phrase = output.earlier::<{ PHRASE_LEN }>(PHRASES, &mut input)?;
                output.push(u64::from_be_bytes(phrase))?;
            }
            OP_REPEAT => {
                let last = output.last().ok_or(C842Error::NotYetWritten)?;
                let repeats = input.take(REPEAT_BITS)? + 1;
                (0..repeats).try_for_each(|_| output.push(last))?;
            }
            OP_ZEROS => output.push(0)?,
            OP_SHORT => {
                output.push_short(&mut input)?;
                return match input.take(OPCODE_BITS)? {
                    OP_END => end(&mut input, &output),
                    _ => Err(C842Error::NotAtEnd),
                };
            }
            OP_END => return end(&mut input, &output),
            _ => match (HALVES.get((opcode / HALF_WAYS) as usize), HALVES.get((opcode % HALF_WAYS) as usize))
            {
                (Some(first), Some(second)) => {
                    let first = output.half(*first, &mut input)?;
                    let second = output.half(*second, &mut input)?;
                    output.push(u64::from(first) << 32 | u64::from(second))?;
                }
                _ => return Err(C842Error::UnknownOpcode(opcode as u8)),
            },
        }
    }
}

/// Checks what follows the opcode of the end: the checksum, and the padding.
fn end(input: &mut BitReader, output: &Output) -> Result<usize, C842Error> {
    let crc = input.take(CRC_BITS)?;
    let (rest, is_zero) = input.rest();
    if rest >= ALIGN_LEN * 8 || !is_zero || !input.len_bytes().is_multiple_of(ALIGN_LEN) {
        return Err(C842Error::Padding);
    }
    let written = output.bytes.get(..output.len).unwrap_or_default();
    if crc32(written) == crc { Ok(output.len) } else { Err(C842Error::Checksum) }
}

/// The destination. Its length is a multiple of a phrase's, but after the last bytes.
struct Output<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Output<'_> {
    #[inline(always)]
    fn push(&mut self, phrase: u64) -> Result<(), C842Error> {
        let room = self.bytes.get_mut(self.len..).and_then(|tail| tail.first_chunk_mut());
        *room.ok_or(C842Error::OutputOverrun)? = phrase.to_be_bytes();
        self.len += PHRASE_LEN;
        Ok(())
    }

    /// Reads the number of the last bytes, and the bytes.
    fn push_short(&mut self, input: &mut BitReader) -> Result<(), C842Error> {
        let count = input.take(SHORT_BITS)? as usize;
        if count == 0 {
            return Err(C842Error::EmptyShortPhrase);
        }
        let room = self.bytes.get_mut(self.len..self.len + count).ok_or(C842Error::OutputOverrun)?;
        for byte in room {
            *byte = input.take(8)? as u8;
        }
        self.len += count;
        Ok(())
    }

    /// The last phrase.
    fn last(&self) -> Option<u64> {
        let written = self.bytes.get(..self.len)?;
        written.last_chunk().map(|phrase| u64::from_be_bytes(*phrase))
    }

    /// Reads half a phrase.
    #[inline(always)]
    fn half(&self, half: Half, input: &mut BitReader) -> Result<u32, C842Error> {
        let plain = |input: &mut BitReader| input.take(16);
        let pair =
            |input: &mut BitReader| self.earlier(PAIRS, input).map(|p| u32::from(u16::from_be_bytes(p)));
        let (high, low) = match half {
            Half::Plain => return input.take(32),
            Half::Quad => return self.earlier(QUADS, input).map(u32::from_be_bytes),
            Half::PlainThenPair => (plain(input)?, pair(input)?),
            Half::PairThenPlain => (pair(input)?, plain(input)?),
            Half::Pairs => (pair(input)?, pair(input)?),
        };
        Ok(high << 16 | low)
    }

    /// Reads an index, and returns the unit of the ring that it names, of `LEN` bytes.
    #[inline(always)]
    fn earlier<const LEN: usize>(&self, ring: Ring, input: &mut BitReader) -> Result<[u8; LEN], C842Error> {
        let offset = input.take(ring.index_bits)? as usize * LEN;
        // The unit is in this round of the ring if it is before the end of the output, and otherwise in the last one.
        let round = self.len - self.len % ring.len_bytes();
        let at = match offset < self.len - round {
            true => round + offset,
            false => (round + offset).checked_sub(ring.len_bytes()).ok_or(C842Error::NotYetWritten)?,
        };
        let unit = self.bytes.get(at..).and_then(|tail| tail.first_chunk());
        unit.copied().ok_or(C842Error::NotYetWritten)
    }
}
