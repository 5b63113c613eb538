//! Writes LZO1X instructions.
//!
//! The format announces a run of one to three literals in two bits of the instruction *before* it, which is already
//! written; [`Emitter`] remembers the position of these bits. It knows the encodings and the output's bounds; matches
//! are found in `compress`.

use super::error::LzoError;
use super::format::*;
use std::hint::select_unpredictable;

/// Length of a wide copy: shorter runs of literals are copied with this fixed size where both slices have room.
const WIDE: usize = 32;

/// Bytes that [`Emitter::sequence`] may write: literal-count bits, a length, a wide copy of literals, a match.
const SEQUENCE: usize = 48;

/// A stream that is being written.
pub(super) struct Emitter<'a> {
    out: &'a mut [u8],
    at: usize,
    /// Position of the byte with the two literal-count bits of the last instruction; `None` before the first
    /// instruction.
    state_at: Option<usize>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Emitter { out, at: 0, state_at: None }
    }

    /// Writes the prefix of a versioned stream.
    pub(super) fn version(&mut self, version: u8) -> Result<(), LzoError> {
        self.put([END_OPCODE, version])
    }

    /// Ends the stream and returns its length.
    pub(super) fn end(mut self) -> Result<usize, LzoError> {
        self.put(END_MARKER)?;
        Ok(self.at)
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), LzoError> {
        let room = self.out.get_mut(self.at..).and_then(|tail| tail.first_chunk_mut::<N>());
        *room.ok_or(LzoError::OutputOverrun)? = bytes;
        self.at += N;
        Ok(())
    }

    /// Writes the extra bytes of a length: a zero for each 255, then the remainder, 1 to 255.
    fn put_excess(&mut self, mut excess: usize) -> Result<(), LzoError> {
        while excess > 255 {
            self.put([0])?;
            excess -= 255;
        }
        self.put([excess as u8])
    }

    /// Writes the literals `src[from..to]`; there may be only one run between two matches.
    pub(super) fn literals(&mut self, src: &[u8], from: usize, to: usize) -> Result<(), LzoError> {
        let len = to - from;
        match self.state_at {
            Some(at) if len <= STATE_LITERALS_MAX => {
                if let Some(byte) = self.out.get_mut(at) {
                    *byte |= len as u8;
                }
            }
            Some(_) if len <= LITERALS_INLINE_MAX => self.put([(len - 3) as u8])?,
            None if len <= FIRST_LITERALS_MAX => {
                if len > 0 {
                    self.put([FIRST_LITERALS_BASE + len as u8])?;
                }
            }
            _ => {
                self.put([0])?;
                self.put_excess(len - LITERALS_INLINE_MAX)?;
            }
        }
        self.copy(src, from, len)
    }

    /// Writes the literals `src[from..to]`, then a match.
    ///
    /// Most sequences are short, and which of the short forms a sequence takes is close to random. So the short forms
    /// are written without a branch on the form.
    #[inline(always)]
    pub(super) fn sequence(
        &mut self,
        src: &[u8],
        from: usize,
        to: usize,
        distance: usize,
        len: usize,
    ) -> Result<(), LzoError> {
        let run = to - from;
        if run <= LITERALS_INLINE_MAX
            && distance <= MIDDLE_MAX_DISTANCE
            && len <= MIDDLE_INLINE_MAX + 255
            && let Some(state_at) = self.state_at
            && let Some(literals) = src.get(from..).and_then(|tail| tail.first_chunk::<WIDE>())
            && let Some(room) =
                self.out.get_mut(state_at..).and_then(|tail| tail.first_chunk_mut::<SEQUENCE>())
        {
            // `room` begins at the byte with the literal-count bits.
            let head = self.at - state_at;
            let long = run > STATE_LITERALS_MAX;
            room[0] |= select_unpredictable(long, 0, run as u8);
            room[head & 7] = run.wrapping_sub(3) as u8;
            let start = (head & 7) + usize::from(long);
            room[start..start + WIDE].copy_from_slice(literals);
            let d = distance - 1;
            let near = (distance <= NEAR_MAX_DISTANCE) & (len <= NEAR_MAX_LEN);
            let near_word = (len - 1) << 5 | (d & 7) << 2 | d >> 3 << 8;
            let middle_word = usize::from(MIDDLE_OPCODE) | (len - 2) | d << 10;
            let long_word = usize::from(MIDDLE_OPCODE) | len.wrapping_sub(MIDDLE_INLINE_MAX) << 8 | d << 18;
            let extra = len > MIDDLE_INLINE_MAX;
            let middle_word = select_unpredictable(extra, long_word, middle_word);
            let word = select_unpredictable(near, near_word, middle_word);
            let end = (start + run) & 31;
            room[end..end + 4].copy_from_slice(&(word as u32).to_le_bytes());
            self.at = state_at + end + 3 + usize::from(extra) - usize::from(near);
            self.state_at = Some(self.at - 2);
            return Ok(());
        }
        self.general_sequence(src, from, to, distance, len)
    }

    /// The general case of [`Emitter::sequence`]. It is not inlined, because it would take registers from the search
    /// loop.
    #[inline(never)]
    fn general_sequence(
        &mut self,
        src: &[u8],
        from: usize,
        to: usize,
        distance: usize,
        len: usize,
    ) -> Result<(), LzoError> {
        self.literals(src, from, to)?;
        self.copy_match(distance, len)
    }

    #[inline(always)]
    fn copy(&mut self, src: &[u8], from: usize, len: usize) -> Result<(), LzoError> {
        let tail = self.out.get_mut(self.at..).unwrap_or_default();
        if len <= WIDE {
            let source = src.get(from..).and_then(|s| s.first_chunk::<WIDE>());
            if let (Some(source), Some(room)) = (source, tail.first_chunk_mut::<WIDE>()) {
                *room = *source;
                self.at += len;
                return Ok(());
            }
        }
        let room = tail.get_mut(..len).ok_or(LzoError::OutputOverrun)?;
        room.copy_from_slice(src.get(from..from + len).ok_or(LzoError::InputOverrun)?);
        self.at += len;
        Ok(())
    }

    /// Writes a match of `len >= 3` bytes at a distance of `1..=FAR_MAX_DISTANCE`. Beyond `NEAR_MAX_DISTANCE` a match
    /// of 3 bytes saves nothing.
    fn copy_match(&mut self, distance: usize, len: usize) -> Result<(), LzoError> {
        if distance <= NEAR_MAX_DISTANCE && len <= NEAR_MAX_LEN {
            let d = distance - 1;
            self.put([((len - 1) << 5 | (d & 7) << 2) as u8, (d >> 3) as u8])?;
        } else if distance <= MIDDLE_MAX_DISTANCE {
            let [low, high] = (((distance - 1) << 2) as u16).to_le_bytes();
            if len <= MIDDLE_INLINE_MAX {
                self.put([MIDDLE_OPCODE | (len - 2) as u8, low, high])?;
            } else {
                self.put([MIDDLE_OPCODE])?;
                self.put_excess(len - MIDDLE_INLINE_MAX)?;
                self.put([low, high])?;
            }
        } else {
            self.far_match(distance, len)?;
        }
        self.state_at = Some(self.at - 2);
        Ok(())
    }

    fn far_match(&mut self, distance: usize, len: usize) -> Result<(), LzoError> {
        let d = distance - FAR_BASE;
        let opcode = FAR_OPCODE | (d >> 14 << 3) as u8;
        let [low, high] = ((d << 2) as u16).to_le_bytes();
        if len <= FAR_INLINE_MAX {
            return self.put([opcode | (len - 2) as u8, low, high]);
        }
        self.put([opcode])?;
        self.put_excess(len - FAR_INLINE_MAX)?;
        self.put([low, high])
    }

    /// Writes a run of `ZERO_RUN_MIN..=ZERO_RUN_MAX` zeros. It must not be the first instruction: a decoder would read
    /// its opcode as literals there.
    pub(super) fn zero_run(&mut self, len: usize) -> Result<(), LzoError> {
        let len = len - ZERO_RUN_MIN;
        let [low, high] = ZERO_RUN_MARK.to_le_bytes();
        self.put([ZERO_RUN_OPCODE | (len & 7) as u8, low, high, (len >> 3) as u8])?;
        self.state_at = Some(self.at - 3);
        Ok(())
    }
}
