//! The fixed numbers of the measurements. Figures are comparable only if they were measured with the same plan.

use pagefold_page::PAGE_SIZE;

/// Pages in a large request; page sets are cut to a multiple of this.
pub const LARGE_PAGES: usize = 256;
/// Bytes of a large request: 1 MiB.
pub const LARGE_LEN: usize = LARGE_PAGES * PAGE_SIZE;
/// Shift of the pages along the slots from round to round, in pages: an overwrite then usually replaces a page with
/// one of another compressed length, as in real use. A multiple of [`LARGE_PAGES`].
pub const SHIFT_PAGES: usize = 37 * LARGE_PAGES;
/// Pages of a block that fits in the CPU's caches while it is measured.
pub const HOT_PAGES: usize = 128;
/// Seed of every random choice.
pub const SEED: u64 = 0x7061_6765_666f_6c64;

/// Sizes and repetitions; `--quick` reduces them.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Plan {
    /// Rounds before the first that counts. The first round stores every page once and so touches all memory; later
    /// rounds overwrite.
    pub warm_up_rounds: usize,
    /// Rounds that count, for pages and threads.
    pub rounds: usize,
    /// Repetitions of a block of hot pages in a round.
    pub hot_repeats: usize,
    /// Pages used of each set; the rest is ignored.
    pub pages_max: usize,
    /// Pages of the working set of the density measurement; 1 GiB in the full plan.
    pub density_pages: u64,
    /// Pages that are recompressed while reads are timed; 1 GiB in the full plan.
    pub recompress_pages: usize,
    /// Random overwrites of this working set.
    pub density_overwrites: u64,
    /// Times that a set is stored and loaded in a round in which statistics are read.
    pub statistics_repeats: usize,
    /// Reads of a file of statistics in a round.
    pub file_reads: usize,
}

impl Plan {
    /// The plan of the reference measurements.
    pub const FULL: Plan = Plan {
        warm_up_rounds: 2,
        rounds: 9,
        hot_repeats: 40,
        pages_max: 1 << 20,
        density_pages: 1 << 18,
        recompress_pages: 1 << 18,
        density_overwrites: 10_000_000,
        statistics_repeats: 8,
        file_reads: 5_000,
    };
    /// The plan of `--quick`: one small round of everything.
    pub const QUICK: Plan = Plan {
        warm_up_rounds: 1,
        rounds: 1,
        hot_repeats: 1,
        pages_max: 2048,
        density_pages: 1 << 12,
        recompress_pages: 1 << 11,
        density_overwrites: 20_000,
        statistics_repeats: 1,
        file_reads: 20,
    };
}

/// The goal of a row.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The ratio should be at most this.
    AtMost(f64),
    /// The ratio should be at least this.
    AtLeast(f64),
}

impl Target {
    /// Whether a ratio meets the target.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtMost(most) => ratio <= most,
            Target::AtLeast(least) => ratio >= least,
        }
    }
}

/// Store one page: time / that of the kernel's 4 KiB direct write.
pub const STORE: Target = Target::AtMost(0.90);
/// Load one page: time / that of the kernel's 4 KiB direct read.
pub const LOAD: Target = Target::AtMost(0.75);
/// Compression ratio (original bytes / memory used) / the kernel's.
pub const RATIO: Target = Target::AtLeast(1.03);
/// Store of the median compressed page / store of a same-filled page.
pub const SAME_STORE: Target = Target::AtLeast(20.0);
/// Load of the median compressed page / load of a same-filled page.
pub const SAME_LOAD: Target = Target::AtLeast(5.0);
/// The check for same-filled pages / the whole store, if only the last word differs.
pub const CHECK_LAST: Target = Target::AtMost(0.01);
/// The same, if only a word in the middle differs.
pub const CHECK_MIDDLE: Target = Target::AtMost(0.10);
/// The same, the average of real pages.
pub const CHECK_REAL: Target = Target::AtMost(0.01);
/// Throughput of two threads on one store / on a store each.
pub const THREADS: Target = Target::AtLeast(0.95);
/// Memory used / bytes stored after the overwrites.
pub const DENSITY: Target = Target::AtMost(1.03);

/// Recompression with two workers: pages per second / those of two loops of the codecs alone.
pub const RECOMPRESS: Target = Target::AtLeast(0.85);
/// 20 000 reads a second while two workers recompress: p99.9 of their latency / that beside two loops of the codecs.
pub const READS_BESIDE: Target = Target::AtMost(1.2);
/// Store and load with three codecs that are not used: time / that with one codec.
pub const UNUSED_CODECS: Target = Target::AtMost(1.01);

/// Throughput of two threads while statistics are read every millisecond / without that.
pub const STATISTICS: Target = Target::AtLeast(0.99);

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
