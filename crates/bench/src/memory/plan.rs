//! The fixed numbers of the measurements of compressed memory.

use super::space::ServiceChoice;
use crate::plan::Target;

/// Sizes and repetitions.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct MemoryPlan {
    /// Bytes of the data, of all rows but `zipf`.
    pub size_bytes: u64,
    /// What of it may be resident, or charged to the cgroup, bytes.
    pub limit_bytes: u64,
    /// Who serves the faults of our side.
    pub service: ServiceChoice,
    /// Memory beyond the largest data that is touched before each process, bytes; 0 for none at all.
    pub touched_beside_bytes: u64,
    /// Rounds, all of which count: each side of each round is a process of its own.
    pub rounds: usize,
    /// Operations of each thread of `zipf` before its time counts.
    pub zipf_warm_up_ops: u64,
    /// Operations of each thread that count.
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
    /// One round of everything, small.
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
/// Skew of the choice of pages.
pub const THETA: f64 = 0.99;
/// Share of the operations that read, per cent.
pub const READ_PERCENT: u64 = 70;
/// The swap device / the largest data: it never runs full.
pub const SWAP_TIMES_DATA: u64 = 2;

/// Fill, time per page, against the kernel's.
pub const FILL: Target = Target::AtMost(0.4);
/// Sequential read, time per page.
pub const SEQUENTIAL: Target = Target::AtMost(0.15);
/// Random read, time per access.
pub const RANDOM: Target = Target::AtMost(0.5);
/// Sort and group-by, wall time.
pub const JOB: Target = Target::AtMost(0.5);
/// Zipf, operations per second.
pub const ZIPF: Target = Target::AtLeast(2.0);
/// Memory held in all, bytes.
pub const MEMORY: Target = Target::AtMost(1.0);
/// Storing a same-filled page, against the same with the check off.
pub const SAME_STORE: Target = Target::AtMost(0.2);
/// Loading one, against the same.
pub const SAME_LOAD: Target = Target::AtMost(0.3);
