//! Single-flight decoding: at most one thread decodes a given cluster at a time, and other readers of it wait for the
//! result.
//!
//! The first caller of [`SingleFlight::enter`] for a key becomes the [`Leader`] and decodes; later callers are
//! followers. Read-ahead (best effort) never waits: as a follower it returns at once. If read-ahead is the leader and
//! gives up for want of memory, its flight completes with [`Completion::Nothing`]; the first follower that retries
//! becomes the leader, and it waits for memory as every required reader does.
//!
//! Locks: the table's mutex and a flight's mutex are never held together. A follower sleeps on the flight's condition
//! variable, and the leader wakes it when it is dropped, after an error or a panic too.

use super::cache::{Key, Piece};
use pagefold_backing::Demand;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The result that a flight leaves to its followers.
#[derive(Clone)]
pub(crate) enum Completion {
    /// Decoded bytes.
    Piece(Arc<Piece>),
    /// Nothing to share, or an error: each follower retries by itself.
    Nothing,
}

/// The table of flights under way, by cluster.
#[derive(Default)]
pub(crate) struct SingleFlight {
    under_way: Mutex<HashMap<Key, Arc<Flight>>>,
}

#[derive(Default)]
struct Flight {
    state: Mutex<State>,
    completed: Condvar,
}

#[derive(Default)]
struct State {
    has_followers: bool,
    completion: Option<Completion>,
}

impl Flight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let mut state = flight.state();
        state.has_followers = true;
        loop {
            if let Some(completion) = &state.completion {
                return Role::Follower(completion.clone());
            }
            state = flight.completed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The right and the duty to decode one cluster. A drop without [`Leader::complete`] completes with
/// [`Completion::Nothing`].
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
        self.flight.state().has_followers
    }

    /// Ends the flight and wakes its followers.
    pub(crate) fn complete(self, completion: Completion) {
        self.flight.state().completion = Some(completion);
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.table.under_way().remove(&self.key);
        self.flight.state().completion.get_or_insert(Completion::Nothing);
        self.flight.completed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use pagefold_backing::Buffer;

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
            let piece = Piece { buffer: Buffer::copy_of(b"x"), len_bytes: 1, is_whole: true };
            leader.complete(Completion::Piece(Arc::new(piece)));
            let role = follower.join().unwrap();
            assert!(matches!(role, Role::Follower(Completion::Piece(p)) if p.bytes() == b"x"));
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
            assert!(matches!(follower.join().unwrap(), Role::Follower(Completion::Nothing)));
        });
    }
}
