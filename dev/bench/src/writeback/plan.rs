//! The fixed numbers of the measurements of writeback.

use crate::plan::Target;

/// Sizes and repetitions; `--quick` reduces them.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct WritebackPlan {
    /// Pages used of each set; the rest is ignored.
    pub set_pages_max: usize,
    /// Pages written back in one pass by the rows on batches.
    pub batch_pages: u64,
    /// Rounds that count, of the rows on batches.
    pub batch_rounds: usize,
    /// Pages of data of the rows `history` and `steady`.
    pub history_pages: u64,
    /// Rounds that count, each with a new history.
    pub history_rounds: usize,
    /// How often the data is overwritten, in random order, before the measurement of the steady state.
    pub steady_warm_up: u64,
    /// How often the data is overwritten during the measurement.
    pub steady_overwrites: u64,
    /// Pages that stay in memory and are read while other pages are written back.
    pub read_pages: u64,
    /// Pages written back in each pass meanwhile.
    pub read_written_back_pages: u64,
    /// Reads in a round.
    pub reads: usize,
    /// Rounds of reads that count.
    pub read_rounds: usize,
    /// Pages of the working set.
    pub zipf_pages: u64,
    /// Time before the measurement of a round, milliseconds.
    pub zipf_settle_ms: u64,
    /// Time of the measurement, milliseconds.
    pub zipf_measure_ms: u64,
    /// Rounds for each number of threads.
    pub zipf_rounds: usize,
}

impl WritebackPlan {
    /// The plan of the reference measurements.
    pub const FULL: WritebackPlan = WritebackPlan {
        set_pages_max: 1 << 20,
        batch_pages: 100_000,
        batch_rounds: 3,
        history_pages: 78_000,
        history_rounds: 7,
        steady_warm_up: 3,
        steady_overwrites: 3,
        read_pages: 16_384,
        read_written_back_pages: 1 << 18,
        reads: 400_000,
        read_rounds: 7,
        zipf_pages: 1 << 16,
        zipf_settle_ms: 1500,
        zipf_measure_ms: 3000,
        zipf_rounds: 3,
    };
    /// The plan of `--quick`: one small round of everything.
    pub const QUICK: WritebackPlan = WritebackPlan {
        set_pages_max: 2048,
        batch_pages: 2000,
        batch_rounds: 1,
        history_pages: 4000,
        history_rounds: 1,
        steady_warm_up: 1,
        steady_overwrites: 1,
        read_pages: 1024,
        read_written_back_pages: 8192,
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
/// Pages of a request: one, and the number that Linux swaps in at once by default.
pub const REQUEST_PAGES: [usize; 2] = [1, 8];
/// Exponent of the Zipf distribution of pages.
pub const THETA: f64 = 0.99;
/// Share of reads among the operations, per cent.
pub const READ_PERCENT: u64 = 70;

/// Pages per second with batch 32 / with batch 1, on the modelled medium.
pub const BATCH: Target = Target::AtLeast(11.0);
/// The same on a real file.
pub const BATCH_FILE: Target = Target::AtLeast(2.0);
/// Pages per second on the aged log / on an empty log.
pub const HISTORY: Target = Target::AtLeast(0.9);
/// Bytes written / compressed bytes.
pub const BYTES: Target = Target::AtMost(1.05);
/// p99 of reads during writeback / while a thread copies memory.
pub const READS: Target = Target::AtMost(1.5);
/// Operations per second with the log / with one page per block.
pub const ZIPF: Target = Target::AtLeast(2.0);
