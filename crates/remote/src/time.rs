//! Times as stores write them: seconds since 1970 as text, and back. No time zones but UTC, and no leap seconds.

use crate::headers::number;
use pagefold_page::DateTime;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The shortest difference of clocks that may be the reason of a refusal.
const SKEW_MIN: Duration = Duration::from_secs(60);

/// The time of a server, as far as it is known: this machine's, corrected when the server refuses a signature for its time.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// By how much the server's clock is ahead, seconds.
    ahead_s: AtomicI64,
}

impl ServerClock {
    /// The server's time.
    pub(crate) fn now(&self) -> SystemTime {
        let (now, ahead_s) = (SystemTime::now(), self.ahead_s.load(Ordering::Relaxed));
        let by = Duration::from_secs(ahead_s.unsigned_abs());
        let corrected = if ahead_s < 0 { now.checked_sub(by) } else { now.checked_add(by) };
        corrected.unwrap_or(now)
    }

    /// Takes the time that the server sends. Returns whether it was another one, so that another signature may help.
    pub(crate) fn correct(&self, server_now: SystemTime) -> bool {
        let is_other = difference(self.now(), server_now) >= SKEW_MIN;
        if is_other {
            self.ahead_s
                .store(unix_s(server_now).saturating_sub(unix_s(SystemTime::now())), Ordering::Relaxed);
        }
        is_other
    }
}

/// A sentence about the clock of this machine, if it differs from that of the server; empty otherwise.
pub(crate) fn skew_advice(server_now: Option<SystemTime>) -> String {
    let now = SystemTime::now();
    match server_now.map(|server| (difference(now, server), now > server)) {
        Some((by, is_ahead)) if by >= SKEW_MIN => {
            let side = if is_ahead { "ahead of" } else { "behind" };
            format!("; the clock of this machine is {} s {side} that of the server: set it", by.as_secs())
        }
        _ => String::new(),
    }
}

fn difference(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).or_else(|_| b.duration_since(a)).unwrap_or_default()
}

