//! A source that refuses a chosen request: the fault layer of the pool's memory.

use crate::{Arena, FrameId, Frames, PageSource, Purpose, SourceError, Take};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Passes everything on but the `n`-th request for a frame, counted from 0, and those after it until
/// [`RefuseNth::allow`].
pub struct RefuseNth<S> {
    inner: S,
    left: AtomicU64,
}

/// More requests than are ever made, with room to add those that were answered "not ready".
const NEVER: u64 = u64::MAX / 2;

impl<S: PageSource> RefuseNth<S> {
    /// Refuses from the `n`-th request on.
    pub fn new(inner: S, n: u64) -> Self {
        RefuseNth { inner, left: AtomicU64::new(n.min(NEVER)) }
    }

    /// Refuses from the `n`-th request from now on.
    pub fn refuse_after(&self, n: u64) {
        self.left.store(n.min(NEVER), Relaxed);
    }

    /// Refuses nothing from now on.
    pub fn allow(&self) {
        self.refuse_after(NEVER);
    }

    /// Counts a request for `count` frames; false if it is to be refused, as all that follow are.
    fn allows(&self, count: usize) -> bool {
        let count = count as u64;
        let left = |left: u64| Some(left.saturating_sub(count));
        self.left.fetch_update(Relaxed, Relaxed, left).is_ok_and(|before| before >= count)
    }
}

// SAFETY: all frames are the inner source's, handed on as it hands them out.
unsafe impl<S: PageSource> PageSource for RefuseNth<S> {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        if !self.allows(count) {
            return Take::Refused(SourceError::Refused);
        }
        match self.inner.try_take(purpose, count) {
            Take::NotReady => {
                // No frame was handed out: the request is counted when it is made again.
                self.left.fetch_add(count as u64, Relaxed);
                Take::NotReady
            }
            answer => answer,
        }
    }

    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        match self.allows(count) {
            true => self.inner.charge(purpose, count),
            false => Err(SourceError::Refused),
        }
    }

    fn refund(&self, purpose: Purpose, count: usize) {
        self.inner.refund(purpose, count);
    }

    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        self.inner.obtain(count)
    }

    fn give(&self, frame: FrameId, purpose: Purpose) {
        self.inner.give(frame, purpose);
    }

    fn relieve(&self) {
        self.inner.relieve();
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }
}
