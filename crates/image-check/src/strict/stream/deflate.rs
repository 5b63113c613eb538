//! The distances of a deflate stream's matches, RFC 1951. Symbols are decoded, and no output is made.

/// Base and number of further bits of the lengths 257 to 285.
const LENGTHS: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195,
    227, 258,
];
/// The number of bits that follow each of them.
const LENGTH_BITS: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
/// Order in which the lengths of the code of code lengths are stored.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// Longest code word, bits.
const WORD_BITS_MAX: usize = 15;
/// The symbol that ends a block.
const END: u16 = 256;

/// Returns the first distance above `window`, or above the bytes before it, in the first `len` bytes of a stream's
/// output. A stream that does not decode has no further distances; decoding reports it.
pub(super) fn too_far(stream: &[u8], window: u64, len: u64) -> Option<u64> {
    let mut bits = Bits { stream, at: 0 };
    let mut done = 0;
    while done < len {
        let is_last = bits.take(1)? == 1;
        let found = match bits.take(2)? {
            0 => {
                done += bits.skip_stored()?;
                None
            }
            1 => scan_block(&mut bits, &fixed_codes(), window, len, &mut done)?,
            2 => {
                let codes = dynamic_codes(&mut bits)?;
                scan_block(&mut bits, &codes, window, len, &mut done)?
            }
            _ => return None,
        };
        if found.is_some() || is_last {
            return found;
        }
    }
    None
}

/// Passes over the symbols of a block, and counts their output in `done`. Returns the first distance that is too long;
/// `None` without the inner option: the block does not decode.
fn scan_block(
    bits: &mut Bits<'_>,
    (literals, distances): &(Code, Code),
    window: u64,
    len: u64,
    done: &mut u64,
) -> Option<Option<u64>> {
    while *done < len {
        let symbol = literals.symbol(bits)?;
        match symbol.checked_sub(END) {
            None => *done += 1,
            Some(0) => return Some(None),
            Some(length) => {
                let number = usize::from(length) - 1;
                let (base, further_bits) = (*LENGTHS.get(number)?, LENGTH_BITS[number]);
                let run = u64::from(base) + u64::from(bits.take(further_bits)?);
                let distance = distance(distances.symbol(bits)?, bits)?;
                if distance > window || distance > *done {
                    return Some(Some(distance));
                }
                *done += run;
            }
        }
    }
    Some(None)
}

/// Reads the rest of a distance. Beyond the first four, symbols come in pairs that have one more bit than those before.
fn distance(symbol: u16, bits: &mut Bits<'_>) -> Option<u64> {
    let further_bits = match symbol {
        0..4 => return Some(u64::from(symbol) + 1),
        4..30 => (symbol / 2 - 1) as u8,
        _ => return None,
    };
    let base = (2 + u64::from(symbol % 2)) << further_bits;
    Some(base + u64::from(bits.take(further_bits)?) + 1)
}

fn fixed_codes() -> (Code, Code) {
    let literals: [u8; 288] = std::array::from_fn(|symbol| match symbol {
        0..144 => 8,
        144..256 => 9,
        256..280 => 7,
        _ => 8,
    });
    (Code::new(&literals), Code::new(&[5; 30]))
}

fn dynamic_codes(bits: &mut Bits<'_>) -> Option<(Code, Code)> {
    let literals = usize::from(bits.take(5)?) + 257;
    let distances = usize::from(bits.take(5)?) + 1;
    let count = usize::from(bits.take(4)?) + 4;
    let mut lengths = [0; 19];
    for symbol in &ORDER[..count] {
        lengths[*symbol] = bits.take(3)? as u8;
    }
    let code = Code::new(&lengths);
    let mut lengths: Vec<u8> = Vec::with_capacity(literals + distances);
    while lengths.len() < literals + distances {
        let (length, times) = match code.symbol(bits)? {
            16 => (*lengths.last()?, bits.take(2)? + 3),
            17 => (0, bits.take(3)? + 3),
            18 => (0, bits.take(7)? + 11),
            length => (length as u8, 1),
        };
        lengths.resize(lengths.len() + usize::from(times), length);
    }
    let (of_literals, of_distances) = lengths.get(..literals + distances)?.split_at(literals);
    Some((Code::new(of_literals), Code::new(of_distances)))
}

/// A canonical code: words of one length are consecutive numbers, in the order of their symbols.
struct Code {
    /// Words of each length.
    counts: [u16; WORD_BITS_MAX + 1],
    /// Symbols in the order of their words.
    symbols: Vec<u16>,
}

