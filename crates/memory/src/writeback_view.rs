//! What the owner of a region can do with the backing of its folded pages.
//!
//! A pass holds a lock that the region's own threads need to make room for faults. So no code of the program runs under
//! it, neither a signal handler nor the function that is told how far the pass is: either may touch the region, and would
//! wait for a thread that waits for the lock. The pass runs in a thread of its own, which runs no handlers; the caller's
//! thread looks now and then how far it is, and tells.

use pagefold_store::Store;
use pagefold_store::parking::{
    LayoutKind, ParkError, ParkReport, ParkStats, Parking, Policy, Progress, Selection, Settings,
};
use pagefold_sys::signal;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// How often it is told how far a pass is.
const BEAT: Duration = Duration::from_millis(50);

/// Writing a region's folded pages back to its backing.
#[derive(Clone, Copy)]
pub struct WritebackView<'a> {
    store: &'a Store,
    parking: &'a Parking,
}

impl<'a> WritebackView<'a> {
    pub(crate) fn new(store: &'a Store, parking: &'a Parking) -> Self {
        WritebackView { store, parking }
    }

    /// Returns the settings of writing back and reading back.
    pub fn settings(&self) -> &'a Settings {
        self.parking.settings()
    }

    /// Returns the settings and the state of automatic write-back.
    pub fn policy(&self) -> &'a Policy {
        self.parking.policy()
    }

    /// Describes the medium in a few words.
    pub fn describe(&self) -> String {
        self.parking.describe()
    }

    /// Returns how pages lie on the backing.
    pub fn layout(&self) -> LayoutKind {
        self.parking.layout()
    }

    /// Returns the counters of write-back.
    pub fn stats(&self) -> ParkStats {
        let _masked = signal::mask_all();
        self.parking.stats()
    }

    /// Marks pages as idle that were last stored or loaded at least `age_s` seconds ago, and takes the mark from younger
    /// ones; with 0, marks all.
    pub fn mark_idle(&self, age_s: u64) {
        let _masked = signal::mask_all();
        self.store.mark_idle(age_s);
    }

    /// Writes the pages of a selection back; returns when all that was submitted is complete. See
    /// [`Store::park`](pagefold_store::Store::park).
    ///
    /// `progress` is called in the caller's thread, 20 times a second and at the end, and ends the pass if it says so. It
    /// may do anything, with the region too. If it panics, the pass ends, and the panic goes on then. Signals of the
    /// calling thread wait until `progress` is called next, for a twentieth of a second at most.
    ///
    /// The pass runs in a thread that is started for it. If none can be started, it runs in the caller's, and `progress`
    /// is called at the end only.
    pub fn write_back(
        &self,
        selection: &Selection,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<ParkReport, ParkError> {
        let watch = Watch::default();
        let masked = signal::mask_all();
        let mut tell = |now: &Progress| match &masked {
            Ok(masked) => masked.unmasked_while(|| progress(now)),
            Err(_) => progress(now),
        };
        let run = || {
            let _ends = EndsAtDrop(&watch);
            self.store.park(selection, &mut |now| watch.note(now))
        };
        let report = std::thread::scope(|scope| {
            let builder = Builder::new().name("pagefold-pass".into());
            let Ok(pass) = signal::spawn_masked_scoped(builder, scope, run) else { return run() };
            let _stops = StopsAtDrop(&watch);
            while let Some(now) = watch.await_beat() {
                if tell(&now).is_break() {
                    watch.stop();
                }
            }
            pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let now = watch.lock().now;
        // The pass is over, whatever is answered.
        let _ = tell(&now);
        Ok(report)
    }
}

/// How far a pass is, for the thread that tells, and whether it is to end, for the thread that runs it.
#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    now: Progress,
    is_stopped: bool,
    has_ended: bool,
}

impl Watch {
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

    /// Waits until it is time to tell, and returns what; `None` when the pass has ended.
    fn await_beat(&self) -> Option<Progress> {
        let waited = self.ended.wait_timeout_while(self.lock(), BEAT, |state| !state.has_ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.has_ended).then_some(state.now)
    }
}

/// Notes the end of a pass, however it came.
struct EndsAtDrop<'a>(&'a Watch);

impl Drop for EndsAtDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.ended.notify_all();
    }
}

/// Ends a pass of which nobody wants to know any more.
struct StopsAtDrop<'a>(&'a Watch);

impl Drop for StopsAtDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
