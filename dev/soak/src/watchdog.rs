//! Detects requests that are not answered, and reports them as the verdict of the case.
//!
//! A thread notes its request in its own slot ([`begin`]) while it waits for the answer. The watchdog thread ([`start`])
//! looks at the slots of all threads several times a second. When a request is overdue it writes a `Hang` fault as the
//! verdict, because the waiting thread cannot: it is stuck. The runner kills a case that does not end after its verdict.

use crate::verdict::{self, Fault, FaultKind, OrFault};
use crate::{leftovers, process};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time within which a request must be answered.
pub const ANSWER: Duration = Duration::from_secs(60);
/// How often the watchdog looks at the slots.
const LOOK: Duration = Duration::from_millis(200);

/// One thread's request.
#[derive(Default)]
struct Slot {
    /// Start of the request in milliseconds since [`BEGAN`], plus one; 0 without a request.
    since: AtomicU64,
    /// The kind, as an index into [`NAMES`].
    kind: AtomicU64,
    offset: AtomicU64,
    len_bytes: AtomicU64,
}

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The slots of all threads that have made a request.
static SLOTS: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Arc<Slot> = {
        let slot = Arc::<Slot>::default();
        SLOTS.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        slot
    };
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
pub struct RequestGuard(Arc<Slot>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.since.store(0, Relaxed);
    }
}

/// Notes that this thread makes a request, its only one until the guard is dropped.
pub fn begin(kind: RequestKind, offset: u64, len_bytes: u64) -> RequestGuard {
    let slot = OWN.with(Arc::clone);
    slot.kind.store(kind as u64, Relaxed);
    slot.offset.store(offset, Relaxed);
    slot.len_bytes.store(len_bytes, Relaxed);
    slot.since.store(now_ms(), Relaxed);
    RequestGuard(slot)
}

fn now_ms() -> u64 {
    BEGAN.elapsed().as_millis() as u64 + 1
}

/// Describes the requests that are older than `age`.
fn older_than(age: Duration) -> Option<String> {
    let now = now_ms();
    let overdue = |slot: &&Arc<Slot>| {
        let since = slot.since.load(Relaxed);
        since > 0 && now.saturating_sub(since) > age.as_millis() as u64
    };
    let describe = |slot: &Arc<Slot>| {
        let name = NAMES.get(slot.kind.load(Relaxed) as usize).unwrap_or(&"request");
        format!("{name} of {} bytes at {}", slot.len_bytes.load(Relaxed), slot.offset.load(Relaxed))
    };
    let slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let found: Vec<_> = slots.iter().filter(overdue).map(describe).collect();
    (!found.is_empty()).then(|| format!("not answered after {age:?}: {}", found.join(", ")))
}

/// Starts the watchdog of the case whose folder is `dir`. The thread ends after it has reported a request.
///
/// The thread blocks all signals: the handlers that the suite `memory` installs touch the region, and the watchdog
/// must never wait for that.
pub fn start(dir: &Path) -> Result<(), Fault> {
    let dir = dir.to_path_buf();
    let started = pagefold_sys::signal::spawn_masked(std::thread::Builder::new(), move || {
        loop {
            if let Some(overdue) = older_than(ANSWER) {
                return report(&overdue, &dir);
            }
            std::thread::sleep(LOOK);
        }
    });
    started.map(drop).or_fault("starting the watchdog")
}

/// Writes the fault, with the stacks of this process and of those that the case has started.
fn report(overdue: &str, dir: &Path) {
    let stacks = process::stacks(std::process::id()) + &leftovers::stacks(dir);
    let fault = Fault::new(FaultKind::Hang, format!("{overdue}\n{stacks}"));
    println!("FAULT {fault}");
    // If this fails, the runner reports that the case ended without a verdict, or exceeded its time limit.
    let _ = verdict::write(dir, &Err(fault));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_overdue_until_it_is_answered() {
        // Threads of other tests make requests too.
        let is_overdue = |age| older_than(age).unwrap_or_default().contains("discard of 512 bytes at 4096");
        let request = begin(RequestKind::Discard, 4096, 512);
        std::thread::sleep(Duration::from_millis(5));
        assert!(is_overdue(Duration::ZERO) && !is_overdue(ANSWER));
        drop(request);
        assert!(!is_overdue(Duration::ZERO));
    }

    #[test]
    fn an_overdue_request_becomes_the_verdict_of_the_case() {
        let dir = tempfile::tempdir().unwrap();
        report("write of 512 bytes", dir.path());
        let Some(Err(fault)) = verdict::read(dir.path()) else { panic!("no fault was written") };
        assert_eq!(fault.kind, FaultKind::Hang);
        assert!(fault.message.starts_with("write of 512 bytes\nthreads of process"), "{fault}");
    }
}
