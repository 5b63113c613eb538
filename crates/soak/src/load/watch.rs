//! Requests that are not answered: one slot for each thread, and a look at all of them now and then.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A request is to be answered within this time.
pub const ANSWER: Duration = Duration::from_secs(60);
/// How often slots are looked at.
pub const LOOK: Duration = Duration::from_millis(200);

/// The requests that are under way.
pub struct Watch {
    began: Instant,
    slots: Vec<Slot>,
}

/// One thread's request.
#[derive(Default)]
struct Slot {
    /// Milliseconds from the beginning to the request's, plus one; 0 without a request.
    since: AtomicU64,
    /// What it is, as an index into [`NAMES`].
    what: AtomicU64,
    offset: AtomicU64,
    len_bytes: AtomicU64,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards.
    Discard,
    /// Writes zeroes.
    Zero,
}

const NAMES: [&str; 4] = ["read", "write", "discard", "write of zeroes"];

/// A request that is under way until this is dropped.
pub struct UnderWay<'a>(&'a Slot);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, Relaxed);
    }
}

impl Watch {
    /// A watch over so many threads.
    pub fn new(threads: usize) -> Self {
        Watch { began: Instant::now(), slots: (0..threads).map(|_| Slot::default()).collect() }
    }

    /// Thread `thread` makes a request.
    pub fn begin(&self, thread: usize, what: What, offset: u64, len_bytes: u64) -> UnderWay<'_> {
        let slot = &self.slots[thread];
        slot.what.store(what as u64, Relaxed);
        slot.offset.store(offset, Relaxed);
        slot.len_bytes.store(len_bytes, Relaxed);
        slot.since.store(self.began.elapsed().as_millis() as u64 + 1, Relaxed);
        UnderWay(slot)
    }

    /// The requests that have been under way for longer than they may.
    pub fn overdue(&self) -> Option<String> {
        self.older_than(ANSWER)
    }

    fn older_than(&self, age: Duration) -> Option<String> {
        let now = self.began.elapsed().as_millis() as u64 + 1;
        let overdue = |slot: &&Slot| {
            let since = slot.since.load(Relaxed);
            since > 0 && now.saturating_sub(since) > age.as_millis() as u64
        };
        let describe = |slot: &Slot| {
            let name = NAMES.get(slot.what.load(Relaxed) as usize).unwrap_or(&"request");
            format!("{name} of {} bytes at {}", slot.len_bytes.load(Relaxed), slot.offset.load(Relaxed))
        };
        let found: Vec<_> = self.slots.iter().filter(overdue).map(describe).collect();
        (!found.is_empty()).then(|| format!("not answered after {age:?}: {}", found.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_overdue_until_it_is_answered() {
        let watch = Watch::new(2);
        assert_eq!(watch.older_than(Duration::ZERO), None);
        let request = watch.begin(1, What::Discard, 4096, 512);
        std::thread::sleep(Duration::from_millis(5));
        let text = watch.older_than(Duration::ZERO).unwrap();
        assert!(text.ends_with("discard of 512 bytes at 4096"), "{text}");
        assert_eq!(watch.overdue(), None);
        drop(request);
        assert_eq!(watch.older_than(Duration::ZERO), None);
    }
}
