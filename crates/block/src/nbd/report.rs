//! What a server says about its clients, to be written to a log.
//!
//! Each kind of event is reported when it happens and then at most once a minute with the number of those in between,
//! so that a client that tries again and again does not fill the disk that the log is on.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two reports of one kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// What happened to a client.
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// Turned away: the export is open to as many clients as may have it open.
    Full,
    /// Hung up on in its handshake.
    SlowHandshake,
    /// Hung up on because it never sent a request and another needed its place.
    Unused,
    /// Hung up on because of its user id.
    WrongPeer,
    /// The connection failed.
    Failed,
}

const EVENTS: usize = Event::Failed as usize + 1;

/// Receives reports, a sentence each.
type Sink = Box<dyn Fn(&str) + Send + Sync>;

/// Passes reports on, but not too many.
pub(super) struct Reporter {
    sink: Sink,
    kinds: Mutex<[Kind; EVENTS]>,
}

#[derive(Clone, Copy, Default)]
struct Kind {
    last: Option<Instant>,
    unreported: u64,
}

impl Reporter {
    pub(super) fn new(sink: Sink) -> Self {
        Reporter { sink, kinds: Mutex::default() }
    }

    pub(super) fn report(&self, event: Event, sentence: impl FnOnce() -> String) {
        let Some(unreported) = self.due(event, Instant::now()) else { return };
        let since = match unreported {
            0 => String::new(),
            n => format!(" (and {n} more since this was last said)"),
        };
        (self.sink)(&format!("{}{since}", sentence()));
    }

    /// Whether the event is to be reported; if so, how many before it were not.
    fn due(&self, event: Event, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = &mut kinds[event as usize];
        if kind.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            kind.unreported += 1;
            return None;
        }
        kind.last = Some(now);
        Some(std::mem::take(&mut kind.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_kind_are_counted_between_two_reports() {
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
