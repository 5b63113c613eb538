//! The passes of a server, of writeback and of recompression, and saves: those on request, and the threads of automatic ones.
//!
//! A pass may take minutes. It runs in a thread `pass`, while the thread of the client reports its progress a few times
//! a second, however slow the medium is. It ends early when the client disconnects, and when the disk is reset or the server exits. One pass
//! on request runs at a time; another fails as busy, as in zram, because one that waited would occupy one of the
//! limited client slots. (The passes of automatic writeback are short; in the store, a pass on request waits for them.)

use super::{Disk, RunningDisk, recompress_report, save, writeback_report};
use crate::errors;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::report::recompress::RecompressPassReport;
use pagefold_control::report::saved::SaveReport;
use pagefold_control::report::writeback::{PassProgress, PassReport};
use pagefold_store::recompress::{RecompressProgress, RecompressRequest};
use pagefold_store::writeback::{Progress, Selection};
use pagefold_store::{AutoRecompress, RecompressRule, RecompressThread, Store, WritebackThread};
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// How long a server that exits waits for writes in flight.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The share of one CPU that automatic recompression may use, per cent.
const RECOMPRESS_CPU_PERCENT: u8 = 25;

/// A function that reports the progress of a pass to its client; false from it ends the pass early.
type ReportProgress<'a> = dyn FnMut(&PassProgress) -> bool + 'a;

/// The passes of one server.
#[derive(Default)]
pub struct Passes {
    /// Held during a pass on request. Requests only try it; `end` waits for it, for a limited time.
    running: Mutex<()>,
    /// Set when the disk is reset or the server exits, to end the running pass. Each life of the disk has another.
    ending: Mutex<Arc<AtomicBool>>,
    /// The threads of automatic passes; dropping one ends it.
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    writeback: Option<WritebackThread>,
    recompress: Option<RecompressThread>,
}

impl Passes {
    /// Starts automatic writeback, if the disk has a backing, and automatic recompression. The thread of the latter runs
    /// without rules too, because it advances the clock of access times.
    pub fn start_threads(&self, live: &RunningDisk) -> Result<()> {
        *lock(&self.ending) = Arc::default();
        let mut threads = lock(&self.threads);
        if live.store.writeback().is_some() {
            let thread = WritebackThread::start(live.store.clone());
            let thread = thread.map_err(|e| CliError::io("starting the thread that writes back", &e))?;
            threads.writeback = Some(thread);
        }
        let rules = live.recompress_after.iter();
        let rules = rules.map(|rule| RecompressRule { age_s: rule.age_s, priority: rule.priority }).collect();
        let config = AutoRecompress { rules, cpu_percent: RECOMPRESS_CPU_PERCENT };
        let thread = RecompressThread::start(live.store.clone(), config);
        let thread = thread.map_err(|e| CliError::io("starting the thread that recompresses", &e))?;
        threads.recompress = Some(thread);
        Ok(())
    }

    /// Runs a pass of writeback.
    pub fn write_back(
        &self,
        disk: &Disk,
        selection: &Selection,
        report_progress: &mut ReportProgress,
    ) -> Result<PassReport> {
        let start = Instant::now();
        let pass = |store: &Store, progress: &PassControl| {
            store.write_back(selection, &mut |p: &Progress| progress.note(writeback_report::progress(p)))
        };
        let report = self.run(disk, pass, report_progress)?.map_err(|e| errors::of_writeback(&e))?;
        Ok(writeback_report::pass(report, start.elapsed()))
    }

    /// Runs a pass of recompression.
    pub fn recompress(
        &self,
        disk: &Disk,
        request: &RecompressRequest,
        report_progress: &mut ReportProgress,
    ) -> Result<RecompressPassReport> {
        let start = Instant::now();
        let pass = |store: &Store, progress: &PassControl| {
            let note = &mut |p: &RecompressProgress| progress.note(recompress_report::progress(p));
            store.recompress(request, note)
        };
        let report = self.run(disk, pass, report_progress)?.map_err(|e| errors::of_recompress(&e))?;
        Ok(recompress_report::pass(report, start.elapsed()))
    }

    /// Saves the contents of the disk to `target`.
    pub fn save(
        &self,
        disk: &Disk,
        target: File,
        report_progress: &mut ReportProgress,
    ) -> Result<SaveReport> {
        let start = Instant::now();
        let header = save::header(&*disk.running_or_error()?, &disk.setup())?;
        let pass = |store: &Store, progress: &PassControl| {
            let end = progress.end();
            save::save(store, &header, target, end, &mut |p: PassProgress| progress.note(p))
        };
        let totals = self.run(disk, pass, report_progress)??;
        Ok(save::report(&header, totals, start.elapsed()))
    }

    /// Runs `pass` in a separate thread, and reports its progress meanwhile.
    fn run<T: Send>(
        &self,
        disk: &Disk,
        pass: impl FnOnce(&Store, &PassControl) -> T + Send,
        report_progress: &mut ReportProgress,
    ) -> Result<T> {
        let _running = self.try_begin()?;
        // First the mark, then the store: a reset sets the marks of all passes that may have its store.
        let ending = lock(&self.ending).clone();
        let store = disk.store()?;
        let control =
            PassControl { stop: Arc::default(), ending, latest: Mutex::new(PassProgress::default()) };
        let (done, is_done) = mpsc::channel::<()>();
        let control = &control;
        let pass = || {
            // Dropped when the pass has ended, by a panic too.
            let _done = done;
            pass(&store, control)
        };
        std::thread::scope(|s| {
            let thread = std::thread::Builder::new().name("pass".into()).spawn_scoped(s, pass);
            let thread = thread.map_err(|e| CliError::io("starting a thread for the pass", &e))?;
            while is_done.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = *lock(&control.latest);
                if !report_progress(&now) {
                    control.stop.store(true, Relaxed);
                }
            }
            thread.join().map_err(|_| CliError::failed("the thread of the pass panicked"))
        })
    }

    /// Marks that a pass on request runs, until the guard is dropped; fails as busy if one does already.
    fn try_begin(&self) -> Result<MutexGuard<'_, ()>> {
        match self.running.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => Err(CliError::new(
                Exit::Busy,
                "pages are being written back, recompressed or saved for another command (EBUSY); wait for it to end, or \
                 end it with Ctrl-C",
            )),
        }
    }

    /// Ends the automatic passes and the running one, and waits until writes in flight have completed.
    pub fn end(&self, store: &Store) {
        lock(&self.ending).store(true, Relaxed);
        let threads = std::mem::take(&mut *lock(&self.threads));
        drop(threads);
        let deadline = Instant::now() + END_TIMEOUT;
        while self.try_begin().is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The backing is free for others as soon as this process has exited.
        if let Some(writeback) = store.writeback() {
            writeback.close_ring();
        }
    }
}

/// The state that a running pass and the thread that reports its progress share.
struct PassControl {
    stop: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    latest: Mutex<PassProgress>,
}

/// Whether a pass is to end, for its other threads.
#[derive(Clone)]
pub(super) struct PassEnd([Arc<AtomicBool>; 2]);

impl PassEnd {
    /// Whether it is to end.
    pub(super) fn is_requested(&self) -> bool {
        self.0.iter().any(|end| end.load(Relaxed))
    }
}

impl PassControl {
    fn end(&self) -> PassEnd {
        PassEnd([self.stop.clone(), self.ending.clone()])
    }

    /// Notes the progress; breaks if the pass is to end.
    fn note(&self, progress: PassProgress) -> ControlFlow<()> {
        *lock(&self.latest) = progress;
        match self.end().is_requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