impl Code {
    /// Makes the code of symbols whose words have these lengths, at most 15; 0: a symbol has none.
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0; WORD_BITS_MAX + 1];
        let mut symbols = Vec::with_capacity(lengths.len());
        for (word_bits, count) in counts.iter_mut().enumerate().skip(1) {
            let before = symbols.len();
            let of_this = (0..).zip(lengths).filter(|(_, length)| usize::from(**length) == word_bits);
            symbols.extend(of_this.map(|(symbol, _)| symbol));
            *count = (symbols.len() - before) as u16;
        }
        Code { counts, symbols }
    }

    /// Reads a word, its highest bit first, and returns its symbol.
    fn symbol(&self, bits: &mut Bits<'_>) -> Option<u16> {
        // The word, and the first word of its length; and the symbols of shorter words.
        let (mut word, mut first, mut before) = (0, 0, 0);
        for count in &self.counts[1..] {
            word = word << 1 | usize::from(bits.take(1)?);
            first <<= 1;
            let count = usize::from(*count);
            // In a code with too many words, a word may precede the first one of its length.
            match word.checked_sub(first)? {
                number if number < count => return self.symbols.get(before + number).copied(),
                _ => {}
            }
            first += count;
            before += count;
        }
        None
    }
}

/// Bits of a stream, the lowest of a byte first.
struct Bits<'s> {
    stream: &'s [u8],
    /// The next bit.
    at: usize,
}

impl Bits<'_> {
    /// Takes up to 13 bits, of which the first is the lowest.
    fn take(&mut self, count: u8) -> Option<u16> {
        let byte = |n: usize| self.stream.get(self.at / 8 + n).copied();
        let word = [byte(0), byte(1), byte(2)].map(|byte| u32::from(byte.unwrap_or(0)));
        let bits = (word[0] | word[1] << 8 | word[2] << 16) >> (self.at % 8);
        self.at += usize::from(count);
        (self.at <= self.stream.len() * 8).then_some((bits & ((1 << count) - 1)) as u16)
    }

    /// Passes over the rest of a stored block, and returns the length of its data.
    fn skip_stored(&mut self) -> Option<u64> {
        let start = self.at.div_ceil(8);
        let len = u16::from_le_bytes([*self.stream.get(start)?, *self.stream.get(start + 1)?]);
        self.at = (start + 4 + usize::from(len)) * 8;
        Some(len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libdeflater::{CompressionLvl, Compressor};

    fn compress(bytes: &[u8], level: i32) -> Vec<u8> {
        let mut out = vec![0; bytes.len() + 1000];
        let len =
            Compressor::new(CompressionLvl::new(level).unwrap()).deflate_compress(bytes, &mut out).unwrap();
        out.truncate(len);
        out
    }

    /// Noise that repeats after `period` bytes, so that its matches have this distance.
    fn periodic(period: usize, len: usize) -> Vec<u8> {
        let noise = |i: u64| {
            let z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56
        };
        (0..len).map(|i| noise((i % period) as u64) as u8).collect()
    }

    #[test]
    fn the_longest_distance_of_real_streams_is_found() {
        for (period, len) in [(100, 300), (3000, 10_000), (20_000, 70_000)] {
            for level in [1, 6, 12] {
                let stream = compress(&periodic(period, len), level);
                let (period, len) = (period as u64, len as u64);
                assert_eq!(too_far(&stream, period, len), None, "{period} at level {level}");
                assert_eq!(too_far(&stream, period - 1, len), Some(period), "{period} at level {level}");
                // No match precedes the end of the first period.
                assert_eq!(too_far(&stream, period - 1, period), None);
            }
        }
        // Level 0 stores the data.
        assert_eq!(too_far(&compress(&periodic(100, 70_000), 0), 1, 70_000), None);
    }

    #[test]
    fn any_bytes_end() {
        let stream = compress(&periodic(3000, 10_000), 6);
        for cut in 0..stream.len() {
            let _ = too_far(&stream[..cut], 1 << 15, u64::MAX);
            let mut damaged = stream.clone();
            damaged[cut] ^= 0x5a;
            let _ = too_far(&damaged, 1 << 15, u64::MAX);
        }
        // A fixed block whose first symbol is a match: 257 (0000001), distance 0 (00000).
        assert_eq!(too_far(&[0b0000_0011, 0b0000_0010, 0], 1 << 15, 10), Some(1));
    }
}
