//! Fault injection: requests that fail by rules.

use super::{Access, Action, Hook, Layered, splitmix64};
use crate::{Backing, BackingError};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A medium whose requests fail by rules. A request that fails does not reach the medium below.
pub type ErrorLayer<B> = Layered<B, ErrorControl>;

/// Selects among the requests that match a rule, by their number since the rule was added, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// The n-th only.
    Nth(u64),
    /// The n-th, the 2n-th, and so on.
    EveryNth(u64),
    /// The n-th and all that follow: a medium that disappears.
    From(u64),
    /// Each with this probability, by the seed and the request's number.
    Chance {
        /// The probability, in millionths.
        per_million: u32,
        /// The seed; the same seed selects the same requests.
        seed: u64,
    },
}

impl When {
    /// Whether the `count`-th request (from 1) is selected.
    pub(super) fn is_met(self, count: u64) -> bool {
        match self {
            When::Always => true,
            When::Nth(n) => count == n,
            When::EveryNth(n) => n > 0 && count.is_multiple_of(n),
            When::From(n) => count >= n,
            When::Chance { per_million, seed } => {
                splitmix64(seed, count) % 1_000_000 < u64::from(per_million)
            }
        }
    }
}

/// A rule that makes requests fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRule {
    /// The kinds of requests that the rule matches.
    pub actions: Vec<Action>,
    /// If set, the rule matches only requests that overlap this range. A flush overlaps none.
    pub range: Option<Range<u64>>,
    /// Which of the matching requests fail.
    pub when: When,
    /// Their error number.
    pub errno: i32,
}

/// The rules of an [`ErrorLayer`]. A test may change them at any time.
#[derive(Debug, Default)]
pub struct ErrorControl {
    /// Each rule with the number of requests that matched it so far.
    rules: Mutex<Vec<(FaultRule, u64)>>,
    injected: AtomicU64,
}

impl ErrorControl {
    fn rules(&self) -> MutexGuard<'_, Vec<(FaultRule, u64)>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule. If several rules select a request, it fails with the error number of the one added first.
    pub fn fail(&self, rule: FaultRule) {
        self.rules().push((rule, 0));
    }

    /// Adds a rule for reads and writes.
    pub fn fail_io(&self, when: When, errno: i32) {
        self.fail(FaultRule { actions: vec![Action::Read, Action::Write], range: None, when, errno });
    }

    /// Adds a rule for writes.
    pub fn fail_writes(&self, when: When, errno: i32) {
        self.fail(FaultRule { actions: vec![Action::Write], range: None, when, errno });
    }

    /// Adds a rule for reads.
    pub fn fail_reads(&self, when: When, errno: i32) {
        self.fail(FaultRule { actions: vec![Action::Read], range: None, when, errno });
    }

    /// Removes all rules, so that no request fails any longer.
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// The number of requests that failed by a rule so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }
}

impl<B: Backing> ErrorLayer<B> {
    /// Makes a layer without rules.
    pub fn new(inner: B) -> Self {
        Layered::over(inner, Arc::default())
    }
}

impl Hook for ErrorControl {
    fn before(&self, _: &dyn Backing, access: Access, _: Option<&[u8]>) -> Option<Result<(), BackingError>> {
        let mut errno = None;
        for (rule, count) in self.rules().iter_mut() {
            let is_in_range = rule.range.as_ref().is_none_or(|range| access.touches(range));
            if rule.actions.contains(&access.action) && is_in_range {
                *count += 1;
                if rule.when.is_met(*count) {
                    errno = errno.or(Some(rule.errno));
                }
            }
        }
        errno.map(|errno| {
            self.injected.fetch_add(1, Ordering::Relaxed);
            Err(access.failed(errno))
        })
    }

    fn describe(&self) -> String {
        "with injected errors".to_string()
    }
}
