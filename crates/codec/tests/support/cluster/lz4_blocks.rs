//! Makes LZ4 blocks for tests: a simple encoder with any window, and random sequences.

use super::Random;

fn length(out: &mut Vec<u8>, len: usize) {
    if len >= 15 {
        out.extend(std::iter::repeat_n(255, (len - 15) / 255));
        out.push(((len - 15) % 255) as u8);
    }
}

/// Appends a sequence with a match of (offset, length); a sequence without match is the last of its block.
pub fn sequence(out: &mut Vec<u8>, literals: &[u8], matched: Option<(usize, usize)>) {
    let (offset, len) = matched.unwrap_or((0, 4));
    out.push((literals.len().min(15) << 4 | (len - 4).min(15)) as u8);
    length(out, literals.len());
    out.extend(literals);
    if matched.is_some() {
        out.extend((offset as u16).to_le_bytes());
        length(out, len - 4);
    }
}

/// Encodes with matches that reach back `window` bytes at len_max: the last position with the same 4 bytes.
pub fn encode(plain: &[u8], window: usize) -> Vec<u8> {
    let mut seen = std::collections::HashMap::new();
    let (mut out, mut at, mut literals_at) = (Vec::new(), 0, 0);
    while at + 12 < plain.len() {
        let found = seen.insert(&plain[at..at + 4], at);
        let Some(from) = found.filter(|from| at - from <= window) else {
            at += 1;
            continue;
        };
        let len_max = plain.len() - 5 - at;
        let len = (0..len_max).take_while(|i| plain[from + i] == plain[at + i]).count();
        sequence(&mut out, &plain[literals_at..at], Some((at - from, len)));
        at += len;
        literals_at = at;
    }
    sequence(&mut out, &plain[literals_at..], None);
    out
}

/// Makes a valid block of random sequences: short and long runs, near and far offsets up to `window`, about `len` bytes
/// of output. Tests get the output from the slow decoder.
pub fn random_block(seed: u64, len: usize, window: usize) -> Vec<u8> {
    let mut random = Random(seed | 1 << 41);
    let (mut out, mut produced) = (Vec::new(), 0);
    let run = |random: &mut Random| match random.below(16) {
        0 => random.below(2000),
        1 => random.below(300),
        _ => random.below(20),
    };
    loop {
        let mut literals = run(&mut random);
        if produced == 0 || produced >= len {
            literals = literals.max(12);
        }
        let bytes: Vec<u8> = (0..literals).map(|_| random.next() as u8).collect();
        if produced >= len {
            sequence(&mut out, &bytes, None);
            return out;
        }
        produced += literals;
        let reach = produced.min(window);
        let offset = match random.below(4) {
            0 => 1 + random.below(reach.min(20)),
            1 => reach - random.below(reach.min(20)),
            _ => 1 + random.below(reach),
        };
        let matched = 4 + run(&mut random);
        sequence(&mut out, &bytes, Some((offset, matched)));
        produced += matched;
    }
}
