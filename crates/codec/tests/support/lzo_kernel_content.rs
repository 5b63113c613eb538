//! Generates the content that the kernel compressed for the fixtures, from a cluster's index.
//!
//! A cluster is the unit that f2fs compresses. The content of a cluster depends on its index and length alone, so that
//! the repository holds compressed bytes only. `examples/f2fs_clusters.rs` writes the file from which the fixtures
//! were made. A change here makes the fixtures useless.

/// The number of kinds of content; cluster `index` is of kind `index % KINDS`.
pub const KINDS: usize = 8;

/// A linear congruential generator; each number is its state, shifted.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as usize
    }

    /// Returns a number in `low..=high`.
    fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.next() % (high - low + 1)
    }
}

/// Returns the `len_bytes` bytes of cluster `index`.
pub fn cluster(index: usize, len_bytes: usize) -> Vec<u8> {
    let mut noise = Noise((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ len_bytes as u64);
    let mut data = Vec::with_capacity(len_bytes + 4096);
    // Seven kinds have one type of piece each, and the eighth has all types.
    let fixed = Some(index % KINDS).filter(|&kind| kind < KINDS - 1);
    while data.len() < len_bytes {
        let kind = fixed.unwrap_or_else(|| noise.next() % (KINDS - 1));
        piece(kind, &mut noise, &mut data);
    }
    data.truncate(len_bytes);
    data
}

/// Appends a piece of kind `kind`, of some 8 to 2500 bytes.
fn piece(kind: usize, noise: &mut Noise, data: &mut Vec<u8>) {
    const WORDS: [&str; 12] =
        ["page", "swap", "the", "of", "kernel", "run", "zero", "a", "match", "literal", "far", "block"];
    match kind {
        // Text.
        0 => {
            for _ in 0..8 {
                data.extend(WORDS[noise.next() % WORDS.len()].bytes());
                data.push(b" \n,."[noise.next() % 4]);
            }
        }
        // Zero runs around the shortest that the bitstream has, and up to 100.
        1 => {
            literals(noise, 9, data);
            data.resize(data.len() + noise.within(1, 100), 0);
        }
        // Zero runs around the longest instruction, 2051, and of any length below.
        2 => {
            literals(noise, 5, data);
            let len = if noise.next().is_multiple_of(2) {
                noise.within(2040, 2070)
            } else {
                noise.within(20, 2060)
            };
            data.resize(data.len() + len, 0);
        }
        // Structured words: pointers of one region, counters, flags.
        3 => {
            let base = 0xffff_8880_0000_0000_u64;
            data.extend((base + (noise.next() as u64 & 0xffff) * 64).to_le_bytes());
            data.extend((noise.next() as u32 % 100).to_le_bytes());
            data.extend((1u32 << (noise.next() % 8)).to_le_bytes());
        }
        // Repeats of noise from anywhere before, of lengths around those that need extra bytes.
        4 => {
            literals(noise, 40, data);
            let len = [noise.within(3, 12), noise.within(30, 40), noise.within(240, 290)][noise.next() % 3];
            let from = noise.next() % data.len();
            (0..len).for_each(|at| data.push(data[from + at]));
        }
        // Noise between long runs, so that a compressor still remembers it from as far back as there
        // is; then repeats of it from there, of lengths around 264, with few literals between.
        5 => {
            let far = data.len().saturating_sub(noise.within(16_300, 49_200));
            if far == 0 {
                literals(noise, 400, data);
                let byte = noise.next() as u8;
                data.resize(data.len() + 1000, byte);
            } else {
                let len = noise.within(250, 275);
                (0..len).for_each(|at| data.push(data[far + at]));
                literals(noise, 4, data);
            }
        }
        // One byte repeated, then literals: long matches at distance 1, long literal runs.
        _ => {
            let byte = noise.next() as u8;
            data.resize(data.len() + noise.within(1, 1200), byte);
            literals(noise, 600, data);
        }
    }
}

/// Appends fewer than `below` bytes of noise, at least one of them when the output is empty.
fn literals(noise: &mut Noise, below: usize, data: &mut Vec<u8>) {
    let least = usize::from(data.is_empty());
    let len = noise.within(least, below - 1);
    data.extend(std::iter::repeat_with(|| noise.next() as u8).take(len));
}
