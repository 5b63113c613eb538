//! One decompression at a time of a cluster, whoever asks: the others wait for it and take its result.
//!
//! A reader who joins what read-ahead began makes it required: if read-ahead gives up for want of room, the flight ends with
//! nothing, and the first of those who joined begins it again, with a required reader's rights.

use super::cache::{Key, Piece};
use pagefold_backing::Demand;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How a flight ended.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// With bytes for everybody.
    Piece(Arc<Piece>),
    /// With nothing to share, or with an error: whoever joined looks after himself.
    Nothing,
}

#[derive(Default)]
pub(crate) struct Flights {
    under_way: Mutex<HashMap<Key, Arc<Flight>>>,
}

#[derive(Default)]
struct Flight {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    joined: bool,
    outcome: Option<Outcome>,
}

impl Flight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of asking.
pub(crate) enum Entered<'a> {
    /// The caller decodes, and says how it ended.
    Mine(Pilot<'a>),
    /// Somebody else did.
    Theirs(Outcome),
    /// Somebody else does, and the caller did not want to wait.
    Busy,
}

impl Flights {
    fn under_way(&self) -> MutexGuard<'_, HashMap<Key, Arc<Flight>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a flight for `key`, or joins the one under way: a required caller waits for its end.
    pub(crate) fn enter(&self, key: Key, demand: Demand) -> Entered<'_> {
        let flight = match self.under_way().entry(key) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let flight = entry.insert(Arc::default()).clone();
                return Entered::Mine(Pilot { flights: self, key, flight });
            }
        };
        if demand == Demand::BestEffort {
            return Entered::Busy;
        }
        let mut state = flight.state();
        state.joined = true;
        loop {
            if let Some(outcome) = &state.outcome {
                return Entered::Theirs(outcome.clone());
            }
            state = flight.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Whoever decodes. Dropping it without a word ends the flight with nothing.
pub(crate) struct Pilot<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
}

impl Pilot<'_> {
    /// What the flight is for.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Whether others wait for the result.
    pub(crate) fn joined(&self) -> bool {
        self.flight.state().joined
    }

    /// Ends the flight.
    pub(crate) fn land(self, outcome: Outcome) {
        self.flight.state().outcome = Some(outcome);
    }
}

impl Drop for Pilot<'_> {
    fn drop(&mut self) {
        self.flights.under_way().remove(&self.key);
        self.flight.state().outcome.get_or_insert(Outcome::Nothing);
        self.flight.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use pagefold_backing::Buffer;

    const KEY: Key = Key::Meta(Address { space: crate::Space::Metabox, offset: 0 });

    fn mine(flights: &Flights, demand: Demand) -> Pilot<'_> {
        match flights.enter(KEY, demand) {
            Entered::Mine(pilot) => pilot,
            _ => panic!("somebody else's flight"),
        }
    }

    #[test]
    fn who_joins_gets_the_result() {
        let flights = Flights::default();
        let pilot = mine(&flights, Demand::BestEffort);
        assert!(matches!(flights.enter(KEY, Demand::BestEffort), Entered::Busy));
        std::thread::scope(|scope| {
            let joiner = scope.spawn(|| flights.enter(KEY, Demand::Required));
            while !pilot.joined() {
                std::thread::yield_now();
            }
            pilot.land(Outcome::Piece(Arc::new(Piece { buffer: Buffer::copy_of(b"x"), len_bytes: 1 })));
            assert!(
                matches!(joiner.join().unwrap(), Entered::Theirs(Outcome::Piece(p)) if p.bytes() == b"x")
            );
        });
        assert!(flights.under_way().is_empty());
    }

    #[test]
    fn a_flight_that_is_forgotten_ends_with_nothing() {
        let flights = Flights::default();
        let pilot = mine(&flights, Demand::Required);
        std::thread::scope(|scope| {
            let joiner = scope.spawn(|| flights.enter(KEY, Demand::Required));
            while !pilot.joined() {
                std::thread::yield_now();
            }
            drop(pilot);
            assert!(matches!(joiner.join().unwrap(), Entered::Theirs(Outcome::Nothing)));
        });
    }
}