/// Seconds since 1970; 0 for times before.
fn unix_s(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// `20130524T000000Z`: the time of a signature. Times before 1970 are written as 1970.
pub(crate) fn basic(time: SystemTime) -> String {
    let DateTime { year, month, day, hour, minute, second } = DateTime::of_unix(unix_s(time));
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`: the time of a header of HTTP. Times before 1970 are written as 1970.
pub(crate) fn http(time: SystemTime) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let DateTime { year, month, day, hour, minute, second } = DateTime::of_unix(unix_s(time));
    let weekday = WEEKDAYS[(unix_s(time) / 86_400 % 7) as usize];
    let month = MONTHS[month as usize - 1];
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Parses a time of a header of HTTP, in any of the three forms of RFC 9110: `Sun, 06 Nov 1994 08:49:37 GMT`,
/// `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`. The weekday is not compared. `None` if it is malformed, or
/// before 1970 or after 9999.
pub(crate) fn parse_http(text: &str) -> Option<SystemTime> {
    let mut words: Vec<_> = text.split([' ', '-', ',']).filter(|word| !word.is_empty()).collect();
    let is_asctime = words.len() == 5;
    if !is_asctime && words.pop() != Some("GMT") {
        return None;
    }
    let [_, day, month, year, clock] = match *words {
        [weekday, month, day, clock, year] if is_asctime => [weekday, day, month, year, clock],
        [weekday, day, month, year, clock] => [weekday, day, month, year, clock],
        _ => return None,
    };
    let short = |text: &str| number(text).filter(|_| text.len() <= 2).and_then(|n| i64::try_from(n).ok());
    let mut clock = clock.split(':').map(short);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let year = match (year.len(), i64::try_from(number(year)?).ok()?) {
        (4, year) => year,
        // As most programs read two digits: those of the years 1970 to 2069.
        (2, year) => {
            if year < 70 {
                2000 + year
            } else {
                1900 + year
            }
        }
        _ => return None,
    };
    let month = i64::try_from(MONTHS.iter().position(|name| *name == month)?).ok()? + 1;
    let leap_second = i64::from(second == 60);
    let time = DateTime { year, month, day: short(day)?, hour, minute, second: second - leap_second };
    let unix_s = time.to_unix().filter(|_| year >= 1970 && clock.next().is_none())? + leap_second;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).ok()?))
}

/// Parses a time of RFC 3339, `2013-05-24T00:00:00Z`; a fraction of a second is dropped. `None` if it is malformed, or before
/// 1970 or after 9999.
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    let digits = |from: usize, to: usize| i64::try_from(number(text.get(from..to)?)?).ok();
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let is_marked = marks.iter().all(|(at, mark)| bytes.get(*at) == Some(mark));
    if !is_marked || !matches!(bytes.get(10), Some(b'T' | b't' | b' ')) {
        return None;
    }
    let leap_second = if text.get(17..19)? == "60" { 1 } else { 0 };
    let time = DateTime {
        year: digits(0, 4)?,
        month: digits(5, 7)?,
        day: digits(8, 10)?,
        hour: digits(11, 13)?,
        minute: digits(14, 16)?,
        second: digits(17, 19)? - leap_second,
    };
    let rest = text.get(19..)?;
    let zone =
        rest.strip_prefix('.').map_or(rest, |rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    let offset_s = match zone {
        "Z" | "z" => 0,
        _ => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let seconds = number(hours)?.checked_mul(3600)?.checked_add(number(minutes)?.checked_mul(60)?)?;
            let seconds = i64::try_from(seconds).ok().filter(|seconds| *seconds < 86_400)?;
            match zone.as_bytes()[0] {
                b'+' => seconds,
                b'-' => -seconds,
                _ => return None,
            }
        }
    };
    let unix_s = time.to_unix().filter(|_| time.year >= 1970)? + leap_second - offset_s;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_clock_is_corrected_by_the_time_of_the_server() {
        let (clock, hour) = (ServerClock::default(), Duration::from_secs(3600));
        assert!(!clock.correct(SystemTime::now() + Duration::from_secs(2)));
        for server_now in [SystemTime::now() + hour, SystemTime::now() - hour] {
            assert!(clock.correct(server_now));
            assert!(difference(clock.now(), server_now) < SKEW_MIN);
            assert!(!clock.correct(server_now));
        }
        assert!(
            clock.correct(SystemTime::UNIX_EPOCH)
                && difference(clock.now(), SystemTime::UNIX_EPOCH) < SKEW_MIN
        );
        assert_eq!(skew_advice(None) + &skew_advice(Some(SystemTime::now())), "");
        assert!(skew_advice(Some(SystemTime::now() + hour)).contains("s behind that"));
        assert!(skew_advice(Some(SystemTime::now() - hour)).contains("s ahead of that"));
    }

    #[test]
    fn times_are_those_that_date_prints() {
        // date -u -d @SECONDS +%Y%m%dT%H%M%SZ
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(basic(at(seconds)), text);
        }
        // date -u -d @SECONDS '+%a, %d %b %Y %H:%M:%S GMT'
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
        ] {
            assert_eq!(http(at(seconds)), text);
        }
    }

    #[test]
    fn times_of_http_are_parsed_in_three_forms_and_others_are_none() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse_http(text), Some(at(784_111_777)), "{text}");
        }
        assert_eq!(parse_http("Tue, 30 Jun 2015 23:59:60 GMT"), Some(at(1_435_708_800)));
        for text in [
            "",
            "GMT",
            "7",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 1994 08:49:37:00 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 06 Nov 994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun, 99999999999999999999 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse_http(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn times_of_http_are_read_back(seconds in 0..253_402_300_800_u64) {
            proptest::prop_assert_eq!(parse_http(&http(at(seconds))), Some(at(seconds)));
        }
    }

    #[test]
    fn times_of_rfc_3339_are_parsed_and_others_are_none() {
        let seconds = |text: &str| {
            parse_rfc3339(text).map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
        };
        assert_eq!(seconds("2013-05-24T00:00:00Z"), Some(1_369_353_600));
        assert_eq!(seconds("2013-05-24T00:00:01.999Z"), Some(1_369_353_601));
        assert_eq!(seconds("2013-05-24T02:00:00+02:00"), Some(1_369_353_600));
        assert_eq!(seconds("2013-05-23T22:30:00-01:30"), Some(1_369_353_600));
        for text in [
            "",
            "2013-05-24",
            "2013-05-24T00:00:00",
            "2013-13-24T00:00:00Z",
            "2013-02-29T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2013-05-24T24:00:00Z",
            "2013-05-24T00:00:00+99:99999999999999999999",
            "2013-05-24T00:00:00é",
            "2013/05/24T00:00:00Z",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
