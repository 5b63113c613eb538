//! Single-flight decoding: at most one thread decodes a given cluster at a time, and other readers of it wait for the
//! result.
//!
//! The first caller of [`SingleFlight::enter`] for a key becomes the [`Leader`] and decodes; later callers are
//! followers. Read-ahead (best effort) never waits: as a follower it returns at once. If read-ahead is the leader and
//! gives up for want of memory, its flight completes with nothing; the first follower that retries
//! becomes the leader, and it waits for memory as every required reader does.
//!
//! A follower sleeps until the flight has a [`Completion`], without the table's mutex. The leader sets one when it is
//! dropped, after an error or a panic too.

use super::cache::{Key, Piece};
use pagefold_backing::Demand;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The result that a flight leaves to its followers. `None`: there is nothing to share, or an error, and each follower
/// retries by itself.
pub(crate) type Completion = Option<Arc<Piece>>;

/// The table of flights under way, by cluster.
#[derive(Default)]
pub(crate) struct SingleFlight {
    under_way: Mutex<HashMap<Key, Arc<Flight>>>,
}

#[derive(Default)]
struct Flight {
    has_followers: AtomicBool,
    completion: OnceLock<Completion>,
}

/// The role that [`SingleFlight::enter`] assigns to its caller.
pub(crate) enum Role<'a> {
    /// The caller decodes, and then calls [`Leader::complete`].
    Leader(Leader<'a>),
    /// Another thread was the leader and has completed.
    Follower(Completion),
    /// Another thread is the leader, and the caller does not wait.
    Busy,
}

impl SingleFlight {
    /// Whether a flight under way has followers.
    #[cfg(test)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.under_way().values().any(|flight| flight.has_followers.load(Ordering::Relaxed))
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Key, Arc<Flight>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a flight for `key`, or joins the one under way. A required caller that joins sleeps until the flight
    /// completes; a best-effort caller gets [`Role::Busy`].
    pub(crate) fn enter(&self, key: Key, demand: Demand) -> Role<'_> {
        let flight = match self.under_way().entry(key) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let flight = entry.insert(Arc::default()).clone();
                return Role::Leader(Leader { table: self, key, flight });
            }
        };
        if demand == Demand::BestEffort {
            return Role::Busy;
        }
        flight.has_followers.store(true, Ordering::Relaxed);
        Role::Follower(flight.completion.wait().clone())
    }
}

/// The right and the duty to decode one cluster. A drop without [`Leader::complete`] completes with nothing.
pub(crate) struct Leader<'a> {
    table: &'a SingleFlight,
    key: Key,
    flight: Arc<Flight>,
}

impl Leader<'_> {
    /// The key of the cluster to decode.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Whether other threads wait for the result.
    pub(crate) fn has_followers(&self) -> bool {
        self.flight.has_followers.load(Ordering::Relaxed)
    }

    /// Ends the flight and wakes its followers.
    pub(crate) fn complete(self, completion: Completion) {
        // The leader is the only one that sets it, once.
        let _ = self.flight.completion.set(completion);
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.table.under_way().remove(&self.key);
        self.flight.completion.get_or_init(|| None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use crate::budget::test_buffer;

    const KEY: Key = Key::Meta(Address { space: crate::Space::Metabox, offset: 0 });

    fn lead(table: &SingleFlight, demand: Demand) -> Leader<'_> {
        match table.enter(KEY, demand) {
            Role::Leader(leader) => leader,
            _ => panic!("another thread leads"),
        }
    }

    #[test]
    fn a_follower_gets_the_leaders_result() {
        let table = SingleFlight::default();
        let leader = lead(&table, Demand::BestEffort);
        assert!(matches!(table.enter(KEY, Demand::BestEffort), Role::Busy));
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| table.enter(KEY, Demand::Required));
            while !leader.has_followers() {
                std::thread::yield_now();
            }
            let mut buffer = test_buffer(1);
            buffer.copy_from_slice(b"x");
            leader.complete(Some(Arc::new(Piece { buffer, len_bytes: 1, is_whole: true })));
            let role = follower.join().unwrap();
            assert!(matches!(role, Role::Follower(Some(p)) if p.bytes() == b"x"));
        });
        assert!(table.under_way().is_empty());
    }

    #[test]
    fn dropping_the_leader_completes_with_nothing() {
        let table = SingleFlight::default();
        let leader = lead(&table, Demand::Required);
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| table.enter(KEY, Demand::Required));
            while !leader.has_followers() {
                std::thread::yield_now();
            }
            drop(leader);
            assert!(matches!(follower.join().unwrap(), Role::Follower(None)));
        });
    }
}
