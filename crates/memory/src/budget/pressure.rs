//! How large a limit is that follows the pressure on memory: what is read, and what follows from it. It reads nothing
//! itself, so tests can let hours pass.
//!
//! The limit is never more than what is resident and what is still available together, less a reserve. As long as there
//! is plenty, nothing else counts. When memory is tight, regions give back their coldest pages a little at a time, so
//! that all pages have been looked at once in the *age*, at first 120 s. If more pages are brought back than the policy
//! allows, they were not cold: then nothing more is taken for as long, and the age doubles. Both figures are those of
//! Google's "Software-Defined Far Memory in Warehouse-Scale Computers" (ASPLOS 2019), which chooses the age from
//! histograms of accesses; the kernel shows programs no accesses, so the age is found by trying.

use super::split::MIN_PAGES;
use pagefold_page::PAGE_SIZE;
use std::collections::VecDeque;
use std::time::Duration;

/// The longest age.
const AGE_MAX: Duration = Duration::from_secs(3600);
/// The time in which pages brought back are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// The share of time in which tasks wait for memory from which on memory is tight, hundredths of a per cent (the target
/// of Meta's "TMO", ASPLOS 2022).
const STALL_TIGHT_CENTIPERCENT: u32 = 10;

/// How a budget without a fixed limit behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PressurePolicy {
    /// Memory that is left to others, bytes. `None`: a sixteenth of the machine's memory or of the lowest limit of a
    /// memory group, at least 32 MiB and at most 1 GiB. Below twice the reserve, memory is tight.
    pub reserve_bytes: Option<u64>,
    /// The time in which all pages are looked at once while memory is tight.
    pub cold_after: Duration,
    /// The most pages that may be brought back in a minute, in per cent of what is resident.
    pub refault_percent: f64,
}

impl Default for PressurePolicy {
    /// 120 s and 0.2 %.
    fn default() -> Self {
        PressurePolicy { reserve_bytes: None, cold_after: Duration::from_secs(120), refault_percent: 0.2 }
    }
}

impl PressurePolicy {
    fn reserve_bytes(&self, total_bytes: u64) -> u64 {
        self.reserve_bytes.unwrap_or_else(|| (total_bytes / 16).clamp(32 << 20, 1 << 30))
    }
}

/// The readings of one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// Time since the first reading.
    pub at: Duration,
    /// Memory of the machine, or the lowest limit of a group, bytes.
    pub total_bytes: u64,
    /// Memory that this process can still take, bytes.
    pub available_bytes: u64,
    /// The share of time in which tasks of this process's control group, or of the machine, wait for memory, hundredths
    /// of a per cent.
    pub stall_centipercent: u32,
    /// Pages that the regions have resident.
    pub resident_pages: u64,
    /// Pages that they have brought back so far, as `Sharer::page_ins` counts them.
    pub page_ins: u64,
    /// Pages that evictors leave free below the limit once they are woken.
    pub watermark_pages: u64,
}

/// The answer to a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub limit_pages: u64,
    pub is_tight: bool,
}

/// Follows the pressure, from one reading to the next.
pub(crate) struct Follower {
    policy: PressurePolicy,
    age: Duration,
    /// Time and page-ins of the readings of the last minute.
    minute: VecDeque<(Duration, u64)>,
    /// Nothing is taken before.
    quiet_until: Duration,
    /// When the age may become shorter.
    shorter_at: Duration,
    last: Duration,
    /// Part of a page that is still to be taken.
    owed: f64,
}

impl Follower {
    pub(crate) fn new(policy: PressurePolicy) -> Self {
        let cold_after = policy.cold_after.clamp(Duration::from_secs(1), AGE_MAX);
        Follower {
            policy: PressurePolicy { cold_after, ..policy },
            age: cold_after,
            minute: VecDeque::new(),
            quiet_until: Duration::ZERO,
            shorter_at: cold_after,
            last: Duration::ZERO,
            owed: 0.0,
        }
    }

    /// Decides on the limit until the next reading.
    pub(crate) fn step(&mut self, reading: &Reading) -> Decision {
        let reserve = self.policy.reserve_bytes(reading.total_bytes);
        let page = PAGE_SIZE as u64;
        let ceiling =
            (reading.resident_pages + reading.available_bytes / page).saturating_sub(reserve / page);
        let is_tight =
            reading.available_bytes < 2 * reserve || reading.stall_centipercent >= STALL_TIGHT_CENTIPERCENT;
        let elapsed = reading.at.saturating_sub(self.last);
        self.last = reading.at;
        self.note_page_ins(reading);
        let gentle = if is_tight { self.take_cold(reading, elapsed) } else { u64::MAX };
        Decision { limit_pages: ceiling.min(gentle).max(MIN_PAGES), is_tight }
    }

