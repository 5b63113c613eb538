//! The sides, the works and their sizes, and the figures of each work.

use crate::report::Figure;
use crate::report::Target::AtMost;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Pages used of the set; the rest is ignored.
pub const PAGES_MAX: usize = 1 << 20;

/// The measured memory, which a mechanism keeps within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// A region of compressed memory.
    Region,
    /// Plain private memory in a memory cgroup with swap on zram.
    Swap,
}

/// The work of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Task {
    /// Writing all pages in order and reading them in order; the memory in use
    Fill,
    /// Reading eight bytes from random pages
    Random,
    /// Sort and group-by of a table
    Job,
}

/// Sizes and repetitions.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// Bytes of the data.
    pub size_bytes: u64,
    /// Limit of resident memory, or of the memory charged to the cgroup, bytes.
    pub limit_bytes: u64,
}

impl MemoryPlan {
    pub const FULL: MemoryPlan = MemoryPlan { size_bytes: 1 << 30, limit_bytes: 256 << 20 };
    pub const QUICK: MemoryPlan = MemoryPlan { size_bytes: 64 << 20, limit_bytes: 16 << 20 };
}

/// The figures of a work.
pub fn figures(task: Task) -> &'static [Figure] {
    match task {
        Task::Fill => &[
            Figure("fill, per page", "ns", AtMost(0.4)),
            Figure("fill, CPU time of all threads per page", "ns", AtMost(1.0)),
            Figure("sequential read, per page", "ns", AtMost(0.15)),
            Figure("sequential read, CPU time of all threads per page", "ns", AtMost(1.0)),
            Figure("memory held after both passes", "B", AtMost(1.0)),
        ],
        Task::Random => &[
            Figure("random read, per access", "ns", AtMost(0.5)),
            Figure("random read, CPU time of all threads per access", "ns", AtMost(1.0)),
        ],
        Task::Job => &[
            Figure("sort and group-by", "s", AtMost(0.5)),
            Figure("sort and group-by, CPU time of all threads", "s", AtMost(1.0)),
        ],
    }
}
