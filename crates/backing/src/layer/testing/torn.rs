//! Torn writes: writes of which only a part reaches the medium, as after a power failure.

use super::{Access, Hook, Layered, When, splitmix64};
use crate::{Backing, BackingError};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The unit that a disk writes atomically, bytes.
const SECTOR_BYTES: usize = 512;

/// A medium that tears writes.
pub type TornLayer<B> = Layered<B, TornControl>;

/// The part of a torn write that reaches the medium. Cuts are at multiples of 512 bytes from the write's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tear {
    /// The beginning; the seed chooses its length.
    Prefix,
    /// The end; the seed chooses its length.
    Suffix,
    /// Every other sector, beginning with the second.
    AlternateSectors,
    /// No part.
    Nothing,
    /// The whole write; together with an error, a write whose acknowledgement was lost.
    Everything,
}

impl Tear {
    /// The ranges of a write of `len_bytes` that reach the medium.
    fn pieces(self, len_bytes: usize, random: u64) -> Vec<Range<usize>> {
        let sectors = len_bytes.div_ceil(SECTOR_BYTES);
        // At least one sector is missing.
        let cut = (random % (sectors.max(1) as u64)) as usize * SECTOR_BYTES;
        let at = |sector: usize| (sector * SECTOR_BYTES).min(len_bytes);
        let one = |range: Range<usize>| std::iter::once(range).collect();
        match self {
            Tear::Prefix => one(0..cut),
            Tear::Suffix => one(len_bytes.min(cut + SECTOR_BYTES)..len_bytes),
            Tear::AlternateSectors => (1..sectors).step_by(2).map(|s| at(s)..at(s + 1)).collect(),
            Tear::Nothing => vec![],
            Tear::Everything => one(0..len_bytes),
        }
    }
}

/// Selects the writes to tear, and how to tear them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornRule {
    /// Which writes are torn, counted since the rule was set.
    pub when: When,
    /// The part that is written; `None` lets the seed choose prefix, suffix or alternate sectors.
    pub tear: Option<Tear>,
    /// The result of a torn write: success (`None`), or this error number.
    pub errno: Option<i32>,
    /// The seed; the same seed tears the same writes in the same way.
    pub seed: u64,
}

/// The rule of a [`TornLayer`]. A test may change it at any time.
#[derive(Debug, Default)]
pub struct TornControl {
    /// The rule with the number of writes since it was set.
    rule: Mutex<Option<(TornRule, u64)>>,
    torn: AtomicU64,
}

impl TornControl {
    /// Sets the rule; `None` removes it.
    pub fn set(&self, rule: Option<TornRule>) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = rule.map(|rule| (rule, 0));
    }

    /// The number of writes torn so far.
    pub fn torn(&self) -> u64 {
        self.torn.load(Ordering::Relaxed)
    }

    /// Counts a write. Returns the rule and the write's number if the rule selects it.
    fn next(&self) -> Option<(TornRule, u64)> {
        let mut guard = self.rule.lock().unwrap_or_else(PoisonError::into_inner);
        let (rule, count) = guard.as_mut()?;
        *count += 1;
        rule.when.is_met(*count).then_some((*rule, *count))
    }
}

impl<B: Backing> TornLayer<B> {
    /// Makes a layer without a rule.
    pub fn new(inner: B) -> Self {
        Layered::over(inner, Arc::default())
    }
}

impl Hook for TornControl {
    fn before(
        &self,
        inner: &dyn Backing,
        access: Access,
        data: Option<&[u8]>,
    ) -> Option<Result<(), BackingError>> {
        let data = data?;
        if let Err(e) = inner.check_range(access.offset, access.len_bytes) {
            return Some(Err(e));
        }
        let (rule, count) = self.next()?;
        self.torn.fetch_add(1, Ordering::Relaxed);
        let random = splitmix64(rule.seed, count);
        let by_seed = [Tear::Prefix, Tear::Suffix, Tear::AlternateSectors];
        let tear = rule.tear.unwrap_or(by_seed[(random >> 32) as usize % by_seed.len()]);
        for piece in tear.pieces(data.len(), random) {
            if let Err(e) = inner.write_at(access.offset + piece.start as u64, &data[piece]) {
                return Some(Err(e));
            }
        }
        Some(rule.errno.map_or(Ok(()), |errno| Err(access.failed(errno))))
    }

    fn describe(&self) -> String {
        "with torn writes".to_string()
    }
}
