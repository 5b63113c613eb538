//! Dates and times of the proleptic Gregorian calendar, in UTC and without leap seconds.

/// Seconds of a day.
const DAY_S: i64 = 86_400;
/// Days of 400 years, after which the calendar repeats itself.
const ERA_DAYS: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01. Years that begin in March have their leap day at the end.
const EPOCH_DAYS: i64 = 719_468;

/// A date and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateTime {
    /// The year.
    pub year: i64,
    /// The month, from 1.
    pub month: i64,
    /// The day, from 1.
    pub day: i64,
    /// The hour.
    pub hour: i64,
    /// The minute.
    pub minute: i64,
    /// The second.
    pub second: i64,
}

impl DateTime {
    /// The date and time of `seconds` since 1970.
    pub fn of_unix(seconds: i64) -> Self {
        let (days, of_day) = (seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S));
        let shifted = days + EPOCH_DAYS;
        let (era, of_era) = (shifted.div_euclid(ERA_DAYS), shifted.rem_euclid(ERA_DAYS));
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * of_year + 2) / 153;
        DateTime {
            year: era * 400 + year_of_era + i64::from(month >= 10),
            month: if month < 10 { month + 3 } else { month - 9 },
            day: of_year - (153 * month + 2) / 5 + 1,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// The seconds since 1970; `None` if the calendar has no such date, or the day no such time. The year is within
    /// a billion of 1970.
    pub fn to_unix(self) -> Option<i64> {
        let DateTime { year, month, day, hour, minute, second } = self;
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_era =
            365 * year_of_era + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1;
        let days = era * ERA_DAYS + of_era - EPOCH_DAYS;
        let seconds = days * DAY_S + hour * 3600 + minute * 60 + second;
        (DateTime::of_unix(seconds) == self).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_follow_each_other_for_centuries() {
        let mut last = DateTime::of_unix(-200_001 * DAY_S);
        for days in -200_000..200_000 {
            let date = DateTime::of_unix(days * DAY_S);
            assert_eq!(date.to_unix(), Some(days * DAY_S));
            let is_next_month = date.day == 1 && last.day >= 28 && date.month == last.month % 12 + 1;
            assert!(is_next_month || (date.month, date.day) == (last.month, last.day + 1), "{date:?}");
            last = date;
        }
    }

    #[test]
    fn dates_and_times_that_do_not_exist_are_none() {
        let day = DateTime { year: 2000, month: 2, day: 29, hour: 23, minute: 59, second: 59 };
        assert_eq!(day.to_unix(), Some(951_868_799));
        for wrong in [
            DateTime { year: 2001, ..day },
            DateTime { year: 2100, ..day },
            DateTime { month: 0, ..day },
            DateTime { month: 13, ..day },
            DateTime { day: 0, ..day },
            DateTime { hour: 24, ..day },
            DateTime { minute: 60, ..day },
            DateTime { second: 60, ..day },
        ] {
            assert_eq!(wrong.to_unix(), None, "{wrong:?}");
        }
    }
}
