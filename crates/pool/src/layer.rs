//! A source that refuses a chosen request: the fault layer of the pool's memory.

use crate::{Arena, FrameId, PageSource, Purpose, SourceError, Take};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Passes everything on but the `n`-th request for a frame, counted from 0, and those after it until
/// [`RefuseNth::allow`].
pub struct RefuseNth<S> {
    inner: S,
    left: AtomicU64,
}

impl<S: PageSource> RefuseNth<S> {
    /// Refuses from the `n`-th request on.
    pub fn new(inner: S, n: u64) -> Self {
        RefuseNth { inner, left: AtomicU64::new(n) }
    }

    /// Refuses from the `n`-th request from now on.
    pub fn refuse_after(&self, n: u64) {
        self.left.store(n, Relaxed);
    }

    /// Refuses nothing from now on.
    pub fn allow(&self) {
        self.refuse_after(u64::MAX);
    }
}

impl<S: PageSource> PageSource for RefuseNth<S> {
    fn try_take(&self, purpose: Purpose) -> Take {
        let before = self.left.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(1)));
        match before {
            Ok(0) => Take::Refused(SourceError::Refused),
            Ok(n) => match self.inner.try_take(purpose) {
                Take::Dry => {
                    // A dry answer is no frame: it does not count.
                    self.left.store(n, Relaxed);
                    Take::Dry
                }
                answer => answer,
            },
            Err(_) => self.inner.try_take(purpose),
        }
    }

    fn refill(&self) -> Result<(), SourceError> {
        self.inner.refill()
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

impl<S: PageSource + ?Sized> PageSource for std::sync::Arc<S> {
    fn try_take(&self, purpose: Purpose) -> Take {
        (**self).try_take(purpose)
    }

    fn refill(&self) -> Result<(), SourceError> {
        (**self).refill()
    }

    fn give(&self, frame: FrameId, purpose: Purpose) {
        (**self).give(frame, purpose);
    }

    fn relieve(&self) {
        (**self).relieve();
    }

    fn arena(&self) -> &Arena {
        (**self).arena()
    }
}
