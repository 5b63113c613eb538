//! Bars and histograms as text.

use super::numbers::count;
use pagefold_control::report::Bucket;
use pagefold_control::text::time;

/// Width of the longest bar, characters.
const BAR_WIDTH: u64 = 40;

/// Returns a bar for `n`, of full width for `most`. It is empty only for 0.
pub fn bar(n: u64, most: u64) -> String {
    let width = (u128::from(n) * u128::from(BAR_WIDTH)).div_ceil(u128::from(most.max(1)));
    "#".repeat(width.min(BAR_WIDTH.into()) as usize)
}

/// Formats a histogram with one line per bucket, from the first that is not empty to the last. Empty without requests.
pub fn histogram(buckets: &[Bucket], indent: &str) -> String {
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else {
        return String::new();
    };
    let most = buckets.iter().map(|b| b.requests).max().unwrap_or(1).max(1);
    let mut text = String::new();
    let mut below = first.below_ns;
    loop {
        let requests = buckets.iter().find(|b| b.below_ns == below).map_or(0, |b| b.requests);
        let line = format!("{indent}< {:>7}  {:>12}  {}", time(below), count(requests), bar(requests, most));
        text.push_str(line.trim_end());
        text.push('\n');
        match below.checked_mul(2) {
            Some(next) if below < last.below_ns => below = next,
            // The bound of the last possible bucket is not a power of two.
            None if below < last.below_ns => below = last.below_ns,
            _ => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_in_proportion_and_no_longer_than_the_width() {
        let widths = [(0, 5), (1, u64::MAX), (5, 10), (10, 10), (u64::MAX, u64::MAX), (7, 0)];
        assert_eq!(widths.map(|(n, most)| bar(n, most).len()), [0, 1, 20, 40, 40, 40]);
    }

    #[test]
    fn the_longest_bar_is_full_and_empty_buckets_are_shown() {
        let bucket = |below_ns, requests| Bucket { below_ns, requests };
        let text = histogram(&[bucket(1024, 80), bucket(4096, 1)], "");
        let bars: Vec<_> = text.lines().map(|l| l.matches('#').count()).collect();
        assert_eq!(bars, [40, 0, 1]);
        assert_eq!(histogram(&[], ""), "");
        let last = histogram(&[bucket(1 << 40, 1), bucket(u64::MAX, 1)], "");
        assert_eq!(last.lines().count(), 25);
    }
}
