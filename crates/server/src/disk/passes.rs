//! The passes of a server, of writeback and of recompression, and saves: those on request, and the threads of automatic ones.
//!
//! A pass may take minutes. It runs in a thread `pass`, while the thread of the client reports its progress a few times
//! a second, however slow the medium is. It ends early when the client disconnects, and when the disk is reset or the server exits. One pass
//! on request runs at a time; another fails as busy, as in zram, because one that waited would occupy one of the
//! limited client slots. (The passes of automatic writeback are short; in the store, a pass on request waits for them.)

use super::restoring::RestoreThread;
use super::{Disk, RunningDisk, recompress_report, save, writeback_report};
use crate::errors;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::protocol::SaveOptions;
use pagefold_control::report::recompress::RecompressPassReport;
use pagefold_control::report::saved::SaveReport;
use pagefold_control::report::writeback::{PassProgress, PassReport};
use pagefold_store::recompress::{RecompressProgress, RecompressRequest};
use pagefold_store::writeback::{Progress, Selection};
use pagefold_store::{AutoRecompress, RecompressRule, RecompressThread, SaveWatch, Store, WritebackThread};
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
    /// That of the running save. Writes to the disk may wait for it, so its end must not wait for its target.
    save: Mutex<Option<SaveWatch>>,
    /// The threads of automatic passes; dropping one ends it.
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    writeback: Option<WritebackThread>,
    recompress: Option<RecompressThread>,
    /// Ended after writeback: it may wait for that.
    restore: Option<RestoreThread>,
}

impl Passes {
    /// Starts automatic writeback, if the disk has a backing, the restore in progress, and automatic recompression. The thread of the latter runs
    /// without rules too, because it advances the clock of access times.
    pub fn start_threads(&self, live: &RunningDisk) -> Result<()> {
        *lock(&self.ending) = Arc::default();
        let mut threads = lock(&self.threads);
        if live.store.writeback().is_some() {
            let thread = WritebackThread::start(live.store.clone());
            let thread = thread.map_err(|e| CliError::io("starting the thread that writes back", &e))?;
            threads.writeback = Some(thread);
        }
        if let Some(restoring) = live.restoring() {
            let thread = RestoreThread::start(live.store.clone(), restoring);
            threads.restore =
                Some(thread.map_err(|e| CliError::io("starting the thread that restores", &e))?);
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

    /// Saves the contents of the disk to `target`; if it can be incremental, only what has changed.
    pub fn save(
        &self,
        disk: &Disk,
        target: File,
        options: &SaveOptions,
        report_progress: &mut ReportProgress,
    ) -> Result<SaveReport> {
        let start = Instant::now();
        let pass = |store: &Store, control: &PassControl| {
            // In the pass: a reset since it began ends it, so the settings are those of its store.
            let header = save::header(store, &disk.setup())?;
            save::save(store, header, options, target, control)
        };
        let saved = self.run(disk, pass, report_progress);
        *lock(&self.save) = None;
        let (header, totals) = saved??;
        Ok(save::report(&header, &totals, options.incremental.as_ref(), start.elapsed()))
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
        let (latest, stop) = (Mutex::new(PassProgress::default()), Arc::<AtomicBool>::default());
        let (notify, notified) = mpsc::channel::<()>();
        // Dropped when the pass has ended, by a panic too.
        let control = PassControl { stop: stop.clone(), ending, save: &self.save, latest: &latest, notify };
        let pass = move || pass(&store, &control);
        std::thread::scope(|s| {
            let thread = std::thread::Builder::new().name("pass".into()).spawn_scoped(s, pass);
            let thread = thread.map_err(|e| CliError::io("starting a thread for the pass", &e))?;
            while notified.recv_timeout(PROGRESS_INTERVAL) != Err(RecvTimeoutError::Disconnected) {
                let now = *lock(&latest);
                if !report_progress(&now) {
                    stop.store(true, Relaxed);
                    self.give_save_up();
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

    /// Lets the running pass end without waiting for it. Writes to the disk wait for no save from now on. Passes that begin
    /// later end at once, until [`go_on`](Self::go_on).
    pub fn begin_end(&self) {
        lock(&self.ending).store(true, Relaxed);
        self.give_save_up();
    }

    /// Lets passes run again after [`begin_end`](Self::begin_end), because the disk stays.
    pub fn go_on(&self) {
        let mut ending = lock(&self.ending);
        // Otherwise a pass has it that another end must reach.
        if ending.load(Relaxed) {
            *ending = Arc::default();
        }
    }

    fn give_save_up(&self) {
        let watch = lock(&self.save).clone();
        watch.iter().for_each(SaveWatch::give_up);
    }

    /// Ends the automatic passes and the running one, and waits until writes in flight have completed.
    pub fn end(&self, store: &Store) {
        self.begin_end();
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
pub(super) struct PassControl<'a> {
    stop: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    save: &'a Mutex<Option<SaveWatch>>,
    latest: &'a Mutex<PassProgress>,
    /// Makes the other thread report at once.
    notify: mpsc::Sender<()>,
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

impl PassControl<'_> {
    pub(super) fn end(&self) -> PassEnd {
        PassEnd([self.stop.clone(), self.ending.clone()])
    }

    /// Notes the watch of a save that begins, so that the end of the pass gives it up.
    pub(super) fn note_save(&self, watch: &SaveWatch) {
        *lock(self.save) = Some(watch.clone());
        // A thread that has requested the end before has found no watch.
        if self.end().is_requested() {
            watch.give_up();
        }
    }

    /// Reports at once that a save of so many pages has its moment: a file system may be frozen until then.
    pub(super) fn note_moment(&self, total_pages: u64) {
        lock(self.latest).total_pages = total_pages;
        // The other thread waits until this value is dropped.
        let _ = self.notify.send(());
    }

    /// Notes the progress; breaks if the pass is to end.
    pub(super) fn note(&self, progress: PassProgress) -> ControlFlow<()> {
        *lock(self.latest) = progress;
        match self.end().is_requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
