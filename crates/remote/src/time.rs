//! Times as stores write them: seconds since 1970 as text, and back. No time zones but UTC, and no leap seconds.

use std::time::{Duration, SystemTime};

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// `20130524T000000Z`: the time of a signature. Times before 1970 are written as 1970.
pub(crate) fn basic(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / DAY_S);
    let of_day = seconds % DAY_S;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`: the time of a header of HTTP. Times before 1970 are written as 1970.
pub(crate) fn http(time: SystemTime) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / DAY_S);
    let (weekday, month) = (WEEKDAYS[(seconds / DAY_S % 7) as usize], MONTHS[month as usize - 1]);
    let of_day = seconds % DAY_S;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Parses a time of RFC 3339, `2013-05-24T00:00:00Z`; a fraction of a second is dropped. `None` if it is none, or before
/// 1970 or after 9999.
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let is_marked = marks.iter().all(|(at, mark)| bytes.get(*at) == Some(mark));
    let is_separated = matches!(bytes.get(10), Some(b'T' | b't' | b' '));
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let is_valid = year >= 1970
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let rest = text.get(19..)?;
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    let offset_s = match zone {
        "Z" | "z" => 0,
        _ => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let seconds = crate::headers::number(hours)? * 3600 + crate::headers::number(minutes)? * 60;
            let seconds = i64::try_from(seconds).ok().filter(|seconds| *seconds < DAY_S as i64)?;
            match zone.as_bytes()[0] {
                b'+' => seconds,
                b'-' => -seconds,
                _ => return None,
            }
        }
    };
    if !(is_marked && is_separated && is_valid) {
        return None;
    }
    let seconds = days_before(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.checked_add_signed(-offset_s)?))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from the beginning of 1970 to this day.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let past = year - 1;
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let years = 365 * (year - 1970) + leap_days(past) - leap_days(1969);
    years + (1..month).map(|month| days_of_month(year, month)).sum::<u64>() + day - 1
}

/// The year, month and day that are so many days after the beginning of 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // A year has 365 days at least, so the guess is never too early.
    let mut year = 1970 + days / 365;
    while days_before(year, 1, 1) > days {
        year -= 1;
    }
    let mut rest = days - days_before(year, 1, 1);
    let mut month = 1;
    while rest >= days_of_month(year, month) {
        rest -= days_of_month(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
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
    fn days_follow_each_other_for_centuries() {
        let mut last = (1969, 12, 31);
        for days in 0..200_000 {
            let (year, month, day) = date(days);
            assert_eq!(days_before(year, month, day), days);
            assert!(day <= days_of_month(year, month) && (year, month, day) > last);
            last = (year, month, day);
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
