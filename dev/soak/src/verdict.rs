//! The verdict of a case: its summary or its fault, and the file that carries the verdict to the runner.
//!
//! A case runs in a separate process that may be unable to end: a thread that waits for a block device whose server
//! hangs cannot be killed. So the case writes its verdict to a file in its folder, and the runner reads the file
//! whether or not the process has ended.

use std::fmt;
use std::path::Path;

/// The summary of a case without a fault, a few words for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The case ran.
    Ran(String),
    /// The case could not run here, for this reason.
    Skipped(String),
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Bytes are not those that were written.
    Contents,
    /// A request was refused although there was room.
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

impl FaultKind {
    const ALL: [(FaultKind, &'static str); 7] = [
        (FaultKind::Contents, "contents"),
        (FaultKind::Refused, "refused"),
        (FaultKind::Hang, "hang"),
        (FaultKind::Idle, "idle"),
        (FaultKind::Memory, "memory"),
        (FaultKind::Leftover, "leftover"),
        (FaultKind::Failed, "failed"),
    ];

    /// The kind with this name.
    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Name of the file with the verdict.
const NAME: &str = "verdict";

/// Writes the verdict. A second one is ignored, because the first fault counts.
pub fn write(dir: &Path, verdict: &Result<Done, Fault>) -> std::io::Result<()> {
    let text = match verdict {
        Ok(Done::Ran(what)) => format!("ran {what}"),
        Ok(Done::Skipped(why)) => format!("skipped {why}"),
        Err(fault) => format!("fault {} {}", fault.kind, fault.message),
    };
    let unfinished = dir.join("verdict.new");
    std::fs::write(&unfinished, text)?;
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
    parse(&std::fs::read_to_string(dir.join(NAME)).ok()?)
}

fn parse(text: &str) -> Option<Result<Done, Fault>> {
    let (word, rest) = text.split_once(' ')?;
    match word {
        "ran" => Some(Ok(Done::Ran(rest.into()))),
        "skipped" => Some(Ok(Done::Skipped(rest.into()))),
        "fault" => {
            let (kind, message) = rest.split_once(' ')?;
            Some(Err(Fault::new(FaultKind::of_name(kind)?, message)))
        }
        _ => None,
    }
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