    /// Returns the limit that takes the coldest pages of the elapsed time; no limit while too many are brought back.
    fn take_cold(&mut self, reading: &Reading, elapsed: Duration) -> u64 {
        if self.refaults() as f64 > reading.resident_pages as f64 * self.policy.refault_percent / 100.0 {
            self.quiet_until = reading.at + self.age;
            self.age = (self.age * 2).min(AGE_MAX);
            self.shorter_at = self.quiet_until + self.age;
            self.minute.clear();
        } else if reading.at >= self.shorter_at {
            self.age = (self.age / 2).max(self.policy.cold_after);
            self.shorter_at = reading.at + self.age;
        }
        if reading.at < self.quiet_until {
            self.owed = 0.0;
            return u64::MAX;
        }
        self.owed += reading.resident_pages as f64 * elapsed.as_secs_f64() / self.age.as_secs_f64();
        let taken = self.owed as u64;
        self.owed -= taken as f64;
        // Evictors fold down to the watermark: without it, each reading would cost the regions so many pages more.
        reading.resident_pages.saturating_sub(taken) + reading.watermark_pages
    }

    fn note_page_ins(&mut self, reading: &Reading) {
        self.minute.push_back((reading.at, reading.page_ins));
        while self.minute.front().is_some_and(|(at, _)| reading.at - *at > MINUTE) {
            self.minute.pop_front();
        }
    }

    fn refaults(&self) -> u64 {
        match (self.minute.front(), self.minute.back()) {
            (Some((_, first)), Some((_, last))) => last.saturating_sub(*first),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reading(second: u64, available_bytes: u64, resident_pages: u64, page_ins: u64) -> Reading {
        Reading {
            at: Duration::from_secs(second),
            total_bytes: 4096 * MIB,
            available_bytes,
            stall_centipercent: 0,
            resident_pages,
            page_ins,
            watermark_pages: 0,
        }
    }

    #[test]
    fn the_watermark_of_evictors_is_not_taken() {
        let mut follower = Follower::new(PressurePolicy::default());
        let tight = Reading { watermark_pages: 100, ..reading(0, 400 * MIB, 12_000, 0) };
        assert_eq!(follower.step(&tight).limit_pages, 12_100);
        let later = Reading { at: Duration::from_secs(1), ..tight };
        assert_eq!(follower.step(&later).limit_pages, 12_000);
    }

    #[test]
    fn with_plenty_the_limit_is_all_that_is_available_less_the_reserve() {
        let mut follower = Follower::new(PressurePolicy::default());
        let decision = follower.step(&reading(0, 2048 * MIB, 1000, 0));
        let reserve_pages = 256 * MIB / 4096;
        assert_eq!(decision, Decision { limit_pages: 1000 + 2048 * 256 - reserve_pages, is_tight: false });
    }

    #[test]
    fn without_room_the_excess_is_taken_at_once() {
        let mut follower = Follower::new(PressurePolicy::default());
        let decision = follower.step(&reading(0, 56 * MIB, 100_000, 0));
        assert_eq!(decision, Decision { limit_pages: 100_000 - 200 * 256, is_tight: true });
        assert_eq!(follower.step(&reading(1, 0, 10, 0)).limit_pages, MIN_PAGES);
    }

    /// Regions that fold what they must, for so many seconds with this much available, and bring back so many pages a
    /// minute for each 1000 that they have less than `hot`.
    fn run(follower: &mut Follower, seconds: std::ops::Range<u64>, resident: &mut u64, hot: u64) {
        let mut page_ins = 0;
        for second in seconds {
            let decision = follower.step(&reading(second, 400 * MIB, *resident, page_ins));
            assert!(decision.is_tight);
            page_ins += hot.saturating_sub(*resident) / 10;
            *resident = decision.limit_pages.min(*resident).max(hot / 2);
            if decision.limit_pages > hot {
                *resident = (*resident).max(hot);
            }
        }
    }

    #[test]
    fn cold_pages_are_taken_within_the_age_while_memory_is_tight() {
        let mut follower = Follower::new(PressurePolicy::default());
        let mut resident = 120_000;
        run(&mut follower, 0..120, &mut resident, 0);
        // A 120th of the rest each second leaves 1/e.
        assert!((40_000..50_000).contains(&resident), "{resident}");
    }

    #[test]
    fn pages_that_come_back_end_it_and_the_age_doubles() {
        let mut follower = Follower::new(PressurePolicy::default());
        let mut resident = 120_000;
        run(&mut follower, 0..3600, &mut resident, 100_000);
        assert!((95_000..=100_000).contains(&resident), "{resident}");
        assert!(follower.age > Duration::from_secs(120));
        // The program needs less: the age becomes short again.
        run(&mut follower, 3600..30_000, &mut resident, 0);
        assert_eq!(follower.age, Duration::from_secs(120));
    }

    #[test]
    fn tasks_that_wait_for_memory_make_it_tight() {
        let mut follower = Follower::new(PressurePolicy::default());
        let stalled = Reading { stall_centipercent: 10, ..reading(0, 2048 * MIB, 1000, 0) };
        assert!(follower.step(&stalled).is_tight);
    }
}
