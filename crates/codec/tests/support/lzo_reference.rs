//! A slow, plain LZO1X decoder: one byte at a time, one rule per line.
//!
//! It is written from `docs/formats/lzo.md` and nothing else. Tests and fuzz targets compare the fast decoder with it.
//! It shares no code with the fast decoder, and with the crate only the error type.

use pagefold_codec::lzo::LzoError;

/// The state of one [`decode`].
struct Decoder<'a> {
    input: std::slice::Iter<'a, u8>,
    output: Vec<u8>,
    room: usize,
}

/// Decodes all of `src` into at most `room` bytes and returns them.
pub fn decode(src: &[u8], room: usize) -> Result<Vec<u8>, LzoError> {
    let mut decoder = Decoder { input: src.iter(), output: Vec::new(), room };
    let mut version = 0;
    if src.len() >= 5 && src[0] == 17 {
        decoder.byte()?;
        version = decoder.byte()?;
        if version > 1 {
            return Err(LzoError::UnknownVersion(version));
        }
    }
    let mut state = 0;
    if let Some(&first) = decoder.input.as_slice().first()
        && first >= 18
    {
        decoder.byte()?;
        decoder.literals(usize::from(first) - 17)?;
        state = (usize::from(first) - 17).min(4);
    }
    while let Some(next) = decoder.instruction(version, state)? {
        state = next;
    }
    if decoder.input.len() > 0 { Err(LzoError::TrailingInput) } else { Ok(decoder.output) }
}

impl Decoder<'_> {
    /// Executes one instruction; returns the next state, or `None` at the end.
    fn instruction(&mut self, version: u8, state: usize) -> Result<Option<usize>, LzoError> {
        let opcode = usize::from(self.byte()?);
        let (distance, len, literals) = match opcode {
            0..=15 if state == 0 => {
                let len = 3 + self.length(opcode, 15)?;
                self.literals(len)?;
                return Ok(Some(4));
            }
            0..=15 => {
                let high = usize::from(self.byte()?);
                let distance = (high << 2) + (opcode >> 2);
                if state == 4 { (distance + 2049, 3, opcode & 3) } else { (distance + 1, 2, opcode & 3) }
            }
            16..=31 => {
                if version == 1 && opcode >= 24 && self.zero_run_follows() {
                    let literals = usize::from(self.byte()? & 3);
                    self.byte()?;
                    let more = usize::from(self.byte()?);
                    self.zeros(more * 8 + opcode % 8 + 4)?;
                    self.literals(literals)?;
                    return Ok(Some(literals));
                }
                let len = 2 + self.length(opcode % 8, 7)?;
                let word = self.le16()?;
                let distance = 16384 + 16384 * (opcode / 8 % 2) + word / 4;
                if distance == 16384 {
                    return if len == 3 { Ok(None) } else { Err(LzoError::BadEndMarker) };
                }
                (distance, len, word % 4)
            }
            32..=63 => {
                let len = 2 + self.length(opcode % 32, 31)?;
                let word = self.le16()?;
                (word / 4 + 1, len, word % 4)
            }
            64..=127 => {
                let high = usize::from(self.byte()?);
                (high * 8 + opcode / 4 % 8 + 1, 3 + opcode / 32 % 2, opcode % 4)
            }
            _ => {
                let high = usize::from(self.byte()?);
                (high * 8 + opcode / 4 % 8 + 1, 5 + opcode / 32 % 4, opcode % 4)
            }
        };
        self.matched(distance, len)?;
        self.literals(literals)?;
        Ok(Some(literals))
    }

    /// Returns whether the next two bytes, as a little-endian word, have the upper 14 bits set.
    fn zero_run_follows(&self) -> bool {
        matches!(self.input.as_slice(), [low, 0xff, ..] if *low >= 0xfc)
    }

    fn byte(&mut self) -> Result<u8, LzoError> {
        self.input.next().copied().ok_or(LzoError::InputOverrun)
    }

    fn le16(&mut self) -> Result<usize, LzoError> {
        if self.input.len() < 2 {
            return Err(LzoError::InputOverrun);
        }
        Ok(usize::from(self.byte()?) + 256 * usize::from(self.byte()?))
    }

    fn length(&mut self, field: usize, base: usize) -> Result<usize, LzoError> {
        if field != 0 {
            return Ok(field);
        }
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + usize::from(last)),
            }
        }
    }

    fn write(&mut self, byte: u8) {
        self.output.push(byte);
    }

    fn check_room(&self, len: usize) -> Result<(), LzoError> {
        if self.room - self.output.len() < len { Err(LzoError::OutputOverrun) } else { Ok(()) }
    }

    fn literals(&mut self, len: usize) -> Result<(), LzoError> {
        if self.input.len() < len {
            return Err(LzoError::InputOverrun);
        }
        self.check_room(len)?;
        for _ in 0..len {
            let byte = self.byte()?;
            self.write(byte);
        }
        Ok(())
    }

    fn zeros(&mut self, len: usize) -> Result<(), LzoError> {
        self.check_room(len)?;
        (0..len).for_each(|_| self.write(0));
        Ok(())
    }

    fn matched(&mut self, distance: usize, len: usize) -> Result<(), LzoError> {
        if distance > self.output.len() {
            return Err(LzoError::LookbehindOverrun);
        }
        self.check_room(len)?;
        for _ in 0..len {
            let byte = self.output[self.output.len() - distance];
            self.write(byte);
        }
        Ok(())
    }
}
