//! The owner's view of the backing of a region's folded pages.
//!
//! A pass holds a lock that the region's threads need to make room for faults. No code of the program may run under
//! this lock, neither a signal handler nor the progress callback: either may touch the region, and would wait for a
//! thread that waits for the lock. So the pass runs in a separate thread in which all signals are blocked; the
//! caller's thread polls the progress and calls the callback.

use pagefold_store::Store;
use pagefold_store::writeback::{
    LayoutKind, Policy, Progress, Selection, Settings, Writeback, WritebackError, WritebackReport,
    WritebackStats,
};
use pagefold_sys::signal;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// How often the progress callback is called.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// A view of the backing that can start passes.
#[derive(Clone, Copy)]
pub struct WritebackView<'a> {
    store: &'a Store,
    writeback: &'a Writeback,
}

impl<'a> WritebackView<'a> {
    pub(crate) fn new(store: &'a Store, writeback: &'a Writeback) -> Self {
        WritebackView { store, writeback }
    }

    /// Returns the settings of writeback and of reading back.
    pub fn settings(&self) -> &'a Settings {
        self.writeback.settings()
    }

    /// Returns the settings and the state of automatic writeback.
    pub fn policy(&self) -> &'a Policy {
        self.writeback.policy()
    }

    /// Describes the medium in a few words.
    pub fn describe(&self) -> String {
        self.writeback.describe()
    }

    /// Returns the layout of pages on the backing.
    pub fn layout(&self) -> LayoutKind {
        self.writeback.layout()
    }

    /// Returns the counters of writeback.
    pub fn stats(&self) -> WritebackStats {
        let _masked = signal::mask_asynchronous();
        self.writeback.stats()
    }

    /// Marks pages as idle that were last stored or loaded at least `age_s` seconds ago, and removes the mark from
    /// younger pages. With 0, marks all pages.
    pub fn mark_idle(&self, age_s: u64) {
        let _masked = signal::mask_asynchronous();
        self.store.mark_idle(age_s);
    }

    /// Writes the pages of a selection back. Returns when all submitted writes are complete. See
    /// [`Store::write_back`](pagefold_store::Store::write_back).
    ///
    /// `progress` is called in the caller's thread, 20 times a second and at the end; if it returns `Break`, the pass
    /// ends. It may do anything, with the region too. If it panics, the pass ends, and then the panic goes on. Signals
    /// of the calling thread are delivered only while `progress` runs, so they wait up to 50 ms.
    ///
    /// The pass runs in a thread that is started for it. If no thread can be started, the pass runs in the caller's
    /// thread, and `progress` is called at the end only.
    pub fn write_back(
        &self,
        selection: &Selection,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<WritebackReport, WritebackError> {
        let shared = PassProgress::default();
        let masked = signal::mask_asynchronous();
        let mut report_progress = |now: &Progress| match &masked {
            Ok(masked) => masked.unmasked_while(|| progress(now)),
            Err(_) => progress(now),
        };
        let run = || {
            let _end = EndOnDrop(&shared);
            self.store.write_back(selection, &mut |now| shared.note(now))
        };
        let report = std::thread::scope(|scope| {
            let builder = Builder::new().name("pagefold-pass".into());
            let Ok(pass) = signal::spawn_masked_scoped(builder, scope, run) else { return run() };
            let _stop = StopOnDrop(&shared);
            while let Some(now) = shared.wait_for_report() {
                if report_progress(&now).is_break() {
                    shared.stop();
                }
            }
            pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let now = shared.lock().now;
        // The pass is over, so the answer does not matter.
        let _ = report_progress(&now);
        Ok(report)
    }
}

/// The state that the pass shares with the caller's thread: its progress, and whether it has to stop.
#[derive(Default)]
struct PassProgress {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    now: Progress,
    is_stopped: bool,
    has_ended: bool,
}

impl PassProgress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, now: &Progress) -> ControlFlow<()> {
        let mut state = self.lock();
        state.now = *now;
        if state.is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn stop(&self) {
        self.lock().is_stopped = true;
    }

    /// Waits until the next report is due, and returns the progress; `None` when the pass has ended.
    fn wait_for_report(&self) -> Option<Progress> {
        let waited = self.ended.wait_timeout_while(self.lock(), REPORT_INTERVAL, |state| !state.has_ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.has_ended).then_some(state.now)
    }
}

/// Notes the end of a pass when it returns or panics.
struct EndOnDrop<'a>(&'a PassProgress);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.ended.notify_all();
    }
}

/// Stops the pass when the caller's thread leaves, by a panic too.
struct StopOnDrop<'a>(&'a PassProgress);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
