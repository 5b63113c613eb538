//! The limit on the pool, with hysteresis as in zswap.
//!
//! A pool that reaches its limit refuses pages until its use falls to the accept threshold. A refused page stays
//! resident.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

/// The limit, the accept threshold, and whether the pool is refusing pages.
pub(crate) struct PoolLimit {
    max_bytes: AtomicU64,
    accept_percent: AtomicU8,
    is_full: AtomicBool,
}

impl PoolLimit {
    pub(crate) fn new(max_bytes: u64, accept_percent: u8) -> Self {
        PoolLimit {
            max_bytes: AtomicU64::new(max_bytes),
            accept_percent: AtomicU8::new(accept_percent.clamp(1, 100)),
            is_full: AtomicBool::new(false),
        }
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Relaxed)
    }

    pub(crate) fn set(&self, max_bytes: u64, accept_percent: u8) {
        self.max_bytes.store(max_bytes, Relaxed);
        self.accept_percent.store(accept_percent.clamp(1, 100), Relaxed);
    }

    /// Returns whether a page may be stored while `used_bytes` are in use.
    pub(crate) fn accepts(&self, used_bytes: u64) -> bool {
        let max = u128::from(self.max_bytes());
        if u128::from(used_bytes) >= max {
            return false;
        }
        if !self.is_full.load(Relaxed) {
            return true;
        }
        let accept = max * u128::from(self.accept_percent.load(Relaxed)) / 100;
        let accepts = u128::from(used_bytes) <= accept;
        if accepts {
            self.is_full.store(false, Relaxed);
        }
        accepts
    }

    /// Notes that the pool reached its limit. Returns whether it was accepting pages before.
    pub(crate) fn set_full(&self) -> bool {
        !self.is_full.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_refuses_pages_until_the_threshold() {
        let limit = PoolLimit::new(1000, 90);
        assert!(limit.accepts(999));
        assert!(!limit.accepts(1000));
        assert!(limit.set_full() && !limit.set_full());
        assert!(!limit.accepts(950));
        assert!(limit.accepts(900));
        assert!(limit.accepts(950));
    }

    #[test]
    fn a_threshold_of_100_percent_has_no_hysteresis() {
        let limit = PoolLimit::new(1000, 100);
        assert!(!limit.accepts(1000));
        limit.set_full();
        assert!(limit.accepts(999));
    }
}
