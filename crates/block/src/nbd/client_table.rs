//! [`ClientTable`], the limits of clients: whether a client may connect or open the export, and which client is evicted
//! to make space.
//!
//! Clients in their handshake and clients that have the export open are counted separately, so that silent clients do
//! not use up the limit of the others. At the limit of handshakes, the oldest handshake is evicted once it is older
//! than a grace period: a normal handshake takes milliseconds. At the limit of open exports, only a client that has
//! never sent a request is evicted. A client that has sent one may be a mounted file system, however long it has been
//! idle, and disconnecting it would be an I/O error there, so the new client is refused instead.
//!
//! The table has no sockets, threads, locks or clock. `server` calls it under its lock, and disconnects the clients
//! that the table evicts.

use super::limits::Limits;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The clients of a server, each with a handle `C`.
pub(super) struct ClientTable<C> {
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
    /// The client has not opened the export.
    Handshake,
    /// The client has the export open but has sent no request.
    Unused,
    /// The client has sent a request.
    Used,
    /// The client is being disconnected and counts for no limit.
    Evicted,
}

/// Whether another client may begin its handshake.
pub(super) enum HandshakeSlot<'p, C> {
    /// Yes.
    Free,
    /// Yes, in place of this client, which the caller must disconnect.
    Evicts(&'p C),
    /// Not now. Retry after this time, or when a client has disconnected or opened the export.
    RetryAfter(Duration),
}

/// Whether a client may open the export.
pub(super) enum OpenResult<'p, C> {
    /// Yes.
    Granted,
    /// Yes, in place of this client, which the caller must disconnect.
    Evicts(&'p C),
    /// No: too many clients have the export open, and none of them may be evicted.
    Full,
}

impl<C> ClientTable<C> {
    pub(super) fn new(limits: Limits) -> Self {
        ClientTable { limits, clients: HashMap::new() }
    }

    /// The number of clients in their handshake.
    pub(super) fn handshakes(&self) -> usize {
        self.clients.values().filter(|c| c.stage == Stage::Handshake).count()
    }

    /// The number of clients that have the export open.
    pub(super) fn open(&self) -> usize {
        self.clients.values().filter(|c| matches!(c.stage, Stage::Unused | Stage::Used)).count()
    }

