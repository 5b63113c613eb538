//! A slow, plain 842 decoder: one bit at a time, real rings, and all opcodes in a list.
//!
//! It is written from `docs/formats/842.md` and nothing else. Tests and fuzz targets compare the fast decoder with it.
//! It shares no code with the fast decoder, and with the crate only the error type.

use pagefold_codec::c842::C842Error;

/// Opcodes 0x00 to 0x19: D is for plain bytes, I for an index; the number is that of bytes in the output.
const TEMPLATES: [&str; 26] = [
    "D4 D4",
    "D4 D2 I2",
    "D4 I2 D2",
    "D4 I2 I2",
    "D4 I4", //
    "D2 I2 D4",
    "D2 I2 D2 I2",
    "D2 I2 I2 D2",
    "D2 I2 I2 I2",
    "D2 I2 I4", //
    "I2 D2 D4",
    "I2 D2 D2 I2",
    "I2 D2 I2 D2",
    "I2 D2 I2 I2",
    "I2 D2 I4", //
    "I2 I2 D4",
    "I2 I2 D2 I2",
    "I2 I2 I2 D2",
    "I2 I2 I2 I2",
    "I2 I2 I4", //
    "I4 D4",
    "I4 D2 I2",
    "I4 I2 D2",
    "I4 I2 I2",
    "I4 I4", //
    "I8",
];

/// A ring of units; `None` where nothing was written.
struct Ring {
    units: Vec<Option<Vec<u8>>>,
    written: usize,
}

impl Ring {
    fn new(units: usize) -> Self {
        Ring { units: vec![None; units], written: 0 }
    }

    fn write(&mut self, unit: &[u8]) {
        let at = self.written % self.units.len();
        self.units[at] = Some(unit.to_vec());
        self.written += 1;
    }
}

/// The state of one [`decode`].
struct Decoder<'a> {
    src: &'a [u8],
    bits_read: usize,
    output: Vec<u8>,
    room: usize,
    pairs: Ring,
    quads: Ring,
    phrases: Ring,
}

/// Decodes all of `src` into at most `room` bytes and returns them.
pub fn decode(src: &[u8], room: usize) -> Result<Vec<u8>, C842Error> {
    let (pairs, quads, phrases) = (Ring::new(256), Ring::new(512), Ring::new(256));
    let mut decoder = Decoder { src, bits_read: 0, output: Vec::new(), room, pairs, quads, phrases };
    while decoder.instruction()? {}
    decoder.check_end()?;
    Ok(decoder.output)
}

impl Decoder<'_> {
    /// Executes one instruction; returns whether another can follow.
    fn instruction(&mut self) -> Result<bool, C842Error> {
        let opcode = self.number(5)?;
        match opcode {
            0x00..=0x19 => {
                let mut phrase = Vec::new();
                for action in TEMPLATES[opcode].split(' ') {
                    let bytes = self.action(action)?;
                    phrase.extend(bytes);
                }
                self.write_phrase(&phrase)?;
            }
            0x1b => {
                let last = self.output.len().checked_sub(8).map(|at| self.output[at..].to_vec());
                let last = last.ok_or(C842Error::NotYetWritten)?;
                let count = self.number(6)? + 1;
                for _ in 0..count {
                    self.write_phrase(&last)?;
                }
            }
            0x1c => self.write_phrase(&[0; 8])?,
            0x1d => {
                let count = self.number(3)?;
                if count == 0 {
                    return Err(C842Error::EmptyShortPhrase);
                }
                if self.room - self.output.len() < count {
                    return Err(C842Error::OutputOverrun);
                }
                for _ in 0..count {
                    let byte = self.number(8)? as u8;
                    self.output.push(byte);
                }
                return if self.number(5)? == 0x1e { Ok(false) } else { Err(C842Error::NotAtEnd) };
            }
            0x1e => return Ok(false),
            _ => return Err(C842Error::UnknownOpcode(opcode as u8)),
        }
        Ok(true)
    }

    /// The bytes of one operand.
    fn action(&mut self, action: &str) -> Result<Vec<u8>, C842Error> {
        let bits = match action {
            "D2" => return self.plain_bytes(2),
            "D4" => return self.plain_bytes(4),
            "I4" => 9,
            _ => 8,
        };
        let index = self.number(bits)?;
        let ring = match action {
            "I2" => &self.pairs,
            "I4" => &self.quads,
            _ => &self.phrases,
        };
        ring.units[index].clone().ok_or(C842Error::NotYetWritten)
    }

    fn plain_bytes(&mut self, count: usize) -> Result<Vec<u8>, C842Error> {
        (0..count).map(|_| Ok(self.number(8)? as u8)).collect()
    }

    fn write_phrase(&mut self, phrase: &[u8]) -> Result<(), C842Error> {
        if self.room - self.output.len() < 8 {
            return Err(C842Error::OutputOverrun);
        }
        self.output.extend(phrase);
        phrase.chunks(2).for_each(|pair| self.pairs.write(pair));
        phrase.chunks(4).for_each(|quad| self.quads.write(quad));
        self.phrases.write(phrase);
        Ok(())
    }

    /// Checks the checksum and the padding.
    fn check_end(&mut self) -> Result<(), C842Error> {
        let crc = self.number(32)? as u32;
        let mut padding = 0;
        while self.bits_read < self.src.len() * 8 {
            padding += 1;
            if self.bit()? || padding == 64 {
                return Err(C842Error::Padding);
            }
        }
        if !self.src.len().is_multiple_of(8) {
            return Err(C842Error::Padding);
        }
        if self.checksum() == crc { Ok(()) } else { Err(C842Error::Checksum) }
    }

    fn checksum(&self) -> u32 {
        let mut crc = 0u32;
        for byte in &self.output {
            crc ^= u32::from(*byte) << 24;
            for _ in 0..8 {
                crc = if crc & 1 << 31 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            }
        }
        crc
    }

    fn number(&mut self, bits: usize) -> Result<usize, C842Error> {
        if self.bits_read + bits > self.src.len() * 8 {
            return Err(C842Error::InputOverrun);
        }
        let mut number = 0;
        for _ in 0..bits {
            number = number * 2 + usize::from(self.bit()?);
        }
        Ok(number)
    }

    fn bit(&mut self) -> Result<bool, C842Error> {
        let byte = self.src.get(self.bits_read / 8).ok_or(C842Error::InputOverrun)?;
        let bit = byte >> (7 - self.bits_read % 8) & 1;
        self.bits_read += 1;
        Ok(bit == 1)
    }
}
