//! [`RequestMemory`], the bytes that the waiting requests of one connection may take.
//!
//! Each connection has [`OWN_BYTES`] for itself. The connections of a server share [`SHARED_BYTES`] beyond that, which is
//! one request of the greatest length. So no client can take all memory for waiting requests from the others, and their
//! total is bounded. Memory is refused, never waited for.

use super::proto::MAX_DATA;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bytes that each connection has for itself.
pub const OWN_BYTES: usize = 4 << 20;
/// The bytes that all connections of a server share beyond that.
const SHARED_BYTES: usize = MAX_DATA as usize;

/// The bytes beyond their own that the connections of one server have taken.
#[derive(Debug, Default)]
pub struct SharedRequestMemory(AtomicUsize);

/// The memory of one connection. Dropping it returns all that was taken.
pub struct RequestMemory {
    taken_bytes: usize,
    shared: Arc<SharedRequestMemory>,
}

impl RequestMemory {
    /// Makes the memory of a new connection, of which nothing is taken.
    pub fn new(shared: Arc<SharedRequestMemory>) -> Self {
        RequestMemory { taken_bytes: 0, shared }
    }

    /// Takes bytes: the connection's own first, then shared ones. Returns false, and takes none, if there are too few.
    pub fn take(&mut self, len_bytes: usize) -> bool {
        let Some(taken_bytes) = self.taken_bytes.checked_add(len_bytes) else { return false };
        let more_bytes = beyond_own(taken_bytes) - beyond_own(self.taken_bytes);
        // The count orders no other memory, and RequestMemory::put_back lowers it by no more than was added here.
        let is_taken = more_bytes == 0
            || (self.shared.0)
                .fetch_update(Relaxed, Relaxed, |taken| {
                    taken.checked_add(more_bytes).filter(|sum| *sum <= SHARED_BYTES)
                })
                .is_ok();
        if is_taken {
            self.taken_bytes = taken_bytes;
        }
        is_taken
    }

    /// Returns bytes that were taken, shared ones first.
    pub fn put_back(&mut self, len_bytes: usize) {
        let taken_bytes = self.taken_bytes.saturating_sub(len_bytes);
        let returned_bytes = beyond_own(self.taken_bytes) - beyond_own(taken_bytes);
        self.shared.0.fetch_sub(returned_bytes, Relaxed);
        self.taken_bytes = taken_bytes;
    }
}

impl Drop for RequestMemory {
    fn drop(&mut self) {
        self.put_back(self.taken_bytes);
    }
}

/// The part of a connection's bytes that comes from the shared ones.
fn beyond_own(taken_bytes: usize) -> usize {
    taken_bytes.saturating_sub(OWN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_its_own_memory_whatever_the_others_take() {
        let shared = Arc::new(SharedRequestMemory::default());
        let (mut greedy, mut other) =
            (RequestMemory::new(shared.clone()), RequestMemory::new(shared.clone()));
        assert!(greedy.take(OWN_BYTES + SHARED_BYTES) && !greedy.take(1) && !greedy.take(usize::MAX));
        assert!(!other.take(OWN_BYTES + 1) && other.take(OWN_BYTES) && !other.take(1));
        greedy.put_back(1);
        assert!(other.take(1) && !greedy.take(1));
        other.put_back(OWN_BYTES);
        assert!(greedy.take(1), "the shared byte is returned first");
        drop(greedy);
        assert!(other.take(OWN_BYTES + SHARED_BYTES - 1) && !other.take(1));
        drop(other);
        assert_eq!(shared.0.load(Relaxed), 0);
    }
}
