//! The log of a server: lines about what happens while it serves.
//!
//! They go to standard error, which is the file `log` in the disk's folder, or what the command in the
//! foreground has there: a terminal that may be stopped, a pipe that nobody reads, a file system that may be
//! full. A thread that serves requests must neither wait for any of these nor fail with them, so it only puts
//! its line in a queue, and a thread of the log writes it. Lines that find the queue full, or that cannot be
//! written, are counted, and the next line that can be written is preceded by their number.
//!
//! A server calls [`start`] where its threads may start, with no more rights than they are to have. Until then,
//! and in commands, lines are written at once.

use crate::cli::{chart, date, output};
use crate::failure::{Failure, Outcome};
use std::collections::VecDeque;
use std::fmt::Arguments;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most lines that wait to be written.
const MAX_LINES: usize = 1024;
/// How long a server waits in the end for its last lines to be written.
const END_PATIENCE: Duration = Duration::from_secs(1);

static LOG: Log = Log::new();

/// Something that went as it should.
pub fn info(text: Arguments<'_>) {
    LOG.add(line("", text));
}

/// Something that the administrator should know.
pub fn warning(text: Arguments<'_>) {
    LOG.add(line("warning: ", text));
}

/// Something that failed.
pub fn error(text: Arguments<'_>) {
    LOG.add(line("error: ", text));
}

/// Starts the thread that writes. It inherits the rights of the calling thread.
pub fn start() -> Outcome<()> {
    let mut state = LOG.lock();
    if !state.has_thread {
        let write = || LOG.write_forever(&mut output::try_diagnostics);
        let spawned = std::thread::Builder::new().name("log".into()).spawn(write);
        spawned.map_err(|e| Failure::io("starting the thread of the log", &e))?;
        state.has_thread = true;
    }
    Ok(())
}

/// Waits until all lines are written, for a second at most.
pub fn finish() {
    LOG.finish(END_PATIENCE);
}

fn line(label: &str, text: Arguments<'_>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{} {label}{text}\n", date::time_text(i64::try_from(now).unwrap_or(i64::MAX)))
}

/// The queue.
struct Log {
    state: Mutex<State>,
    /// Notified when a line was added, and when one was written.
    changed: Condvar,
}

struct State {
    lines: VecDeque<String>,
    /// Lines that were not written since one was.
    lost: u64,
    /// Whether a line has left the queue and is not written yet.
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
            output::diagnostics(&line);
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
            // What could not be written may have ended in the middle of a line.
            n => format!("\n({} could not be written)\n{line}", chart::counted(n, "line", "lines")),
        };
        let outcome = write(&text);
        let mut state = self.lock();
        state.writing = false;
        match outcome {
            Ok(()) => state.lost -= lost,
            Err(_) => state.lost += 1,
        }
        self.changed.notify_all();
    }

    fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
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

    /// A log with a thread's part, which the test plays.
    fn log() -> Log {
        let log = Log::new();
        log.lock().has_thread = true;
        log
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_in_the_next_that_can() {
        let log = log();
        for name in ["a", "b", "c", "d"] {
            log.add(format!("{name}\n"));
        }
        let mut written = String::new();
        log.write_one(&mut |text| Ok(written.push_str(text)));
        for _ in 0..2 {
            log.write_one(&mut |_| Err(io::ErrorKind::StorageFull.into()));
        }
        log.write_one(&mut |text| Ok(written.push_str(text)));
        assert_eq!(written, "a\n\n(2 lines could not be written)\nd\n");
        assert_eq!(log.lock().lost, 0);
    }

    #[test]
    fn a_writer_that_hangs_keeps_nobody_waiting_and_the_queue_is_bounded() {
        let log = Arc::new(log());
        let (go, gone) = mpsc::channel::<()>();
        let writer = log.clone();
        let thread = std::thread::spawn(move || {
            writer.write_one(&mut |_| {
                let _ = gone.recv();
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
        go.send(()).unwrap();
        thread.join().unwrap();
        // The lines that were lost meanwhile are still to be reported.
        let mut written = String::new();
        log.write_one(&mut |text| Ok(written.push_str(text)));
        assert_eq!(written, "\n(7 lines could not be written)\nx\n");
    }
}
