//! Looks at a disk a few times a second while it is under load, and judges each refusal that the server counts.
//!
//! A refusal that a file system or fio meets may never reach the program that wrote, so the server's own counters are
//! what is trusted. Between two looks memory and backing change; what favours a refusal most of all looks of the last
//! seconds is what is judged. Memory is judged by its highest mark since the disk was made, too: a limit that was never
//! reached excuses nothing.

use super::server::Server;
use crate::load::mixed::Referee;
use crate::load::watch::ANSWER;
use crate::model::{self, Room, Seen, Verdict};
use crate::part::{Fault, FaultKind};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a disk is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// A look that is not older excuses further refusals.
const NEW: Duration = Duration::from_millis(50);
/// How long a look counts.
const COUNTS: Duration = Duration::from_secs(3);

/// The looks at one disk.
pub struct Sampler<'a> {
    server: &'a Server<'a>,
    /// Requests that may be under way at the same time.
    requests: u64,
    looks: Mutex<Looks>,
}

#[derive(Default)]
struct Looks {
    recent: VecDeque<(Instant, Seen)>,
    refused: u64,
    /// The most memory in use since the disk was made or reset.
    peak_bytes: u64,
    fault: Option<Fault>,
}

impl<'a> Sampler<'a> {
    /// Looks at this disk, of which so many requests may be under way.
    pub fn new(server: &'a Server<'a>, requests: u64) -> Self {
        Sampler { server, requests, looks: Mutex::default() }
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        // Nothing panics with the lock held.
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks until told to stop, or until there is a fault.
    pub fn run(&self, stop: &AtomicBool) {
        while !stop.load(Relaxed) && self.look_now().is_ok() {
            std::thread::sleep(LOOK);
        }
    }

    /// Looks once. The first fault of all looks is returned by this and every later look.
    pub fn look_now(&self) -> Result<(), Fault> {
        let shown = self.server.show();
        let mut looks = self.looks();
        let noted = match shown {
            Ok(shown) => self.note(&mut looks, &shown),
            Err(fault) => Err(fault),
        };
        if looks.fault.is_none() {
            looks.fault = noted.err();
        }
        looks.fault.clone().map_or(Ok(()), Err)
    }

    fn note(&self, looks: &mut Looks, shown: &Value) -> Result<(), Fault> {
        let number = |pointer: &str| shown.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        looks.peak_bytes = looks.peak_bytes.max(number("/memory/pool_max_bytes"));
        looks.recent.push_back((Instant::now(), self.server.seen(shown)));
        while looks.recent.front().is_some_and(|(at, _)| at.elapsed() > COUNTS) && looks.recent.len() > 2 {
            looks.recent.pop_front();
        }
        for operation in ["read", "write", "discard", "write_zeroes", "flush"] {
            let longest = Duration::from_nanos(number(&format!("/io/{operation}/latency/max_ns")));
            if longest > ANSWER {
                return Err(Fault::new(FaultKind::Hang, format!("a {operation} took {longest:?}")));
            }
        }
        if number("/events/failed_reads") > 0 || number("/io/read/errors") > 0 {
            return Err(Fault::new(FaultKind::Failed, format!("reads failed: {}", events(shown))));
        }
        let refused = number("/events/failed_writes").max(number("/io/write/errors"));
        if refused > std::mem::replace(&mut looks.refused, refused)
            && let Verdict::Wrong(_, room) = self.judge_looks(looks)
        {
            let message = format!("{refused} writes were refused, but {room}; {}", events(shown));
            return Err(Fault::new(FaultKind::Refused, message));
        }
        Ok(())
    }

    fn judge_looks(&self, looks: &Looks) -> Verdict {
        let merged =
            looks.recent.iter().map(|(_, seen)| seen.clone()).reduce(Seen::merge).unwrap_or_default();
        let ever = Seen { in_use_bytes: merged.in_use_bytes.max(looks.peak_bytes), ..merged };
        // Between two looks memory may have been at its limit.
        model::judge(&ever, self.requests)
    }

    /// After a reset counters and marks begin anew.
    pub fn forget(&self) {
        let fault = self.looks().fault.take();
        *self.looks() = Looks { fault, ..Looks::default() };
    }

    /// The most memory ever seen in use.
    pub fn peak_bytes(&self) -> u64 {
        self.looks().peak_bytes
    }
}

/// What is worth reading of a disk that refused something.
fn events(shown: &Value) -> String {
    let field = |pointer: &str| shown.pointer(pointer).map(Value::to_string).unwrap_or_default();
    format!("memory {}, events {}, parking {}", field("/memory"), field("/events"), field("/parking"))
}

impl Referee for Sampler<'_> {
    fn judge(&self) -> Result<Verdict, String> {
        // A disk at its limit refuses thousands of requests; a look for each would be all that the load does. A look
        // that is not new can excuse a refusal, and never shows that it was wrong.
        let is_excused = {
            let looks = self.looks();
            let is_new = looks.recent.back().is_some_and(|(at, _)| at.elapsed() < NEW);
            is_new && matches!(self.judge_looks(&looks), Verdict::Right(_))
        };
        if is_excused {
            return Ok(Verdict::Right("it was right a moment ago"));
        }
        self.look_now().map_err(|fault| fault.message)?;
        let verdict = self.judge_looks(&self.looks());
        match verdict {
            Verdict::Wrong(Room::Memory, room) => Err(room),
            verdict => Ok(verdict),
        }
    }
}
