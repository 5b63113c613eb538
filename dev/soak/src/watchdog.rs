//! Detects requests that are not answered, and reports them as the verdict of the case.
//!
//! [`RequestWatch`] has one slot for each thread of a load; a thread notes its request there while it waits for the
//! answer. A watchdog thread ([`start`]) looks at all slots several times a second. When a request is overdue it
//! writes a `Hang` fault as the verdict, because the waiting thread cannot: it is stuck.

use crate::verdict::{self, Fault, FaultKind};
use crate::{leftovers, process};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time within which a request must be answered.
pub const ANSWER: Duration = Duration::from_secs(60);
/// How often the watchdog looks at the slots.
const LOOK: Duration = Duration::from_millis(200);

/// The requests that are under way.
pub struct RequestWatch {
    began: Instant,
    slots: Vec<Slot>,
}

/// One thread's request.
#[derive(Default)]
struct Slot {
    /// Start of the request in milliseconds since `began`, plus one; 0 without a request.
    since: AtomicU64,
    /// The kind, as an index into [`NAMES`].
    kind: AtomicU64,
    offset: AtomicU64,
    len_bytes: AtomicU64,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A discard.
    Discard,
    /// A write of zeroes.
    Zero,
}

const NAMES: [&str; 4] = ["read", "write", "discard", "write of zeroes"];

/// Marks a request as under way until this is dropped.
pub struct RequestGuard<'a>(&'a Slot);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, Relaxed);
    }
}

impl RequestWatch {
    /// Slots for so many threads.
    pub fn new(threads: usize) -> Self {
        RequestWatch { began: Instant::now(), slots: (0..threads).map(|_| Slot::default()).collect() }
    }

    /// Notes that thread number `thread` makes a request.
    pub fn begin(&self, thread: usize, kind: RequestKind, offset: u64, len_bytes: u64) -> RequestGuard<'_> {
        let slot = &self.slots[thread];
        slot.kind.store(kind as u64, Relaxed);
        slot.offset.store(offset, Relaxed);
        slot.len_bytes.store(len_bytes, Relaxed);
        slot.since.store(self.began.elapsed().as_millis() as u64 + 1, Relaxed);
        RequestGuard(slot)
    }

    /// Describes the requests that are older than [`ANSWER`].
    fn overdue(&self) -> Option<String> {
        self.older_than(ANSWER)
    }

    fn older_than(&self, age: Duration) -> Option<String> {
        let now = self.began.elapsed().as_millis() as u64 + 1;
        let overdue = |slot: &&Slot| {
            let since = slot.since.load(Relaxed);
            since > 0 && now.saturating_sub(since) > age.as_millis() as u64
        };
        let describe = |slot: &Slot| {
            let name = NAMES.get(slot.kind.load(Relaxed) as usize).unwrap_or(&"request");
            format!("{name} of {} bytes at {}", slot.len_bytes.load(Relaxed), slot.offset.load(Relaxed))
        };
        let found: Vec<_> = self.slots.iter().filter(overdue).map(describe).collect();
        (!found.is_empty()).then(|| format!("not answered after {age:?}: {}", found.join(", ")))
    }
}

/// The processes in which an overdue request may be stuck: the fault shows where their threads wait.
#[derive(Debug, Clone, Copy)]
pub enum Suspect {
    /// This process. The watchdog ends it after the verdict, because a stuck thread may loop and never return.
    ThisProcess,
    /// The server with this process id. The runner kills the case after the verdict.
    Server(u32),
    /// All processes that the case has started. The runner kills the case after the verdict.
    AllStarted,
}

/// Starts the watchdog of a case whose folder is `dir`. The thread ends when the last `Arc` of the watch is dropped,
/// or after it has reported a request.
///
/// The thread blocks all signals: the handlers that the suite `memory` installs touch the region, and the watchdog
/// must never wait for that.
pub fn start(watch: &Arc<RequestWatch>, dir: &Path, suspect: Suspect) -> Result<(), Fault> {
    let (watch, dir) = (Arc::downgrade(watch), dir.to_path_buf());
    let started = pagefold_sys::signal::spawn_masked(std::thread::Builder::new(), move || {
        while let Some(watched) = watch.upgrade() {
            if let Some(overdue) = watched.overdue() {
                return report(&overdue, &dir, suspect);
            }
            drop(watched);
            std::thread::sleep(LOOK);
        }
    });
    started.map(drop).map_err(|e| Fault::failed("starting the watchdog", e))
}

fn report(overdue: &str, dir: &Path, suspect: Suspect) {
    let stacks = match suspect {
        Suspect::ThisProcess => process::stacks(std::process::id()),
        Suspect::Server(id) => process::stacks(id),
        Suspect::AllStarted => leftovers::stacks(dir),
    };
    let fault = Fault::new(FaultKind::Hang, format!("{overdue}\n{stacks}"));
    println!("FAULT {fault}");
    // If this fails, the runner reports that the case ended without a verdict, or exceeded its time limit.
    let _ = verdict::write(dir, &Err(fault));
    if let Suspect::ThisProcess = suspect {
        std::process::exit(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_overdue_until_it_is_answered() {
        let watch = RequestWatch::new(2);
        assert_eq!(watch.older_than(Duration::ZERO), None);
        let request = watch.begin(1, RequestKind::Discard, 4096, 512);
        std::thread::sleep(Duration::from_millis(5));
        let text = watch.older_than(Duration::ZERO).unwrap();
        assert!(text.ends_with("discard of 512 bytes at 4096"), "{text}");
        assert_eq!(watch.overdue(), None);
        drop(request);
        assert_eq!(watch.older_than(Duration::ZERO), None);
    }

    #[test]
    fn an_overdue_request_becomes_the_verdict_of_the_case() {
        let dir = tempfile::tempdir().unwrap();
        report("write of 512 bytes", dir.path(), Suspect::Server(std::process::id()));
        let Some(Err(fault)) = verdict::read(dir.path()) else { panic!("no fault was written") };
        assert_eq!(fault.kind, FaultKind::Hang);
        assert!(fault.message.starts_with("write of 512 bytes\nthreads of process"), "{fault}");
    }
}
