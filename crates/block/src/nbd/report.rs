//! [`Reporter`], rate-limited reports of a server about its clients, for a log.
//!
//! It reports each kind of event at most once a minute, with the number of events since the previous report, so that
//! a client that reconnects in a loop does not fill the log's disk. Any thread of the server may report; a lock
//! protects the counts and is released before the log is called.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two reports of one kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// An event of a client that is reported.
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// A client was refused because too many have the export open.
    Full,
    /// A client was disconnected because its handshake took too long.
    SlowHandshake,
    /// A client was disconnected in favour of another because it had sent no request.
    Unused,
    /// A client was disconnected because of its user id.
    WrongPeer,
    /// A connection failed.
    Failed,
}

const EVENTS: usize = Event::Failed as usize + 1;

/// Receives the reports, a sentence each.
type Log = Box<dyn Fn(&str) + Send + Sync>;

/// Passes reports to a log, at most one of each kind per [`INTERVAL`].
pub(super) struct Reporter {
    log: Log,
    states: Mutex<[EventState; EVENTS]>,
}

#[derive(Clone, Copy, Default)]
struct EventState {
    last_report: Option<Instant>,
    /// Events since the last report.
    unreported: u64,
    /// All events.
    count: u64,
}

impl Reporter {
    pub(super) fn new(log: Log) -> Self {
        Reporter { log, states: Mutex::default() }
    }

    /// Returns how often an event has occurred.
    pub(super) fn count(&self, event: Event) -> u64 {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)[event as usize].count
    }

    /// Counts an event, and reports it unless the last report of its kind is too recent.
    pub(super) fn report(&self, event: Event, sentence: impl FnOnce() -> String) {
        let Some(unreported) = self.due(event, Instant::now()) else { return };
        let suffix = match unreported {
            0 => String::new(),
            n => format!(" ({n} more since the last such message)"),
        };
        (self.log)(&format!("{}{suffix}", sentence()));
    }

    /// Counts an event. If it is to be reported, returns the number of events before it that were not.
    fn due(&self, event: Event, now: Instant) -> Option<u64> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut states[event as usize];
        state.count += 1;
        if state.last_report.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            state.unreported += 1;
            return None;
        }
        state.last_report = Some(now);
        Some(std::mem::take(&mut state.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_between_two_reports_of_a_kind_are_counted() {
        let reporter = Reporter::new(Box::new(|_| ()));
        let start = Instant::now();
        let due = |event, at| reporter.due(event, start + Duration::from_secs(at));
        assert_eq!(due(Event::Full, 0), Some(0));
        assert_eq!((due(Event::Full, 1), due(Event::Full, 59)), (None, None));
        assert_eq!(due(Event::Failed, 59), Some(0));
        assert_eq!(due(Event::Full, 60), Some(2));
        assert_eq!(due(Event::Full, 120), Some(0));
    }
}
