//! Where the measured work keeps its data: ours, or plain memory for the kernel to swap.

use super::plan::MemoryPlan;
use pagefold_sys::mem::Reservation;
use serde::{Deserialize, Serialize};

/// Who keeps memory within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// A region of compressed memory.
    Pagefold,
    /// A memory cgroup with swap on zram.
    Kernel,
}

/// Our side, if this build has it.
pub const OURS: Option<Side> = None;

/// Zeroed memory to work in.
pub trait Space {
    /// All of it.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// What it has counted, for the report.
    fn statistics(&self) -> serde_json::Value;
}

/// Makes the memory of a side.
pub fn make(side: Side, len_bytes: usize, _limit_bytes: usize) -> anyhow::Result<Box<dyn Space>> {
    match side {
        Side::Pagefold => anyhow::bail!("compressed memory is not in this build"),
        Side::Kernel => Ok(Box::new(Plain::new(len_bytes)?)),
    }
}

/// Plain private memory in pages of 4 KiB; its limit is the cgroup's.
struct Plain(Reservation);

impl Plain {
    fn new(len_bytes: usize) -> anyhow::Result<Self> {
        Ok(Plain(Reservation::new(len_bytes)?))
    }
}

impl Space for Plain {
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the reservation is mapped, readable, writable and zeroed for its whole length, lives
        // as long as `self`, and is reached only through it, which is borrowed for as long as the result.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().as_ptr(), self.0.len_bytes()) }
    }

    fn statistics(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// Touches as much memory as a row takes at most, and gives it back: on a virtual machine the first use of
/// memory that was never used costs the host a fault. Leaves it where memory is short.
pub fn touch(plan: &MemoryPlan) -> anyhow::Result<()> {
    let wanted = plan.largest_bytes() + super::plan::TOUCHED_BESIDE_BYTES;
    let available = pagefold_sys::swap::memory_available_bytes()? / 2;
    let len_bytes = wanted.min(available) as usize & !4095;
    Ok(Reservation::new(len_bytes)?.populate(0, len_bytes)?)
}
