//! The fixed numbers of the measurements. A figure is comparable only with figures of the same plan.

use pagefold_page::PAGE_SIZE;

/// Pages in a large request; page sets are cut to a multiple of this.
pub const LARGE_PAGES: usize = 256;
/// Bytes of a large request: 1 MiB.
pub const LARGE_LEN: usize = LARGE_PAGES * PAGE_SIZE;
/// How far the pages move along the slots from round to round, in pages: an overwrite then replaces a
/// page by another of another length, as in life. A multiple of [`LARGE_PAGES`].
pub const SHIFT_PAGES: usize = 37 * LARGE_PAGES;
/// Pages of a block that stays in the CPU's caches while it is measured.
pub const HOT_PAGES: usize = 128;
/// Seed of every random choice.
pub const SEED: u64 = 0x7061_6765_666f_6c64;

/// Repetitions, which `--quick` cuts down.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Plan {
    /// Rounds before the first that counts: the first stores every page once and so touches all
    /// memory, the others overwrite.
    pub warm_up_rounds: usize,
    /// Rounds that count, for pages and threads.
    pub rounds: usize,
    /// Repetitions of a block of hot pages in a round.
    pub hot_repeats: usize,
    /// Pages taken from each set; more are left out.
    pub pages_max: usize,
    /// Pages of the working set of the density measurement: 1 GiB.
    pub density_pages: u64,
    /// Random overwrites of it.
    pub density_overwrites: u64,
}

impl Plan {
    /// The plan of the reference measurements.
    pub const FULL: Plan = Plan {
        warm_up_rounds: 2,
        rounds: 9,
        hot_repeats: 40,
        pages_max: 1 << 20,
        density_pages: 1 << 18,
        density_overwrites: 10_000_000,
    };
    /// One round of everything, small.
    pub const QUICK: Plan = Plan {
        warm_up_rounds: 1,
        rounds: 1,
        hot_repeats: 1,
        pages_max: 2048,
        density_pages: 1 << 12,
        density_overwrites: 20_000,
    };
}

/// What is asked of a row.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The ratio is to be at most this.
    AtMost(f64),
    /// The ratio is to be at least this.
    AtLeast(f64),
}

impl Target {
    /// Whether a ratio is what was asked.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtMost(most) => ratio <= most,
            Target::AtLeast(least) => ratio >= least,
        }
    }
}

/// Store one page: time against the kernel's 4 KiB direct write.
pub const STORE: Target = Target::AtMost(0.90);
/// Load one page: time against the kernel's 4 KiB direct read.
pub const LOAD: Target = Target::AtMost(0.75);
/// Original bytes / memory used, against the kernel's.
pub const RATIO: Target = Target::AtLeast(1.03);
/// Store of the median folded page / store of a same-filled page.
pub const SAME_STORE: Target = Target::AtLeast(20.0);
/// Load of the median folded page / load of a same-filled page.
pub const SAME_LOAD: Target = Target::AtLeast(5.0);
/// The check / the whole store, where only the last word differs.
pub const CHECK_LAST: Target = Target::AtMost(0.01);
/// The check / the whole store, where only a word in the middle differs.
pub const CHECK_MIDDLE: Target = Target::AtMost(0.10);
/// The check / the whole store, average of real pages.
pub const CHECK_REAL: Target = Target::AtMost(0.01);
/// Throughput of two threads on one store / on two stores.
pub const THREADS: Target = Target::AtLeast(0.95);
/// Memory / bytes stored after the overwrites.
pub const DENSITY: Target = Target::AtMost(1.03);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_includes_its_own_value() {
        assert!(STORE.is_met(0.90) && !STORE.is_met(0.9001));
        assert!(RATIO.is_met(1.03) && !RATIO.is_met(1.0299));
    }

    #[test]
    fn shifts_keep_large_requests_whole() {
        assert!(SHIFT_PAGES.is_multiple_of(LARGE_PAGES));
    }
}
