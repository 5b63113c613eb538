//! Chooses the shortest instruction for each phrase.

use super::bits::BitWriter;
use super::crc::crc32;
use super::error::C842Error;
use super::finder::Finder;
use super::format::*;

/// The working memory of [`compress`](super::compress), 25 KiB.
pub struct Workspace {
    pairs: Finder,
    quads: Finder,
    phrases: Finder,
}

impl Workspace {
    /// Allocates the memory.
    pub fn new() -> Self {
        Workspace { pairs: Finder::new(PAIRS), quads: Finder::new(QUADS), phrases: Finder::new(PHRASES) }
    }

    fn clear(&mut self) {
        self.pairs.clear();
        self.quads.clear();
        self.phrases.clear();
    }

    /// Adds the pieces of a phrase.
    fn add(&mut self, phrase: u64) {
        [48, 32, 16, 0].into_iter().for_each(|shift| self.pairs.add(phrase >> shift & 0xffff));
        [32, 0].into_iter().for_each(|shift| self.quads.add(phrase >> shift & 0xffff_ffff));
        self.phrases.add(phrase);
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Workspace::new()
    }
}

/// Compresses `src`, of at most 64 KiB, into the front of `dst` and returns the length written, a multiple of 8.
///
/// The result depends on `src` alone, not on earlier uses of `work`. Bytes of `dst` past the result are unspecified.
///
/// # Errors
/// [`C842Error::OutputOverrun`] when the result does not fit in `dst`; it always fits in `compress_bound` bytes.
pub fn compress(work: &mut Workspace, src: &[u8], dst: &mut [u8]) -> Result<usize, C842Error> {
    work.clear();
    let mut output = BitWriter::new(dst);
    let (phrases, short) = src.as_chunks::<PHRASE_LEN>();
    let (mut last, mut repeats) = (None, 0);
    for bytes in phrases {
        let phrase = u64::from_be_bytes(*bytes);
        if last == Some(phrase) {
            repeats += 1;
            if repeats == REPEATS_MAX {
                put_repeats(&mut output, &mut repeats)?;
            }
        } else {
            put_repeats(&mut output, &mut repeats)?;
            put_phrase(work, &mut output, phrase)?;
        }
        work.add(phrase);
        last = Some(phrase);
    }
    put_repeats(&mut output, &mut repeats)?;
    if !short.is_empty() {
        output.put(OP_SHORT, OPCODE_BITS)?;
        output.put(short.len() as u32, SHORT_BITS)?;
        short.iter().try_for_each(|byte| output.put(u32::from(*byte), 8))?;
    }
    output.put(OP_END, OPCODE_BITS)?;
    output.put(crc32(src), CRC_BITS)?;
    output.finish(ALIGN_LEN)
}

/// Writes the repeats that were counted.
fn put_repeats(output: &mut BitWriter, repeats: &mut u32) -> Result<(), C842Error> {
    match std::mem::take(repeats) {
        0 => Ok(()),
        count => output.put(OP_REPEAT << REPEAT_BITS | (count - 1), OPCODE_BITS + REPEAT_BITS),
    }
}

fn put_phrase(work: &Workspace, output: &mut BitWriter, phrase: u64) -> Result<(), C842Error> {
    if phrase == 0 {
        return output.put(OP_ZEROS, OPCODE_BITS);
    }
    if let Some(index) = work.phrases.find(phrase) {
        return output.put(OP_PHRASE << PHRASES.index_bits | index, OPCODE_BITS + PHRASES.index_bits);
    }
    let (first, second) = (HalfOut::of(work, (phrase >> 32) as u32), HalfOut::of(work, phrase as u32));
    output.put(first.way * HALF_WAYS + second.way, OPCODE_BITS)?;
    output.put(first.number, first.bits)?;
    output.put(second.number, second.bits)
}

/// Half a phrase as it is written.
struct HalfOut {
    /// The place of the way in [`HALVES`].
    way: u32,
    /// All indices and bytes as one number.
    number: u32,
    /// Its bits, at most 32.
    bits: u32,
}

impl HalfOut {
    /// The shortest way: no two ways that are possible at the same time are equally short.
    #[inline(always)]
    fn of(work: &Workspace, half: u32) -> Self {
        if let Some(index) = work.quads.find(u64::from(half)) {
            return HalfOut::new(Half::Quad, index, QUADS.index_bits);
        }
        let (high, low) = (half >> 16, half & 0xffff);
        let bits = PAIRS.index_bits;
        match (work.pairs.find(u64::from(high)), work.pairs.find(u64::from(low))) {
            (Some(high), Some(low)) => HalfOut::new(Half::Pairs, high << bits | low, 2 * bits),
            (Some(high), None) => HalfOut::new(Half::PairThenPlain, high << 16 | low, bits + 16),
            (None, Some(low)) => HalfOut::new(Half::PlainThenPair, high << bits | low, 16 + bits),
            (None, None) => HalfOut::new(Half::Plain, half, 32),
        }
    }

    fn new(half: Half, number: u32, bits: u32) -> Self {
        HalfOut { way: half as u32, number, bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_at_its_number() {
        for (number, half) in HALVES.into_iter().enumerate() {
            assert_eq!(half as usize, number);
        }
    }
}
