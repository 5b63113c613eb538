//! Formats times, counts and dates for people.
//!
//! Counts in messages and logs are plain digits. `pagefold` decides where output has groups of digits: on terminals.

use pagefold_page::DateTime;

/// Formats a duration with two or three digits: `870 ns`, `1.9 us`, `12 ms`.
pub fn time(ns: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    let (mut value, mut unit) = (ns as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit > 0 && value < 9.95 {
        true => format!("{value:.1} {}", UNITS[unit]),
        false => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Formats a count with a space between groups of three digits.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a count followed by its noun: `one` if it is 1, else `many`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Formats seconds since 1970 as a date and time in UTC (proleptic Gregorian calendar).
pub fn time_text(seconds: i64) -> String {
    let DateTime { year, month, day, hour, minute, second } = DateTime::of_unix(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_counts_are_short() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.0 us"),
            (9949, "9.9 us"),
            (9950, "10 us"),
            (999_499, "999 us"),
            (999_500, "1.0 ms"),
            (90_000_000_000, "90 s"),
        ] {
            assert_eq!(time(ns), text, "{ns}");
        }
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1234567, "1 234 567")] {
            assert_eq!(grouped(n), text);
        }
    }

    /// The expected values are from `date -u -d @N`.
    #[test]
    fn times_are_as_date_prints_them() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-2_208_988_800, "1900-01-01 00:00:00"),
        ] {
            assert_eq!(time_text(seconds), text);
        }
        assert!(time_text(i64::MAX).starts_with("292277026596-12-04"));
    }
}
