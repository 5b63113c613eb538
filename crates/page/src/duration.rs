//! Parsing and formatting spans of time as people write them: `90`, `10m`, `1h30m`, `2d`.
//!
//! The age of a page is stored in whole seconds, so the second is the smallest unit; it is also the unit of a number
//! without one. That number is the reason for our own parser: zram's attributes take plain seconds, and the libraries
//! for spans of time require a unit.

/// Why a text is not a span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No number, an unknown unit, or units out of order.
    #[error(
        "'{0}' is not a span of time: write numbers with the units d, h, m and s, such as 10m or 1h30m; \
         a number without a unit is seconds"
    )]
    Malformed(String),
    /// More than 2^64 - 1 seconds.
    #[error("'{0}' is more seconds than 64 bits can count")]
    TooLong(String),
}

const UNITS: [(char, u64); 4] = [('d', 86400), ('h', 3600), ('m', 60), ('s', 1)];

/// Parses a span of time into seconds. Larger units come first, each at most once.
pub fn parse_s(text: &str) -> Result<u64, DurationError> {
    let malformed = || DurationError::Malformed(text.to_string());
    let too_long = || DurationError::TooLong(text.to_string());
    let mut rest = text.trim();
    let mut units = &UNITS[..];
    let mut sum_s = 0u64;
    if rest.is_empty() {
        return Err(malformed());
    }
    while !rest.is_empty() {
        let digits_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(digits_end);
        let unit = match tail.chars().next() {
            Some(unit) => unit,
            // Only a single number may have no unit.
            None if units.len() == UNITS.len() => 's',
            None => return Err(malformed()),
        };
        let at = units.iter().position(|(name, _)| *name == unit).ok_or_else(malformed)?;
        if digits.is_empty() {
            return Err(malformed());
        }
        let number: u64 = digits.parse().map_err(|_| too_long())?;
        let part_s = number.checked_mul(units[at].1).ok_or_else(too_long)?;
        sum_s = sum_s.checked_add(part_s).ok_or_else(too_long)?;
        units = &units[at + 1..];
        rest = tail.get(1..).unwrap_or_default();
    }
    Ok(sum_s)
}

/// Formats seconds in the units that [`parse_s`] reads: `10m`, `1h30m`.
pub fn text(seconds: u64) -> String {
    let mut left = seconds;
    let mut text = String::new();
    for (name, unit_s) in UNITS {
        if left >= unit_s {
            text.push_str(&format!("{}{name}", left / unit_s));
            left %= unit_s;
        }
    }
    if text.is_empty() { "0s".to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_formatted_is_parsed_again() {
        for (seconds, written) in
            [(0, "0s"), (59, "59s"), (600, "10m"), (5400, "1h30m"), (90_061, "1d1h1m1s")]
        {
            assert_eq!(text(seconds), written);
            assert_eq!(parse_s(written), Ok(seconds));
        }
    }

    #[test]
    fn spans_add_up() {
        for (text, seconds) in [
            ("0", 0),
            ("90", 90),
            ("90s", 90),
            ("10m", 600),
            ("1h30m", 5400),
            ("1d2h3m4s", 93784),
            (" 2d ", 172800),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_s(text), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", " ", "m", "-1", "1.5h", "10 m", "10min", "1m1h", "1s1s", "1h30", "+1", "1é", "1w"] {
            assert_eq!(parse_s(text), Err(DurationError::Malformed(text.into())), "{text}");
        }
        for text in [
            "18446744073709551616",
            "18446744073709551615m",
            "18446744073709551615s1",
            "9".repeat(40).as_str(),
        ] {
            assert!(parse_s(text).is_err(), "{text}");
        }
        assert_eq!(parse_s("307445734561825861m"), Err(DurationError::TooLong("307445734561825861m".into())));
    }
}
