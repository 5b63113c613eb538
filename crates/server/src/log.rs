//! The log of a server. Writing to it neither blocks nor fails.
//!
//! Lines go to standard error: the file `log` in the instance's folder, or the standard error of the command in the
//! foreground. That may be a stopped terminal, a pipe that nobody reads, or a file on a full file system. So callers
//! only append to a bounded queue, and the thread `log` writes. Lines that do not fit into the queue or cannot be
//! written are dropped and counted, and the next line that is written is preceded by their number. The file is bounded
//! (`log_bound`).
//!
//! The server of a disk calls [`start`] when it is confined: until then it has one thread. Before that, and in a process that
//! never calls it, lines are written at once by the caller.

use crate::log_bound::BoundedFile;
use pagefold_control::error::{CliError, Result};
use pagefold_control::text;
use std::collections::VecDeque;
use std::fmt::Arguments;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most lines in the queue.
const MAX_LINES: usize = 1024;
/// The name of the thread that writes.
pub const THREAD: &str = "log";
/// How long a server that exits waits for its last lines to be written.
const END_TIMEOUT: Duration = Duration::from_secs(1);

static LOG: Log = Log::new();
/// Standard error, if that is the log file of an instance.
static BOUNDED: Mutex<Option<BoundedFile>> = Mutex::new(None);

/// Logs a normal event.
pub fn info(text: Arguments<'_>) {
    LOG.add(line("", text));
}

/// Logs something that the administrator should know.
pub fn warning(text: Arguments<'_>) {
    LOG.add(line("warning: ", text));
}

/// Logs a failure.
pub fn error(text: Arguments<'_>) {
    LOG.add(line("error: ", text));
}

/// Starts the thread that writes. It inherits the capabilities of the calling thread.
pub fn start() -> Result<()> {
    let mut state = LOG.lock();
    if !state.has_thread {
        let write = || LOG.write_forever(&mut write_stderr);
        let spawned = std::thread::Builder::new().name(THREAD.into()).spawn(write);
        spawned.map_err(|e| CliError::io("starting the thread of the log", &e))?;
        state.has_thread = true;
    }
    Ok(())
}

/// Waits until all lines are written, for one second at most.
pub fn finish() {
    LOG.finish(END_TIMEOUT);
}

fn line(label: &str, text: Arguments<'_>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{} {label}{text}\n", text::time_text(i64::try_from(now).unwrap_or(i64::MAX)))
}

/// Bounds the log if standard error is the file `path`, and not a file or terminal of the user.
pub fn bound(path: &Path) {
    let Ok(file) = io::stderr().as_fd().try_clone_to_owned().map(File::from) else { return };
    let id = |of: io::Result<Metadata>| of.map(|meta| (meta.dev(), meta.ino())).ok();
    if id(file.metadata()).is_some_and(|own| id(path.symlink_metadata()) == Some(own)) {
        *lock(&BOUNDED) = Some(BoundedFile::new(file));
    }
}

/// Lets a forked process, in which all descriptors but the standard ones are closed, log too.
pub fn reopen() {
    let mut bounded = lock(&BOUNDED);
    if let Some(closed) = bounded.take() {
        // Another file may have the number of its descriptor.
        std::mem::forget(closed);
        let file = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        *bounded = file.ok().map(BoundedFile::new);
    }
}

fn write_stderr(text: &str) -> io::Result<()> {
    match &mut *lock(&BOUNDED) {
        Some(file) => file.write(text),
        None => io::stderr().lock().write_all(text.as_bytes()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue of lines, and its lock. The lock is never held during a write.
struct Log {
    state: Mutex<State>,
    /// Notified when a line is added, and when one was written.
    changed: Condvar,
}

struct State {
    lines: VecDeque<String>,
    /// Lines dropped since one was written.
    lost: u64,
    /// Whether the thread is writing a line.
    writing: bool,
    has_thread: bool,
}

impl Log {
    const fn new() -> Self {
        let state = State { lines: VecDeque::new(), lost: 0, writing: false, has_thread: false };
        Log { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: String) {
        let mut state = self.lock();
        if !state.has_thread {
            // A failure cannot be reported anywhere else.
            let _ = write_stderr(&line);
        } else if state.lines.len() < MAX_LINES {
            state.lines.push_back(line);
            self.changed.notify_all();
        } else {
            state.lost += 1;
        }
    }

    fn write_forever(&self, write: &mut dyn FnMut(&str) -> io::Result<()>) {
        loop {
            self.write_one(write);
        }
    }

    /// Waits for a line and writes it.
    fn write_one(&self, write: &mut dyn FnMut(&str) -> io::Result<()>) {
        let mut state = self.lock();
        let line = loop {
            match state.lines.pop_front() {
                Some(line) => break line,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        let lost = state.lost;
        state.writing = true;
        drop(state);
        let text = match lost {
            0 => line,
            // The write that failed may have ended in the middle of a line.
            n => format!("\n({} could not be written)\n{line}", text::counted(n, "line", "lines")),
        };
        let written = write(&text);
        let mut state = self.lock();
        state.writing = false;
        match written {
            Ok(()) => state.lost -= lost,
            Err(_) => state.lost += 1,
        }
        self.changed.notify_all();
    }

    fn finish(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.has_thread && (state.writing || !state.lines.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    /// A log whose thread is played by the test.
    fn log() -> Log {
        let log = Log::new();
        log.lock().has_thread = true;
        log
    }

    #[test]
    fn the_next_written_line_says_how_many_could_not_be_written() {
        let log = log();
        for name in ["a", "b", "c", "d"] {
            log.add(format!("{name}\n"));
        }
        let mut written = String::new();
        log.write_one(&mut |text| {
            written.push_str(text);
            Ok(())
        });
        for _ in 0..2 {
            log.write_one(&mut |_| Err(io::ErrorKind::StorageFull.into()));
        }
        log.write_one(&mut |text| {
            written.push_str(text);
            Ok(())
        });
        assert_eq!(written, "a\n\n(2 lines could not be written)\nd\n");
        assert_eq!(log.lock().lost, 0);
    }

    #[test]
    fn a_hanging_write_blocks_no_caller_and_the_queue_is_bounded() {
        let log = Arc::new(log());
        let (finish_write, may_finish) = mpsc::channel::<()>();
        let writer = log.clone();
        let thread = std::thread::spawn(move || {
            writer.write_one(&mut |_| {
                let _ = may_finish.recv();
                Ok(())
            });
        });
        log.add("hangs\n".to_string());
        while !log.lock().writing {
            std::thread::yield_now();
        }
        for _ in 0..MAX_LINES + 7 {
            log.add("x\n".to_string());
        }
        log.finish(Duration::from_millis(1));
        let waiting = log.lock().lines.len();
        assert_eq!((waiting, log.lock().lost), (MAX_LINES, 7));
        finish_write.send(()).unwrap();
        thread.join().unwrap();
        // The next line reports the lines that were dropped meanwhile.
        let mut written = String::new();
        log.write_one(&mut |text| {
            written.push_str(text);
            Ok(())
        });
        assert_eq!(written, "\n(7 lines could not be written)\nx\n");
    }
}
