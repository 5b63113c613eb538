//! A frame source that refuses chosen requests, for fault tests.

use crate::{Arena, Frame, FrameSource, Frames, Purpose, SourceError, Take};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Passes requests to another source, but refuses the `n`-th request for a frame, counted from 0, and all later ones
/// until [`RefuseNth::allow`].
pub struct RefuseNth<S> {
    inner: S,
    left: AtomicU64,
}

/// More requests than are ever made, small enough to add requests that were "not ready".
const NEVER: u64 = u64::MAX / 2;

impl<S: FrameSource> RefuseNth<S> {
    /// Creates a source that refuses from the `n`-th request on.
    pub fn new(inner: S, n: u64) -> Self {
        RefuseNth { inner, left: AtomicU64::new(n.min(NEVER)) }
    }

    /// Refuses from the `n`-th request after this call on.
    pub fn refuse_after(&self, n: u64) {
        self.left.store(n.min(NEVER), Relaxed);
    }

    /// Refuses nothing from now on.
    pub fn allow(&self) {
        self.refuse_after(NEVER);
    }

    /// Counts a request for `count` frames. Returns false if it is refused.
    fn allows(&self, count: usize) -> bool {
        let count = count as u64;
        let left = |left: u64| Some(left.saturating_sub(count));
        self.left.fetch_update(Relaxed, Relaxed, left).is_ok_and(|before| before >= count)
    }
}

// SAFETY: all frames come from the inner source and are passed on unchanged.
unsafe impl<S: FrameSource> FrameSource for RefuseNth<S> {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        if !self.allows(count) {
            return Take::Failed(SourceError::RefusedByTest);
        }
        match self.inner.try_take(purpose, count) {
            Take::NotReady => {
                // No frame was taken: the request is counted when it is repeated.
                self.left.fetch_add(count as u64, Relaxed);
                Take::NotReady
            }
            answer => answer,
        }
    }

    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        match self.allows(count) {
            true => self.inner.charge(purpose, count),
            false => Err(SourceError::RefusedByTest),
        }
    }

    fn refund(&self, purpose: Purpose, count: usize) {
        self.inner.refund(purpose, count);
    }

    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        self.inner.obtain(count)
    }

    fn release(&self, frame: Frame, purpose: Purpose) {
        self.inner.release(frame, purpose);
    }

    fn shrink(&self) {
        self.inner.shrink();
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }
}
