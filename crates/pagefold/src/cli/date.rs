//! Dates, for people.

/// Seconds since 1970 as a date and time in UTC, by the proleptic Gregorian calendar.
pub fn time_text(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years, so that a leap day is the last of its year.
    let shifted = i128::from(days) + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year_of_era, month + 3),
        _ => (era * 400 + year_of_era + 1, month - 9),
    };
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `date -u -d @N`.
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
