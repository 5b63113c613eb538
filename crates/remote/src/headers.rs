//! Parsers of the headers that range requests need. A server may send anything: what is not well formed is `None`.

use crate::time::parse_http;
use std::time::{Duration, SystemTime};

/// The header `Content-Range`: `bytes 0-99/1000`, or `bytes */1000` where no byte of the range exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRange {
    /// The first and the last byte of the body; `None` for `*`.
    pub first_last: Option<(u64, u64)>,
    /// The length of the whole object; `None` if the server does not know it (`*`).
    pub total_bytes: Option<u64>,
}

/// Parses `Content-Range`. The last byte is not before the first one, and inside the object.
pub fn content_range(text: &str) -> Option<ContentRange> {
    let (unit, rest) = text.trim().split_once(' ')?;
    let (range, total) = rest.trim().split_once('/')?;
    let total_bytes = if total == "*" { None } else { Some(number(total)?) };
    let first_last = match range {
        "*" => None,
        _ => {
            let (first, last) = range.split_once('-')?;
            Some((number(first)?, number(last)?))
        }
    };
    let is_inside =
        first_last.is_none_or(|(first, last)| first <= last && total_bytes.is_none_or(|total| last < total));
    let is_known = first_last.is_some() || total_bytes.is_some();
    (unit.eq_ignore_ascii_case("bytes") && is_inside && is_known)
        .then_some(ContentRange { first_last, total_bytes })
}

/// Returns an entity tag, with its quotes, if it is a strong one: equal for equal bytes only.
pub fn strong_etag(text: &str) -> Option<&str> {
    let text = text.trim();
    let inside = text.strip_prefix('"')?.strip_suffix('"')?;
    // Something between the quotes, and nothing that would end a header.
    let is_well_formed =
        !inside.is_empty() && inside.bytes().all(|b| b != b'"' && (0x21..=0x7e).contains(&b));
    is_well_formed.then_some(text)
}

/// Parses `Retry-After`: a number of seconds, or a date of HTTP. A date is compared with the time of the server, the header
/// `Date`, because the clocks may differ; a date that has passed is no time.
pub fn retry_after(text: &str, server_now: SystemTime) -> Option<Duration> {
    let of_date = || parse_http(text).map(|at| at.duration_since(server_now).unwrap_or_default());
    number(text.trim()).map(Duration::from_secs).or_else(of_date)
}

/// Parses digits only: no sign, no space.
pub fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_that_are_none_are_refused() {
        let range = |first_last, total_bytes| Some(ContentRange { first_last, total_bytes });
        assert_eq!(content_range("bytes 0-99/1000"), range(Some((0, 99)), Some(1000)));
        assert_eq!(content_range("Bytes  5-5/*"), range(Some((5, 5)), None));
        assert_eq!(content_range("bytes */0"), range(None, Some(0)));
        for text in [
            "",
            "bytes",
            "bytes 0-99",
            "0-99/1000",
            "bytes 9-0/10",
            "bytes 0-10/10",
            "bytes -1-5/10",
            "bytes 0-9/10/10",
            "bytes 0-9/+10",
            "bytes 0-9, 20-29/100",
            "bytes */*",
            "items 0-9/10",
            "bytes 0 - 9/10",
            "bytes 0-18446744073709551616/18446744073709551617",
        ] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn weak_and_malformed_entity_tags_are_none() {
        assert_eq!(strong_etag(" \"abc-1\" "), Some("\"abc-1\""));
        for text in ["W/\"abc\"", "abc", "\"\"", "\"a\"b\"", "\"", "", "\"a b\"", "\"a\r\nX: \"", "\"é\""] {
            assert_eq!(strong_etag(text), None, "{text}");
        }
    }

    #[test]
    fn a_server_asks_for_a_pause_in_seconds_or_until_a_date() {
        let now = parse_http("Wed, 21 Oct 2015 07:28:00 GMT").unwrap();
        for (text, seconds) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Wed, 21 Oct 2015 07:28:30 GMT", Some(30)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("Wednesday, 21-Oct-15 07:29:00 GMT", Some(60)),
            ("-7", None),
            ("", None),
            ("7.5", None),
            ("soon", None),
        ] {
            assert_eq!(retry_after(text, now), seconds.map(Duration::from_secs), "{text}");
        }
    }

    proptest! {
        #[test]
        fn ranges_are_read_back(first in any::<u64>(), len in any::<u64>(), total in any::<Option<u64>>()) {
            let last = first.saturating_add(len);
            let shown = total.map_or("*".to_string(), |total| total.to_string());
            let read = content_range(&format!("bytes {first}-{last}/{shown}"));
            let is_inside = total.is_none_or(|total| last < total);
            let whole = ContentRange { first_last: Some((first, last)), total_bytes: total };
            prop_assert_eq!(read, is_inside.then_some(whole));
        }

        /// Texts near the right ones: no panic, and what is accepted is inside the object.
        #[test]
        fn any_text_is_parsed_or_refused(text in "(bytes ?)?[0-9*/ -]{0,50}", other in ".{0,50}") {
            for text in [&text, &other] {
                if let Some(ContentRange { first_last: Some((first, last)), total_bytes }) = content_range(text) {
                    prop_assert!(first <= last && total_bytes.is_none_or(|total| last < total));
                }
                if let Some(etag) = strong_etag(text) {
                    prop_assert!(etag.len() > 2 && !etag.contains(['\r', '\n']));
                }
                let _ = retry_after(text, SystemTime::UNIX_EPOCH);
            }
        }
    }
}
