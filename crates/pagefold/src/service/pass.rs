//! Passes that were asked for, and the thread that parks without being asked.
//!
//! A pass may take minutes. It runs in a thread of its own, while the one that asked
//! tells how far it is, a few times a second whatever the medium does. It ends early when
//! nobody listens any more, and when the server ends. One pass runs at a time; another
//! is refused as busy, as zram does, because one that waited would take up one of the few
//! places that commands have. (The passes of automatic parking are short; the engine lets
//! one that was asked for wait for them.)

use super::parked::{PassProgress, PassReport, failure};
use crate::failure::{Exit, Failure, Outcome};
use pagefold_store::Store;
use pagefold_store::parking::{ParkReport, Parker, Progress, Selection};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often it is told how far a pass is.
const BEAT: Duration = Duration::from_millis(200);
/// How long the server waits in the end for what was submitted to complete.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The passes of one server.
#[derive(Default)]
pub struct Passes {
    /// Held while a pass that was asked for runs.
    running: Mutex<()>,
    /// Set when passes are to end.
    ending: AtomicBool,
    /// Automatic parking.
    parker: Mutex<Option<Parker>>,
}

impl Passes {
    /// Starts automatic parking, if the store has a backing.
    pub fn start_parker(&self, store: &Arc<Store>) -> Outcome<()> {
        if store.parking().is_some() {
            let parker = Parker::start(store.clone());
            let parker = parker.map_err(|e| Failure::io("starting the thread that parks", &e))?;
            *lock(&self.parker) = Some(parker);
        }
        Ok(())
    }

    /// Runs a pass. `tell` is called with how far it is, and ends it by answering false.
    pub fn run(
        &self,
        store: &Store,
        selection: &Selection,
        tell: &mut dyn FnMut(&PassProgress) -> bool,
    ) -> Outcome<PassReport> {
        let _running = self.enter()?;
        let start = Instant::now();
        let stop = AtomicBool::new(false);
        let latest = Mutex::new(PassProgress::default());
        let (done, is_done) = mpsc::channel::<()>();
        let pass = || {
            // Dropped when the pass has ended, however it did.
            let _done = done;
            store.park(selection, &mut |p: &Progress| {
                *lock(&latest) = p.into();
                match stop.load(Relaxed) || self.ending.load(Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
        };
        let outcome = std::thread::scope(|s| {
            let thread = std::thread::Builder::new().name("pass".into()).spawn_scoped(s, pass);
            let thread = thread.map_err(|e| Failure::io("starting a thread for the pass", &e))?;
            while is_done.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                let now = *lock(&latest);
                if !tell(&now) {
                    stop.store(true, Relaxed);
                }
            }
            thread.join().map_err(|_| Failure::failed("the thread of the pass panicked"))
        });
        let report: ParkReport = outcome?.map_err(|e| failure(&e))?;
        Ok(PassReport::new(report, start.elapsed()))
    }

    fn enter(&self) -> Outcome<MutexGuard<'_, ()>> {
        match self.running.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Exit::Busy,
                "pages are being parked for another command (EBUSY); wait for it to end, or end it with Ctrl-C",
            )),
        }
    }

    /// Ends automatic parking and a pass that runs, and waits until what was submitted is complete.
    pub fn end(&self) {
        self.ending.store(true, Relaxed);
        let parker = lock(&self.parker).take();
        drop(parker);
        let deadline = Instant::now() + END_PATIENCE;
        while self.enter().is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
