//! Reads LZO1X instructions, versions 0 and 1, from untrusted input.
//!
//! [`Input`] checks every access to the compressed bytes, [`Output`] every access to the decompressed ones. Copies have
//! a fixed size where both slices have room for it, and the exact size near the ends of the slices; both have the same
//! result. The checks are in the order of the stream: the bytes of the instruction, the start of its match, the
//! room for the match, the literals.

use super::error::LzoError;
use super::format::*;
use crate::load::{load_u32, load_u64};
use std::hint::select_unpredictable;

/// Length of a wide copy of literals; longer runs are copied with their exact length.
const WIDE: usize = 32;

/// Room for a short match written in words, 33 + 7, and for a copy of 4 literals.
const SHORT_ROOM: usize = 48;

/// Decompresses the whole of `src` into the front of `dst` and returns the length written.
///
/// It reads both variants. Bytes of `dst` past the result are unspecified; after an error all of `dst` is.
///
/// # Errors
/// Every variant of [`LzoError`]: `src` is not trusted.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, LzoError> {
    let mut input = Input { bytes: src, at: 0 };
    let mut output = Output { bytes: dst, at: 0 };
    let version = input.version()?;
    let mut state = first_literals(&mut input, &mut output)?;
    loop {
        if let Some(literals) = short_match(&mut input, &mut output)? {
            state = literals;
            continue;
        }
        let opcode = input.byte()?;
        let (distance, len);
        if opcode >= 64 {
            let high = input.byte()?;
            len = usize::from(opcode >> 5) + 1;
            distance = (usize::from(high) << 3 | usize::from(opcode >> 2 & 7)) + 1;
            state = usize::from(opcode & 3);
        } else if opcode >= MIDDLE_OPCODE {
            len = 2 + input.length(opcode & 31, MIDDLE_INLINE_MAX - 2)?;
            let word = input.le16()?;
            distance = usize::from(word >> 2) + 1;
            state = usize::from(word & 3);
        } else if opcode >= FAR_OPCODE {
            match far_instruction(&mut input, opcode, version)? {
                FarInstruction::End => return input.at_end().map(|()| output.at),
                FarInstruction::Zeros { len, literals } => {
                    output.write_zeros(len)?;
                    output.literals(&mut input, literals)?;
                    state = literals;
                    continue;
                }
                FarInstruction::Match { distance: d, len: l, literals } => {
                    (distance, len, state) = (d, l, literals)
                }
            }
        } else if state == 0 {
            let run = 3 + input.length(opcode, LITERALS_INLINE_MAX - 3)?;
            output.literals(&mut input, run)?;
            state = STATE_LONG_LITERALS;
            continue;
        } else {
            let high = input.byte()?;
            let base = usize::from(high) << 2 | usize::from(opcode >> 2);
            (distance, len) = if state == STATE_LONG_LITERALS {
                (base + AFTER_LITERALS_DISTANCE + 1, 3)
            } else {
                (base + 1, 2)
            };
            state = usize::from(opcode & 3);
        }
        output.copy_match(distance, len)?;
        output.literals(&mut input, state)?;
    }
}

/// Executes a near or middle match without extra bytes, and its literals, without a branch on which of the two it is.
///
/// Returns the number of literals, or `None` for another instruction and where the slices lack room for wide copies;
/// the caller then takes the general path.
#[inline(always)]
fn short_match(input: &mut Input<'_>, output: &mut Output<'_>) -> Result<Option<usize>, LzoError> {
    let Some(&[opcode, second, third, ..]) =
        input.bytes.get(input.at..).and_then(|tail| tail.first_chunk::<7>())
    else {
        return Ok(None);
    };
    if opcode <= MIDDLE_OPCODE || output.bytes.len() - output.at < SHORT_ROOM {
        return Ok(None);
    }
    let near = opcode >= 64;
    let (opcode, second) = (usize::from(opcode), usize::from(second));
    let near_distance = second << 3 | (opcode >> 2 & 7);
    let middle_distance = (second | usize::from(third) << 8) >> 2;
    let distance = 1 + select_unpredictable(near, near_distance, middle_distance);
    let len = select_unpredictable(near, (opcode >> 5) + 1, (opcode & 31) + 2);
    let literals = select_unpredictable(near, opcode, second) & 3;
    output.short_match(distance, len)?;
    input.at += if near { 2 } else { 3 };
    if let Some(room) = output.bytes.get_mut(output.at..).and_then(|tail| tail.first_chunk_mut::<4>()) {
        *room = load_u32(input.bytes, input.at).to_le_bytes();
    }
    input.at += literals;
    output.at += literals;
    Ok(Some(literals))
}

