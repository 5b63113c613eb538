//! The fixed numbers of the measurements of compressed memory.

use super::space::ServiceChoice;
use crate::plan::Target;

/// Sizes and repetitions.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct MemoryPlan {
    /// Bytes of the data of all rows except `zipf`.
    pub size_bytes: u64,
    /// Limit of resident memory, or of the memory charged to the cgroup, bytes.
    pub limit_bytes: u64,
    /// Threads that serve the faults of pagefold's side.
    pub service: ServiceChoice,
    /// Before each process, memory of the size of the largest data plus this is touched, bytes; 0: nothing is touched.
    pub touched_beside_bytes: u64,
    /// Number of rounds. All count, because each side of each round is a new process.
    pub rounds: usize,
    /// Operations of each thread of `zipf`, and accesses of `blocks`, before the measurement.
    pub zipf_warm_up_ops: u64,
    /// Measured operations of each thread of `zipf`, and accesses of `blocks`.
    pub zipf_ops: u64,
}

impl MemoryPlan {
    /// The plan of the reference measurements.
    pub const FULL: MemoryPlan = MemoryPlan {
        size_bytes: 1 << 30,
        limit_bytes: 256 << 20,
        service: ServiceChoice::FaultingThread,
        touched_beside_bytes: 1 << 30,
        rounds: 3,
        zipf_warm_up_ops: 500_000,
        zipf_ops: 1_000_000,
    };
    /// The plan of `--quick`: one small round of everything.
    pub const QUICK: MemoryPlan = MemoryPlan {
        size_bytes: 64 << 20,
        limit_bytes: 16 << 20,
        service: ServiceChoice::FaultingThread,
        touched_beside_bytes: 0,
        rounds: 1,
        zipf_warm_up_ops: 10_000,
        zipf_ops: 50_000,
    };

    /// Bytes of the data of `zipf`.
    pub fn zipf_size_bytes(&self) -> u64 {
        ZIPF_TIMES_LIMIT * self.limit_bytes
    }

    /// Bytes of the largest data of any row.
    pub fn largest_bytes(&self) -> u64 {
        self.size_bytes.max(self.zipf_size_bytes())
    }
}

/// Data of `zipf` / the limit.
pub const ZIPF_TIMES_LIMIT: u64 = 3;
/// Threads of `zipf`.
pub const ZIPF_THREADS: usize = 2;
/// Exponent of the Zipf distribution of pages.
pub const THETA: f64 = 0.99;
/// Share of reads among the operations, per cent.
pub const READ_PERCENT: u64 = 70;
/// Size of the swap device / size of the largest data, so that the device never becomes full.
pub const SWAP_TIMES_DATA: u64 = 2;

/// Fill: time per page / the kernel's.
pub const FILL: Target = Target::AtMost(0.4);
/// Sequential read: time per page / the kernel's.
pub const SEQUENTIAL: Target = Target::AtMost(0.15);
/// Random read: time per access / the kernel's.
pub const RANDOM: Target = Target::AtMost(0.5);
/// Sort and group-by: wall time / the kernel's.
pub const JOB: Target = Target::AtMost(0.5);
/// Zipf: operations per second / the kernel's.
pub const ZIPF: Target = Target::AtLeast(2.0);
/// Blocks: time per access / malloc's with the kernel's swap.
pub const BLOCKS: Target = Target::AtMost(0.7);
/// All memory in use / the kernel's.
pub const MEMORY: Target = Target::AtMost(1.0);
/// Work below the limit: time / the time in ordinary memory.
pub const BELOW: Target = Target::AtMost(1.03);
/// Storing a same-filled page: time / the time without the check.
pub const SAME_STORE: Target = Target::AtMost(0.2);
/// Loading a same-filled page: time / the time without the check.
pub const SAME_LOAD: Target = Target::AtMost(0.3);
