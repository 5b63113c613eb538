//! Waiting for threads that speak to a store, until a signal or the end of a time: a store may be silent for minutes.

use pagefold_control::error::{CliError, Result};
use pagefold_sys::signal::Termination;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How often a waiting thread looks for signals.
const INTERVAL: Duration = Duration::from_millis(200);

/// How a wait for a thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited<T> {
    /// The thread has sent this.
    Done(T),
    /// A signal came first. The thread goes on until the process ends.
    Interrupted,
    /// The time was over first, as after a signal.
    TimedOut,
    /// The thread has ended without a result.
    Panicked,
}

impl<T> Waited<T> {
    /// The result; `interrupted` makes the error if there is none.
    pub fn or_interrupted(self, interrupted: impl FnOnce() -> CliError) -> Result<T> {
        match self {
            Waited::Done(result) => Ok(result),
            Waited::Interrupted | Waited::TimedOut => Err(interrupted()),
            Waited::Panicked => Err(CliError::failed("the thread that writes to the bucket has panicked")),
        }
    }
}

/// Runs `work` in a thread, and waits for it or a signal. After a signal `work` goes on, so it must be sound beside what the
/// caller does then.
pub fn interruptible<T: Send + 'static>(
    signals: &Termination,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Waited<T>> {
    let (sender, done) = sync_channel(1);
    let spawned = std::thread::Builder::new().name("bucket".into()).spawn(move || {
        // Nobody waits after a signal.
        let _ = sender.send(work());
    });
    spawned.map_err(|e| CliError::io("starting a thread", &e))?;
    Ok(wait(&done, signals, None))
}

/// Waits for what a thread sends, for a signal, or until `end`.
pub fn wait<T>(done: &Receiver<T>, signals: &Termination, end: Option<Instant>) -> Waited<T> {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match done.recv_timeout(left.map_or(INTERVAL, |left| left.min(INTERVAL))) {
            Ok(result) => return Waited::Done(result),
            Err(RecvTimeoutError::Disconnected) => return Waited::Panicked,
            Err(RecvTimeoutError::Timeout) if signals.take().is_some() => return Waited::Interrupted,
            Err(RecvTimeoutError::Timeout) if left.is_some_and(|left| left.is_zero()) => {
                return Waited::TimedOut;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
