//! A slow, plain inflater: one bit at a time, written from RFC 1951 and nothing else.
//!
//! Tests compare encoders' output with what it decodes, and the longest distance of a match with the window.

/// The output of a stream, and facts about it.
pub struct Inflated {
    pub bytes: Vec<u8>,
    /// The longest distance of a match; 0 without matches.
    pub distance_max: usize,
    /// Bytes of the stream, the last one perhaps in part.
    pub consumed: usize,
}

/// Decodes the raw stream at the front of `src`, which must be valid.
pub fn inflate(src: &[u8]) -> Inflated {
    let mut bits = Bits { src, at: 0 };
    let mut out = Inflated { bytes: Vec::new(), distance_max: 0, consumed: 0 };
    loop {
        let is_last = bits.take(1) == 1;
        match bits.take(2) {
            0 => stored(&mut bits, &mut out),
            1 => compressed(&mut bits, &mut out, &fixed_literals(), &Code::new(&[5; 30])),
            2 => {
                let (literals, distances) = dynamic_codes(&mut bits);
                compressed(&mut bits, &mut out, &literals, &distances);
            }
            kind => panic!("block of kind {kind}"),
        }
        if is_last {
            out.consumed = bits.at.div_ceil(8);
            return out;
        }
    }
}

struct Bits<'a> {
    src: &'a [u8],
    /// In bits.
    at: usize,
}

impl Bits<'_> {
    /// The next `count` bits, the first of them the lowest.
    fn take(&mut self, count: u32) -> usize {
        (0..count).fold(0, |value, n| {
            let bit = self.src[self.at / 8] >> (self.at % 8) & 1;
            self.at += 1;
            value | usize::from(bit) << n
        })
    }
}

/// A canonical Huffman code: pairs of a length and a code word, with their symbol.
struct Code(std::collections::HashMap<(u32, usize), usize>);

impl Code {
    /// Section 3.2.2: codes of a length are consecutive, in the order of symbols.
    fn new(lengths: &[u32]) -> Self {
        let mut words = std::collections::HashMap::new();
        let mut next = 0;
        for length in 1..=15 {
            next <<= 1;
            for symbol in (0..lengths.len()).filter(|s| lengths[*s] == length) {
                words.insert((length, next), symbol);
                next += 1;
            }
        }
        Code(words)
    }

    fn symbol(&self, bits: &mut Bits<'_>) -> usize {
        let mut word = 0;
        for length in 1..=15 {
            word = word << 1 | bits.take(1);
            if let Some(symbol) = self.0.get(&(length, word)) {
                return *symbol;
            }
        }
        panic!("no symbol has the code {word:b}")
    }
}

fn fixed_literals() -> Code {
    let lengths: Vec<u32> = [[8].repeat(144), [9].repeat(112), [7].repeat(24), [8].repeat(8)].concat();
    Code::new(&lengths)
}

/// Section 3.2.7: the lengths of both codes, themselves compressed.
fn dynamic_codes(bits: &mut Bits<'_>) -> (Code, Code) {
    let (literals, distances, count) = (257 + bits.take(5), 1 + bits.take(5), 4 + bits.take(4));
    let mut order = [0; 19];
    for symbol in &[16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15][..count] {
        order[*symbol as usize] = bits.take(3) as u32;
    }
    let code = Code::new(&order);
    let mut lengths: Vec<u32> = Vec::new();
    while lengths.len() < literals + distances {
        let (length, times) = match code.symbol(bits) {
            16 => (*lengths.last().unwrap(), 3 + bits.take(2)),
            17 => (0, 3 + bits.take(3)),
            18 => (0, 11 + bits.take(7)),
            length => (length as u32, 1),
        };
        lengths.extend([length].repeat(times));
    }
    assert_eq!(lengths.len(), literals + distances);
    (Code::new(&lengths[..literals]), Code::new(&lengths[literals..]))
}

fn stored(bits: &mut Bits<'_>, out: &mut Inflated) {
    bits.at = bits.at.next_multiple_of(8);
    let (len, inverted) = (bits.take(16), bits.take(16));
    assert_eq!(len ^ 0xffff, inverted);
    out.bytes.extend((0..len).map(|_| bits.take(8) as u8));
}

/// Section 3.2.5: literals and matches up to the end of the block.
fn compressed(bits: &mut Bits<'_>, out: &mut Inflated, literals: &Code, distances: &Code) {
    loop {
        let len = match literals.symbol(bits) {
            literal @ 0..=255 => {
                out.bytes.push(literal as u8);
                continue;
            }
            256 => return,
            symbol @ 257..=264 => symbol - 254,
            285 => 258,
            symbol @ 265..=284 => extended(bits, symbol - 265, 4) + 3,
            symbol => panic!("length symbol {symbol}"),
        };
        let distance = match distances.symbol(bits) {
            symbol @ 0..=3 => symbol + 1,
            symbol @ 4..=29 => extended(bits, symbol - 4, 2) + 1,
            symbol => panic!("distance symbol {symbol}"),
        };
        assert!(distance <= out.bytes.len(), "a match of {distance} before the beginning");
        out.distance_max = out.distance_max.max(distance);
        (0..len).for_each(|_| out.bytes.push(out.bytes[out.bytes.len() - distance]));
    }
}

/// The value of symbol `n` of those with extra bits, of which `per_bit` have the same number of them, from 1 on.
fn extended(bits: &mut Bits<'_>, n: usize, per_bit: usize) -> usize {
    let extra = n / per_bit + 1;
    ((per_bit + n % per_bit) << extra) + bits.take(extra as u32)
}