/// Copies the literals that a first byte above 17 announces, and returns the state after them.
fn first_literals(input: &mut Input<'_>, output: &mut Output<'_>) -> Result<usize, LzoError> {
    match input.bytes.get(input.at) {
        Some(&first) if first > FIRST_LITERALS_BASE => {
            input.at += 1;
            let run = usize::from(first - FIRST_LITERALS_BASE);
            output.literals(input, run)?;
            Ok(run.min(STATE_LONG_LITERALS))
        }
        _ => Ok(0),
    }
}

/// An instruction with opcode 16 to 31.
enum FarInstruction {
    Match { distance: usize, len: usize, literals: usize },
    Zeros { len: usize, literals: usize },
    End,
}

/// Reads the rest of the instruction that begins with `opcode`, 16 to 31.
#[inline]
fn far_instruction(input: &mut Input<'_>, opcode: u8, version: u8) -> Result<FarInstruction, LzoError> {
    // The format has the decoder look for the mark before it reads the length, whatever the length is.
    if version == VERSION_RLE
        && opcode >= ZERO_RUN_OPCODE
        && let Some(mark) = input.bytes.get(input.at..).and_then(|tail| tail.first_chunk())
        && u16::from_le_bytes(*mark) & ZERO_RUN_MARK == ZERO_RUN_MARK
    {
        let literals = usize::from(mark[0] & 3);
        input.at += 2;
        let more = input.byte()?;
        let len = (usize::from(more) << 3 | usize::from(opcode & 7)) + ZERO_RUN_MIN;
        return Ok(FarInstruction::Zeros { len, literals });
    }
    let len = 2 + input.length(opcode & 7, FAR_INLINE_MAX - 2)?;
    let word = input.le16()?;
    let distance = FAR_BASE + (usize::from(opcode & 8) << 11) + usize::from(word >> 2);
    match (distance, len) {
        (FAR_BASE, 3) => Ok(FarInstruction::End),
        (FAR_BASE, _) => Err(LzoError::BadEndMarker),
        _ => Ok(FarInstruction::Match { distance, len, literals: usize::from(word & 3) }),
    }
}

/// Returns a word that repeats the bytes of `source`, which are fewer than 8, and the number of its bytes that are
/// whole repetitions.
#[inline(always)]
fn pattern(source: &[u8]) -> (u64, usize) {
    let len = source.len();
    let mut word = 0;
    for (index, byte) in source.iter().enumerate() {
        word |= u64::from(*byte) << (8 * index);
    }
    (word.wrapping_mul(REPEAT[len & 7]), WHOLE[len & 7])
}

/// A word of n bytes, multiplied by REPEAT\[n\], is repeated over all 8 bytes.
const REPEAT: [u64; 8] = {
    let mut repeat = [0; 8];
    let mut len = 1;
    while len < 8 {
        let mut at = 0;
        while at < 8 {
            repeat[len] |= 1 << (8 * at);
            at += len;
        }
        len += 1;
    }
    repeat
};

/// The greatest multiple of n that is at most 8.
const WHOLE: [usize; 8] = [8, 8, 8, 6, 8, 5, 6, 7];

/// The compressed bytes and the position of the next to read.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    #[inline(always)]
    fn byte(&mut self) -> Result<u8, LzoError> {
        let byte = *self.bytes.get(self.at).ok_or(LzoError::InputOverrun)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline(always)]
    fn le16(&mut self) -> Result<u16, LzoError> {
        let tail = self.bytes.get(self.at..).and_then(|tail| tail.first_chunk());
        let word = u16::from_le_bytes(*tail.ok_or(LzoError::InputOverrun)?);
        self.at += 2;
        Ok(word)
    }

    /// Returns a length: `field`, or if `field` is 0, `base` plus the extra bytes.
    #[inline(always)]
    fn length(&mut self, field: u8, base: usize) -> Result<usize, LzoError> {
        if field != 0 { Ok(usize::from(field)) } else { self.long_length(base) }
    }

    /// Reads the extra bytes of a length: adds to `base` 255 for each zero byte, and the first other byte.
    #[inline]
    fn long_length(&mut self, base: usize) -> Result<usize, LzoError> {
        let mut len = base;
        loop {
            match self.byte()? {
                // Bounded by 255 times the input's length; saturation only
                // matters where addresses are shorter than 64 bits.
                0 => len = len.saturating_add(255),
                last => return Ok(len.saturating_add(usize::from(last))),
            }
        }
    }

    /// Reads the version prefix if there is one, and returns the version.
    fn version(&mut self) -> Result<u8, LzoError> {
        match *self.bytes {
            [END_OPCODE, version, ..] if self.bytes.len() >= MIN_VERSIONED_LEN => {
                self.at = 2;
                if version > VERSION_RLE { Err(LzoError::UnknownVersion(version)) } else { Ok(version) }
            }
            _ => Ok(0),
        }
    }

    fn at_end(&self) -> Result<(), LzoError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(LzoError::TrailingInput) }
    }
}

