//! Which clients have a place at the server, and which of them gives way to another.
//!
//! Handshakes have places of their own, so that clients that say nothing take none from those that have the export
//! open. When all are taken, the oldest handshake gives way to a newcomer, as a real one takes milliseconds. Among the
//! clients that have the export open only one that has never sent a request gives way: to hang up on one that has would
//! be an I/O error to whoever uses the disk there, however long it has been idle, so then the newcomer is refused.
//!
//! It is book-keeping without sockets, threads or a clock; `server` does what it says.

use super::server::Limits;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The clients of a server, each with `C` to reach it by.
pub(super) struct Places<C> {
    limits: Limits,
    clients: HashMap<u64, Entry<C>>,
}

struct Entry<C> {
    stage: Stage,
    /// When the stage began.
    since: Instant,
    client: C,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Handshake,
    /// The export is open, but no request has come.
    Unused,
    Used,
    /// It was told to go and takes no place any more.
    Leaving,
}

/// Whether one client more may begin its handshake.
pub(super) enum Room<'p, C> {
    Free,
    /// Yes; this client gives way and is to be hung up on.
    InPlaceOf(&'p C),
    /// Ask again after this long, or when a client has left or opened the export.
    Later(Duration),
}

/// Whether a client may open the export.
pub(super) enum Opening<'p, C> {
    Granted,
    /// Yes; this client gives way and is to be hung up on.
    InPlaceOf(&'p C),
    Full,
}

impl<C> Places<C> {
    pub(super) fn new(limits: Limits) -> Self {
        Places { limits, clients: HashMap::new() }
    }

    /// How many clients are in their handshake.
    pub(super) fn handshakes(&self) -> usize {
        self.clients.values().filter(|c| c.stage == Stage::Handshake).count()
    }

    /// How many clients have the export open.
    pub(super) fn open(&self) -> usize {
        self.clients.values().filter(|c| matches!(c.stage, Stage::Unused | Stage::Used)).count()
    }

    /// Asks for a place for a handshake.
    pub(super) fn room(&mut self, now: Instant) -> Room<'_, C> {
        if self.handshakes() < self.limits.max_handshakes.max(1) {
            return Room::Free;
        }
        match self.oldest(Stage::Handshake, now) {
            None => Room::Free,
            Some((id, age)) => match self.limits.handshake_grace.checked_sub(age) {
                Some(left) if !left.is_zero() => Room::Later(left),
                _ => self.dismiss(id).map_or(Room::Free, Room::InPlaceOf),
            },
        }
    }

    /// Enters a client that begins its handshake.
    pub(super) fn enter(&mut self, id: u64, client: C, now: Instant) {
        self.clients.insert(id, Entry { stage: Stage::Handshake, since: now, client });
    }

    /// Asks for a place for a client that has ended its handshake, and gives it that place.
    pub(super) fn open_export(&mut self, id: u64, now: Instant) -> Opening<'_, C> {
        // It gave way to another client just now, and will see that its socket is shut down.
        if self.clients.get(&id).is_none_or(|c| c.stage == Stage::Leaving) {
            return Opening::Full;
        }
        let mut gives_way = None;
        if self.open() >= self.limits.max_connections {
            match self.oldest(Stage::Unused, now) {
                Some((oldest, age)) if age >= self.limits.unused_grace => gives_way = Some(oldest),
                _ => return Opening::Full,
            }
        }
        self.set_stage(id, Stage::Unused, now);
        match gives_way.and_then(|oldest| self.dismiss(oldest)) {
            Some(client) => Opening::InPlaceOf(client),
            None => Opening::Granted,
        }
    }

    /// Notes that a client has sent a request.
    pub(super) fn use_export(&mut self, id: u64, now: Instant) {
        if self.clients.get(&id).is_some_and(|c| c.stage == Stage::Unused) {
            self.set_stage(id, Stage::Used, now);
        }
    }

    /// Takes a client out.
    pub(super) fn remove(&mut self, id: u64) -> Option<C> {
        self.clients.remove(&id).map(|entry| entry.client)
    }

    /// Takes all clients out.
    pub(super) fn take_all(&mut self) -> Vec<C> {
        self.clients.drain().map(|(_, entry)| entry.client).collect()
    }

    fn set_stage(&mut self, id: u64, stage: Stage, now: Instant) {
        if let Some(entry) = self.clients.get_mut(&id) {
            (entry.stage, entry.since) = (stage, now);
        }
    }

    /// The client that has been in `stage` for longest, and for how long.
    fn oldest(&self, stage: Stage, now: Instant) -> Option<(u64, Duration)> {
        let in_stage = self.clients.iter().filter(|(_, entry)| entry.stage == stage);
        let oldest = in_stage.min_by_key(|(id, entry)| (entry.since, **id));
        oldest.map(|(id, entry)| (*id, now.saturating_duration_since(entry.since)))
    }

    fn dismiss(&mut self, id: u64) -> Option<&C> {
        let entry = self.clients.get_mut(&id)?;
        entry.stage = Stage::Leaving;
        Some(&entry.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn places(max_connections: usize, max_handshakes: usize) -> Places<u64> {
        Places::new(Limits {
            max_connections,
            max_handshakes,
            handshake_grace: SECOND,
            unused_grace: 10 * SECOND,
            ..Limits::default()
        })
    }

    #[test]
    fn the_oldest_handshake_gives_way_after_its_grace() {
        let start = Instant::now();
        let mut p = places(1, 2);
        p.enter(1, 1, start);
        p.enter(2, 2, start + SECOND / 2);
        assert!(matches!(p.room(start + SECOND / 4), Room::Later(left) if left == SECOND * 3 / 4));
        assert!(matches!(p.room(start + SECOND), Room::InPlaceOf(1)));
        // Its place is free before its thread has gone, and it cannot open the export any more.
        assert!(matches!(p.room(start + SECOND), Room::Free));
        assert!(matches!(p.open_export(1, start + SECOND), Opening::Full));
        assert_eq!((p.handshakes(), p.open()), (1, 0));
        assert_eq!((p.remove(1), p.remove(1)), (Some(1), None));
    }

    #[test]
    fn only_a_client_that_never_asked_for_anything_gives_way_when_the_export_is_full() {
        let start = Instant::now();
        let mut p = places(2, 8);
        for id in 1..=4 {
            p.enter(id, id, start);
        }
        assert!(matches!(p.open_export(1, start), Opening::Granted));
        assert!(matches!(p.open_export(2, start), Opening::Granted));
        p.use_export(1, start);
        assert!(matches!(p.open_export(3, start + 9 * SECOND), Opening::Full));
        assert_eq!(p.handshakes(), 2, "a client that was refused may ask again");
        assert!(matches!(p.open_export(3, start + 10 * SECOND), Opening::InPlaceOf(2)));
        p.use_export(2, start + 10 * SECOND);
        p.use_export(3, start + 10 * SECOND);
        assert_eq!(p.open(), 2);
        assert!(matches!(p.open_export(4, start + 1000 * SECOND), Opening::Full));
        p.remove(3);
        assert!(matches!(p.open_export(4, start + 1000 * SECOND), Opening::Granted));
        assert_eq!(p.take_all().len(), 3);
    }
}
