//! Times for people, and histograms as bars of text.

use crate::service::report::BucketReport;

/// Widest bar, characters.
const BAR: u64 = 40;

/// A time of two to three digits: `870 ns`, `1.9 us`, `12 ms`.
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

/// A count with its thousands set apart.
pub fn count(n: u64) -> String {
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

/// A count, and the word for so many.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// One bar a line, from the first bucket in use to the last. Empty without requests.
pub fn histogram(buckets: &[BucketReport], indent: &str) -> String {
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else {
        return String::new();
    };
    let most = buckets.iter().map(|b| b.requests).max().unwrap_or(1).max(1);
    let mut text = String::new();
    let mut below = first.below_ns;
    loop {
        let requests = buckets.iter().find(|b| b.below_ns == below).map_or(0, |b| b.requests);
        let bar = (u128::from(requests) * u128::from(BAR)).div_ceil(u128::from(most)) as usize;
        let line = format!("{indent}< {:>7}  {:>12}  {}", time(below), count(requests), "#".repeat(bar));
        text.push_str(line.trim_end());
        text.push('\n');
        match below.checked_mul(2) {
            Some(next) if below < last.below_ns => below = next,
            // The last bucket has no bound that is a power of two.
            None if below < last.below_ns => below = last.below_ns,
            _ => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::report::BucketReport;

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
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn bars_are_relative_and_gaps_are_shown() {
        let bucket = |below_ns, requests| BucketReport { below_ns, requests };
        let text = histogram(&[bucket(1024, 80), bucket(4096, 1)], "");
        let bars: Vec<_> = text.lines().map(|l| l.matches('#').count()).collect();
        assert_eq!(bars, [40, 0, 1]);
        assert_eq!(histogram(&[], ""), "");
        let last = histogram(&[bucket(1 << 40, 1), bucket(u64::MAX, 1)], "");
        assert_eq!(last.lines().count(), 25);
    }
}