/// The decompressed bytes and the position of the next to write.
struct Output<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Output<'_> {
    /// Copies the next `len` literals of `input`.
    #[inline(always)]
    fn literals(&mut self, input: &mut Input<'_>, len: usize) -> Result<(), LzoError> {
        let source = input.bytes.get(input.at..).unwrap_or_default();
        let room = self.bytes.get_mut(self.at..).unwrap_or_default();
        if len <= WIDE
            && let Some(source) = source.first_chunk::<WIDE>()
            && let Some(room) = room.first_chunk_mut::<WIDE>()
        {
            *room = *source;
        } else {
            let source = source.get(..len).ok_or(LzoError::InputOverrun)?;
            room.get_mut(..len).ok_or(LzoError::OutputOverrun)?.copy_from_slice(source);
        }
        input.at += len;
        self.at += len;
        Ok(())
    }

    #[cold]
    fn write_zeros(&mut self, len: usize) -> Result<(), LzoError> {
        let room = self.bytes.get_mut(self.at..).and_then(|tail| tail.get_mut(..len));
        room.ok_or(LzoError::OutputOverrun)?.fill(0);
        self.at += len;
        Ok(())
    }

    /// Copies `len` bytes from `distance` back; source and destination may overlap.
    #[inline(always)]
    fn copy_match(&mut self, distance: usize, len: usize) -> Result<(), LzoError> {
        let from = self.at.checked_sub(distance).ok_or(LzoError::LookbehindOverrun)?;
        if distance >= 8
            && let Some(window) = self.bytes.get_mut(from..)
            && let Some(room) = window.len().checked_sub(distance + 8)
            && room >= len
        {
            let mut done = 0;
            while done < len {
                if let Some(word) = window.get(done..).and_then(|w| w.first_chunk::<8>()).copied()
                    && let Some(to) = window.get_mut(done + distance..).and_then(|w| w.first_chunk_mut::<8>())
                {
                    *to = word;
                }
                done += 8;
            }
            self.at += len;
            return Ok(());
        }
        self.copy_match_exactly(from, distance, len)
    }

    /// Copies a match of at most 33 bytes where there is room for at least [`SHORT_ROOM`].
    #[inline(always)]
    fn short_match(&mut self, distance: usize, len: usize) -> Result<(), LzoError> {
        let from = self.at.checked_sub(distance).ok_or(LzoError::LookbehindOverrun)?;
        let (written, room) = self.bytes.split_at_mut(self.at);
        self.at += len;
        let (Some(source), Some(room)) = (written.get(from..), room.first_chunk_mut::<SHORT_ROOM>()) else {
            return Ok(());
        };
        if let Some(first) = source.first_chunk::<16>() {
            room[..16].copy_from_slice(first);
            if len > 16 {
                self.rest_of_short(from + 16, distance, len - 16);
            }
        } else if distance >= 8 {
            self.rest_of_short(from, distance, len);
        } else {
            let (word, step) = pattern(source);
            let mut done = 0;
            while done < len {
                room[done..done + 8].copy_from_slice(&word.to_le_bytes());
                done += step;
            }
        }
        Ok(())
    }

    /// Copies `len` bytes in words from `from` to `from + distance`; `distance` is at least 8.
    #[inline(always)]
    fn rest_of_short(&mut self, from: usize, distance: usize, len: usize) {
        let Some(window) = self.bytes.get_mut(from..from + distance + len + 7) else { return };
        let mut done = 0;
        while done < len {
            let word = load_u64(window, done);
            window[distance + done..distance + done + 8].copy_from_slice(&word.to_le_bytes());
            done += 8;
        }
    }

    fn copy_match_exactly(&mut self, from: usize, distance: usize, len: usize) -> Result<(), LzoError> {
        let room = self.bytes.len() - self.at;
        if room < len {
            return Err(LzoError::OutputOverrun);
        }
        let window = &mut self.bytes[from..self.at + len];
        if distance == 1 {
            let byte = window[0];
            window.fill(byte);
        } else {
            // Each round doubles the length that can be copied at once.
            let mut done = 0;
            while done < len {
                let step = (distance + done).min(len - done);
                window.copy_within(..step, distance + done);
                done += step;
            }
        }
        self.at += len;
        Ok(())
    }
}