    /// Checks the limit of handshakes for a new client, and evicts the oldest handshake if its grace period is over.
    pub(super) fn claim_handshake_slot(&mut self, now: Instant) -> HandshakeSlot<'_, C> {
        if self.handshakes() < self.limits.max_handshakes.max(1) {
            return HandshakeSlot::Free;
        }
        match self.oldest(Stage::Handshake, now) {
            None => HandshakeSlot::Free,
            Some((id, age)) => match self.limits.handshake_grace.checked_sub(age) {
                Some(left) if !left.is_zero() => HandshakeSlot::RetryAfter(left),
                _ => self.evict(id).map_or(HandshakeSlot::Free, HandshakeSlot::Evicts),
            },
        }
    }

    /// Adds a client that begins its handshake.
    pub(super) fn insert(&mut self, id: u64, client: C, now: Instant) {
        self.clients.insert(id, Entry { stage: Stage::Handshake, since: now, client });
    }

    /// Checks the limit of open exports for a client that has ended its handshake. Unless the result is
    /// [`OpenResult::Full`], the client counts as one that has the export open.
    pub(super) fn open_export(&mut self, id: u64, now: Instant) -> OpenResult<'_, C> {
        // A client that was evicted in its handshake may still get here; its next read or write fails.
        if self.clients.get(&id).is_none_or(|c| c.stage == Stage::Evicted) {
            return OpenResult::Full;
        }
        let mut to_evict = None;
        if self.open() >= self.limits.max_connections {
            match self.oldest(Stage::Unused, now) {
                Some((oldest, age)) if age >= self.limits.unused_grace => to_evict = Some(oldest),
                _ => return OpenResult::Full,
            }
        }
        self.set_stage(id, Stage::Unused, now);
        match to_evict.and_then(|oldest| self.evict(oldest)) {
            Some(client) => OpenResult::Evicts(client),
            None => OpenResult::Granted,
        }
    }

    /// Notes that a client has sent a request: from now on it cannot be evicted.
    pub(super) fn mark_used(&mut self, id: u64, now: Instant) {
        if self.clients.get(&id).is_some_and(|c| c.stage == Stage::Unused) {
            self.set_stage(id, Stage::Used, now);
        }
    }

    /// Removes a client, when its thread ends.
    pub(super) fn remove(&mut self, id: u64) -> Option<C> {
        self.clients.remove(&id).map(|entry| entry.client)
    }

    /// Removes all clients.
    pub(super) fn take_all(&mut self) -> Vec<C> {
        self.clients.drain().map(|(_, entry)| entry.client).collect()
    }

    fn set_stage(&mut self, id: u64, stage: Stage, now: Instant) {
        if let Some(entry) = self.clients.get_mut(&id) {
            (entry.stage, entry.since) = (stage, now);
        }
    }

    /// The client that has been in `stage` for the longest time, and that time.
    fn oldest(&self, stage: Stage, now: Instant) -> Option<(u64, Duration)> {
        let in_stage = self.clients.iter().filter(|(_, entry)| entry.stage == stage);
        let oldest = in_stage.min_by_key(|(id, entry)| (entry.since, **id));
        oldest.map(|(id, entry)| (*id, now.saturating_duration_since(entry.since)))
    }

    /// Marks a client as evicted and returns its handle.
    fn evict(&mut self, id: u64) -> Option<&C> {
        let entry = self.clients.get_mut(&id)?;
        entry.stage = Stage::Evicted;
        Some(&entry.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn new_table(max_connections: usize, max_handshakes: usize) -> ClientTable<u64> {
        ClientTable::new(Limits {
            max_connections,
            max_handshakes,
            handshake_grace: SECOND,
            unused_grace: 10 * SECOND,
            ..Limits::default()
        })
    }

    #[test]
    fn the_oldest_handshake_is_evicted_after_its_grace_period() {
        let start = Instant::now();
        let mut table = new_table(1, 2);
        table.insert(1, 1, start);
        table.insert(2, 2, start + SECOND / 2);
        let early = table.claim_handshake_slot(start + SECOND / 4);
        assert!(matches!(early, HandshakeSlot::RetryAfter(left) if left == SECOND * 3 / 4));
        assert!(matches!(table.claim_handshake_slot(start + SECOND), HandshakeSlot::Evicts(1)));
        // An evicted client stops counting before its thread ends, and cannot open the export.
        assert!(matches!(table.claim_handshake_slot(start + SECOND), HandshakeSlot::Free));
        assert!(matches!(table.open_export(1, start + SECOND), OpenResult::Full));
        assert_eq!((table.handshakes(), table.open()), (1, 0));
        assert_eq!((table.remove(1), table.remove(1)), (Some(1), None));
    }

    #[test]
    fn at_the_limit_only_a_client_that_sent_no_request_is_evicted() {
        let start = Instant::now();
        let mut table = new_table(2, 8);
        for id in 1..=4 {
            table.insert(id, id, start);
        }
        assert!(matches!(table.open_export(1, start), OpenResult::Granted));
        assert!(matches!(table.open_export(2, start), OpenResult::Granted));
        table.mark_used(1, start);
        assert!(matches!(table.open_export(3, start + 9 * SECOND), OpenResult::Full));
        assert_eq!(table.handshakes(), 2, "a refused client stays in its handshake and may retry");
        assert!(matches!(table.open_export(3, start + 10 * SECOND), OpenResult::Evicts(2)));
        table.mark_used(2, start + 10 * SECOND);
        table.mark_used(3, start + 10 * SECOND);
        assert_eq!(table.open(), 2);
        assert!(matches!(table.open_export(4, start + 1000 * SECOND), OpenResult::Full));
        table.remove(3);
        assert!(matches!(table.open_export(4, start + 1000 * SECOND), OpenResult::Granted));
        assert_eq!(table.take_all().len(), 3);
    }
}
