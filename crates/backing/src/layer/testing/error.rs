//! Requests that fail on command.

use super::{Access, Action, Hook, Layered, mix};
use crate::{Backing, BackingError};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A medium that fails by rule. The request does not reach the medium below.
pub type ErrorLayer<B> = Layered<B, ErrorControl>;

/// Which of the requests that a rule is about fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// The n-th since the rule was added, from 1, once.
    Nth(u64),
    /// The n-th, the 2n-th, and so on.
    EveryNth(u64),
    /// The n-th and all that follow: a medium that goes away.
    From(u64),
    /// Each with this probability, decided by the seed and the request's number.
    Chance {
        /// Of a million.
        per_million: u32,
        /// The same seed makes the same ones fail.
        seed: u64,
    },
}

impl When {
    /// Whether the `count`-th (from 1) is one.
    pub(super) fn is_met(self, count: u64) -> bool {
        match self {
            When::Always => true,
            When::Nth(n) => count == n,
            When::EveryNth(n) => n > 0 && count.is_multiple_of(n),
            When::From(n) => count >= n,
            When::Chance { per_million, seed } => mix(seed, count) % 1_000_000 < u64::from(per_million),
        }
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRule {
    /// It is about requests of these kinds.
    pub actions: Vec<Action>,
    /// And only those that touch these bytes, if given. A flush touches none.
    pub range: Option<Range<u64>>,
    /// Which of them.
    pub when: When,
    /// The error number they fail with.
    pub errno: i32,
}

/// The rules of an [`ErrorLayer`], changeable while it runs.
#[derive(Debug, Default)]
pub struct ErrorControl {
    /// With the number of requests each was about so far.
    rules: Mutex<Vec<(FaultRule, u64)>>,
    injected: AtomicU64,
}

impl ErrorControl {
    fn rules(&self) -> MutexGuard<'_, Vec<(FaultRule, u64)>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule. Of several that are met, the first added gives the error number.
    pub fn fail(&self, rule: FaultRule) {
        self.rules().push((rule, 0));
    }

    /// Fails reads and writes alike.
    pub fn fail_io(&self, when: When, errno: i32) {
        self.fail(FaultRule { actions: vec![Action::Read, Action::Write], range: None, when, errno });
    }

    /// Fails writes.
    pub fn fail_writes(&self, when: When, errno: i32) {
        self.fail(FaultRule { actions: vec![Action::Write], range: None, when, errno });
    }

    /// Fails reads.
    pub fn fail_reads(&self, when: When, errno: i32) {
        self.fail(FaultRule { actions: vec![Action::Read], range: None, when, errno });
    }

    /// Forgets all rules: the medium is well again.
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// Requests failed so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }
}

impl<B: Backing> ErrorLayer<B> {
    /// A layer without rules yet.
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
