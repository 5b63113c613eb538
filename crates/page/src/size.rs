//! Parsing and printing sizes as people write them: `4G`, `512MiB`, `1.5 GiB`.
//!
//! Suffixes are binary whatever their spelling (K, KB, Ki and KiB are all 1024), as in the kernel's `memparse`, because
//! they are sizes of memory.

use std::fmt;

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number, or an unknown suffix.
    #[error(
        "'{0}' is not a size: write a number with an optional suffix K, M, G, T, P or E, such as 4G or 512MiB; they are \
         powers of 1024 in any spelling"
    )]
    Malformed(String),
    /// More than 2^64 - 1 bytes.
    #[error("'{0}' is more than 64 bits can count")]
    TooLarge(String),
}

/// Parses a size into bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.to_string());
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits_end);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kb" | "kib" => 10,
        "m" | "mi" | "mb" | "mib" => 20,
        "g" | "gi" | "gb" | "gib" => 30,
        "t" | "ti" | "tb" | "tib" => 40,
        "p" | "pi" | "pb" | "pib" => 50,
        "e" | "ei" | "eb" | "eib" => 60,
        _ => return Err(malformed()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return Err(malformed());
    }
    let too_large = || SizeError::TooLarge(text.to_string());
    if !whole.bytes().all(|b| b.is_ascii_digit()) || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| malformed())? };
    let scaled = whole.checked_shl(shift).filter(|v| v >> shift == whole).ok_or_else(too_large)?;
    let bytes = scaled + (part << shift) / 10u128.pow(fraction.len() as u32);
    u64::try_from(bytes).map_err(|_| too_large())
}

/// A byte count that prints in human units: `1.50 GiB`, `312 B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1023.995 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 || value.fract() == 0.0 {
            format!("{value:.0} {}", UNITS[unit])
        } else {
            format!("{value:.2} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_all_spellings() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("1.5G", 3 << 29),
            ("512 MiB", 512 << 20),
            ("4Gi", 4 << 30),
            ("4gb", 4 << 30),
            ("1T", 1 << 40),
            ("1P", 1 << 50),
            ("8E", 8 << 60),
            ("1.5 EiB", 3 << 59),
            ("16384P", u64::MAX),
            ("16E", u64::MAX),
        ] {
            let want = if bytes == u64::MAX { Err(SizeError::TooLarge(text.into())) } else { Ok(bytes) };
            assert_eq!(parse(text), want, "{text}");
        }
    }

    #[test]
    fn parse_refuses_other_texts() {
        for text in
            ["", "G", "-1", "1X", ".5G", "1.G", "1.2.3", "1 2", "0x10", "1e3", "99999999999999999999999999"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn human_prints_two_decimals_at_most() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (3 << 29, "1.50 GiB"),
            (u64::MAX, "16 EiB"),
            ((1 << 20) - 1, "1.00 MiB"),
        ] {
            assert_eq!(Human(bytes).to_string(), text);
        }
    }
}
