//! The Huffman codes of a deflate block, as tables from bits to lengths. Format: RFC 1951, 3.2.

/// Number of symbols for literals, the end of the block, and lengths of matches; all that a stream can declare.
const LITERALS_MAX: usize = 288;
const DISTANCES_MAX: usize = 32;
const SYMBOLS_MAX: usize = LITERALS_MAX + DISTANCES_MAX;
const CODE_LEN_MAX: usize = 15;
const END: usize = 256;
const LENGTH_FIRST: usize = 257;

/// Returns the length of the shortest match of a length symbol, counted from the first one, and the number of bits that are
/// added to it; zeroes if there is no such symbol. From the ninth on, each four have one more bit.
fn match_length(symbol: usize) -> (u16, u8) {
    match symbol {
        0..8 => (symbol as u16 + 3, 0),
        8..28 => {
            let extra_bits = symbol / 4 - 1;
            (((4 + symbol % 4) << extra_bits) as u16 + 3, extra_bits as u8)
        }
        28 => (258, 0),
        _ => (0, 0),
    }
}

/// The lengths of a block's codes: first those of literals and lengths, then those of distances.
pub(super) type CodeLengths = [u8; SYMBOLS_MAX];

/// A decoded symbol.
pub(super) enum Kind {
    /// The end of the block.
    End,
    /// A literal or a match: the number of bytes, and of the bits of all its codes.
    Bytes { len: usize, bits: usize },
}

/// The meaning of a code's bits; a code length of 0 is no code.
#[derive(Clone, Copy, Default)]
struct Entry {
    code_len: u8,
    extra_bits: u8,
    /// Length of a literal or of the shortest match; 0 for the end of the block.
    len: u16,
}

/// The two codes of a block.
pub(super) struct Codes {
    /// By the next bits, as many as the longest code has.
    literals: Box<[Entry]>,
    literals_mask: u64,
    distances: Box<[Entry]>,
    distances_mask: u64,
    end_code: (u64, usize),
}

impl Codes {
    /// Bound of the heap memory: two tables.
    pub(super) const HEAP_BYTES: usize = (2 * size_of::<Entry>()) << CODE_LEN_MAX;

    pub(super) fn new() -> Self {
        let table = || vec![Entry::default(); 1 << CODE_LEN_MAX].into_boxed_slice();
        Codes { literals: table(), literals_mask: 0, distances: table(), distances_mask: 0, end_code: (0, 0) }
    }

    /// Builds the tables for these lengths, of which the first `literals` are of literals and lengths.
    ///
    /// Returns `None` if the lengths are not those of a code, or there is no code for the end of the block.
    pub(super) fn build(&mut self, lengths: &CodeLengths, literals: usize) -> Option<()> {
        let (literal_lengths, distance_lengths) = lengths.split_at(literals);
        let end_code = &mut self.end_code;
        *end_code = (0, 0);
        self.literals_mask = build(&mut self.literals, literal_lengths, |symbol, code| {
            let (len, extra_bits) = match symbol.checked_sub(LENGTH_FIRST) {
                Some(length) => match_length(length),
                None => (u16::from(symbol != END), 0),
            };
            if symbol == END {
                *end_code = (u64::from(code), usize::from(literal_lengths[END]));
            }
            (len, extra_bits)
        })?;
        self.distances_mask = build(&mut self.distances, distance_lengths, |symbol, _| {
            let extra_bits = (symbol / 2).saturating_sub(1);
            (0, extra_bits as u8)
        })?;
        (self.end_code.1 > 0).then_some(())
    }

    /// Returns the bits of the end-of-block code, in the order of the stream, and their number.
    #[inline(always)]
    pub(super) fn end_code(&self) -> (u64, usize) {
        self.end_code
    }

    /// Decodes the symbol at the front of `bits`, of which at least 57 are valid: the longest match takes 48.
    #[inline(always)]
    pub(super) fn symbol(&self, bits: u64) -> Option<Kind> {
        let entry = self.literals.get((bits & self.literals_mask) as usize)?;
        let code_bits = usize::from(entry.code_len) + usize::from(entry.extra_bits);
        match (entry.code_len, entry.len) {
            (0, _) => None,
            (_, 0) => Some(Kind::End),
            (_, 1) => Some(Kind::Bytes { len: 1, bits: code_bits }),
            (code_len, base) => {
                let extra = bits >> code_len & ((1 << entry.extra_bits) - 1);
                let rest = bits >> code_bits;
                let distance = self.distances.get((rest & self.distances_mask) as usize)?;
                let distance_bits = usize::from(distance.code_len) + usize::from(distance.extra_bits);
                let bytes =
                    Kind::Bytes { len: usize::from(base) + extra as usize, bits: code_bits + distance_bits };
                (distance.code_len > 0).then_some(bytes)
            }
        }
    }
}

