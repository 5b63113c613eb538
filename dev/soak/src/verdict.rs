//! The verdict of a case: its summary or its fault, and the file that carries the verdict to the runner.
//!
//! A case runs in a separate process that may be unable to end: a thread that waits for a block device whose server
//! hangs cannot be killed. So the case writes its verdict to a file in its folder, and the runner reads the file
//! whether or not the process has ended.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::thread::ScopedJoinHandle;

/// The summary of a case without a fault, a few words for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// The case ran.
    Ran(String),
    /// The case could not run here, for this reason.
    Skipped(String),
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// Bytes are not those that were written.
    Contents,
    /// A request was refused although there was space.
    Refused,
    /// A request was not answered in time.
    Hang,
    /// The server uses CPU time without requests.
    Idle,
    /// The server takes more memory than it may.
    Memory,
    /// A mount, loop device, process or file is left behind.
    Leftover,
    /// Something failed or ended that should not have.
    Failed,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which promise.
    pub kind: FaultKind,
    /// The observation, and the expectation.
    pub message: String,
}

impl Fault {
    /// A fault with its message.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into() }
    }

    /// A fault because `what` failed with this error and should not have.
    pub fn failed(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Fault::new(FaultKind::Failed, format!("{what}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// Makes a fault of an error.
pub trait OrFault<T> {
    /// A fault because `what` failed and should not have.
    fn or_fault(self, what: impl fmt::Display) -> Result<T, Fault>;
}

impl<T, E: fmt::Display> OrFault<T> for Result<T, E> {
    fn or_fault(self, what: impl fmt::Display) -> Result<T, Fault> {
        self.map_err(|e| Fault::failed(what, e))
    }
}

/// Returns a fault of a kind, with a formatted message, unless the condition holds.
macro_rules! require {
    ($condition:expr, $kind:ident, $($message:tt)+) => {
        if !$condition {
            return Err($crate::verdict::Fault::new($crate::verdict::FaultKind::$kind, format!($($message)+)));
        }
    };
}
pub(crate) use require;

/// The result of a thread that can find a fault.
pub fn join<T>(thread: ScopedJoinHandle<'_, Result<T, Fault>>) -> Result<T, Fault> {
    thread.join().unwrap_or_else(|_| Err(Fault::failed("a thread of the case", "it panicked")))
}

/// Name of the file with the verdict.
const NAME: &str = "verdict";

/// Writes the verdict. A second one is ignored, because the first fault counts.
pub fn write(dir: &Path, verdict: &Result<Done, Fault>) -> std::io::Result<()> {
    let unfinished = dir.join("verdict.new");
    std::fs::write(&unfinished, serde_json::to_vec(verdict)?)?;
    // A hard link fails where the name exists, so the first verdict stays, and readers never see half a file.
    let linked = std::fs::hard_link(&unfinished, dir.join(NAME));
    std::fs::remove_file(&unfinished)?;
    match linked {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Reads the verdict, if there is one.
pub fn read(dir: &Path) -> Option<Result<Done, Fault>> {
    serde_json::from_slice(&std::fs::read(dir.join(NAME)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_verdict_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), None);
        let fault = Err(Fault::new(FaultKind::Hang, "a write\nof 4096 bytes"));
        write(dir.path(), &fault).unwrap();
        write(dir.path(), &Ok(Done::Ran("later".into()))).unwrap();
        assert_eq!(read(dir.path()), Some(fault));
        for verdict in [Ok(Done::Ran("a b".into())), Ok(Done::Skipped("no fio".into()))] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &verdict).unwrap();
            assert_eq!(read(dir.path()), Some(verdict));
        }
    }
}
