//! The fixed numbers of the measurements of parking.

use crate::plan::Target;

/// Repetitions and sizes, which `--quick` cuts down.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct ParkPlan {
    /// Pages taken from each set; more are left out.
    pub set_pages_max: usize,
    /// Pages parked at once by the rows on batches.
    pub batch_pages: u64,
    /// Rounds that count, of the rows on batches.
    pub batch_rounds: usize,
    /// Pages of the data of the rows on the log's history.
    pub history_pages: u64,
    /// Rounds that count, each with a history of its own.
    pub history_rounds: usize,
    /// How often the data is overwritten, in random order, before the steady state counts.
    pub steady_warm_up: u64,
    /// How often it is while it counts.
    pub steady_overwrites: u64,
    /// Pages held in memory that are read while others are parked.
    pub read_pages: u64,
    /// Pages parked meanwhile, at a time.
    pub read_parked_pages: u64,
    /// Reads in a round.
    pub reads: usize,
    /// Rounds of reads that count.
    pub read_rounds: usize,
    /// Pages of the working set.
    pub zipf_pages: u64,
    /// Time before a round counts, milliseconds.
    pub zipf_settle_ms: u64,
    /// Time that counts, milliseconds.
    pub zipf_measure_ms: u64,
    /// Rounds for each number of threads.
    pub zipf_rounds: usize,
}

impl ParkPlan {
    /// The plan of the reference measurements.
    pub const FULL: ParkPlan = ParkPlan {
        set_pages_max: 1 << 20,
        batch_pages: 100_000,
        batch_rounds: 3,
        history_pages: 78_000,
        history_rounds: 7,
        steady_warm_up: 3,
        steady_overwrites: 3,
        read_pages: 16_384,
        read_parked_pages: 1 << 18,
        reads: 400_000,
        read_rounds: 7,
        zipf_pages: 1 << 16,
        zipf_settle_ms: 1500,
        zipf_measure_ms: 3000,
        zipf_rounds: 3,
    };
    /// One round of everything, small.
    pub const QUICK: ParkPlan = ParkPlan {
        set_pages_max: 2048,
        batch_pages: 2000,
        batch_rounds: 1,
        history_pages: 4000,
        history_rounds: 1,
        steady_warm_up: 1,
        steady_overwrites: 1,
        read_pages: 1024,
        read_parked_pages: 8192,
        reads: 5000,
        read_rounds: 1,
        zipf_pages: 8192,
        zipf_settle_ms: 100,
        zipf_measure_ms: 200,
        zipf_rounds: 1,
    };
}

/// Numbers of clients on one store.
pub const CLIENTS: [usize; 3] = [1, 4, 16];
/// Pages of a request: one, and as many as Linux swaps in at once by default.
pub const REQUEST_PAGES: [usize; 2] = [1, 8];
/// Skew of the choice of pages.
pub const THETA: f64 = 0.99;
/// Share of the operations that read, per cent.
pub const READ_PERCENT: u64 = 70;

/// Batch 32 / batch 1, modelled medium, pages per second.
pub const BATCH: Target = Target::AtLeast(11.0);
/// Batch 32 / batch 1, real file.
pub const BATCH_FILE: Target = Target::AtLeast(2.0);
/// The log after a history / an empty one, pages per second.
pub const HISTORY: Target = Target::AtLeast(0.9);
/// Bytes written / compressed bytes.
pub const BYTES: Target = Target::AtMost(1.05);
/// p99 of reads beside parking / beside copying.
pub const READS: Target = Target::AtMost(1.5);
/// The log / one page per block, operations per second.
pub const ZIPF: Target = Target::AtLeast(2.0);