/// Builds the table of a canonical code. `meaning` gets each symbol with its code, in the order of the stream's bits,
/// and returns the length and the extra bits of its entry. Returns the mask of the table's index.
fn build(
    table: &mut [Entry],
    lengths: &[u8],
    mut meaning: impl FnMut(usize, u16) -> (u16, u8),
) -> Option<u64> {
    let longest = usize::from(lengths.iter().copied().max().unwrap_or(0));
    let mut counts = [0u16; CODE_LEN_MAX + 1];
    for len in lengths {
        *counts.get_mut(usize::from(*len))? += 1;
    }
    counts[0] = 0;
    let mut next = [0u16; CODE_LEN_MAX + 2];
    for len in 1..=longest {
        next[len + 1] = (next[len] + counts[len]) << 1;
        // More codes of this length than there are.
        if usize::from(next[len] + counts[len]) > 1 << len {
            return None;
        }
    }
    let table = table.get_mut(..1 << longest)?;
    table.fill(Entry::default());
    for (symbol, code_len) in lengths.iter().enumerate().filter(|(_, len)| **len > 0) {
        let len = usize::from(*code_len);
        let code = next[len].reverse_bits() >> (u16::BITS as usize - len);
        next[len] += 1;
        let (bytes, extra_bits) = meaning(symbol, code);
        let entry = Entry { code_len: *code_len, extra_bits, len: bytes };
        table.iter_mut().skip(usize::from(code)).step_by(1 << len).for_each(|slot| *slot = entry);
    }
    Some((1 << longest) - 1)
}

/// Returns the lengths of the fixed codes.
pub(super) fn fixed_lengths() -> CodeLengths {
    std::array::from_fn(|symbol| match symbol {
        0..144 => 8,
        144..256 => 9,
        256..280 => 7,
        280..LITERALS_MAX => 8,
        _ => 5,
    })
}

/// Reads the lengths of a block's codes from `bit` on, which it advances; returns them with the number of those of
/// literals and lengths.
pub(super) fn dynamic_lengths(stream: &[u8], bit: &mut usize) -> Option<(CodeLengths, usize)> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let mut take = |count: usize| take_bits(stream, bit, count);
    let (literals, distances, precodes) = (take(5)? + LENGTH_FIRST, take(5)? + 1, take(4)? + 4);
    let mut precode_lengths = [0; 19];
    for symbol in &ORDER[..precodes] {
        precode_lengths[*symbol] = take(3)? as u8;
    }
    let mut precode = [Entry::default(); 1 << 7];
    // The symbol stands in the field for the length.
    let mask = build(&mut precode, &precode_lengths, |symbol, _| (symbol as u16, 0))?;
    let mut lengths = [0; SYMBOLS_MAX];
    let mut filled = 0;
    while filled < literals + distances {
        let entry = precode[(peek(stream, *bit)? & mask) as usize];
        *bit += usize::from(entry.code_len);
        let mut take = |count: usize| take_bits(stream, bit, count);
        let (value, repeat) = match (entry.code_len, entry.len) {
            (0, _) => return None,
            (_, 16) => (*lengths.get(filled.checked_sub(1)?)?, take(2)? + 3),
            (_, 17) => (0, take(3)? + 3),
            (_, 18) => (0, take(7)? + 11),
            (_, len) => (len as u8, 1),
        };
        lengths.get_mut(filled..filled + repeat)?.fill(value);
        filled += repeat;
    }
    Some((lengths, literals))
}

/// Reads so many bits from `bit` on, which it advances.
fn take_bits(stream: &[u8], bit: &mut usize, count: usize) -> Option<usize> {
    let bits = peek(stream, *bit)? & ((1 << count) - 1);
    *bit += count;
    Some(bits as usize)
}

/// Reads at least 57 bits from `bit` on; `None` beyond the end of `stream`.
#[inline(always)]
pub(super) fn peek(stream: &[u8], bit: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*stream.get(bit / 8..)?.first_chunk()?) >> (bit % 8))
}
