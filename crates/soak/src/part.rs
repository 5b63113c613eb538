//! What a part of the soak implements, and what a case reports.
//!
//! A [`Part`] draws cases from seeds; a [`Case`] knows its configuration and load, runs, and either returns what it
//! did or the first [`Fault`] that it found. A part knows nothing of time, processes and replays: `runner` gives each
//! case a process and a folder, watches it, and prints how to run it again.
//!
//! A new part is a module with these two traits and a line in [`all`].

use crate::{disk, engine, image, memory};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The parts, in the order in which they take turns.
pub fn all() -> Vec<Box<dyn Part>> {
    vec![Box::new(engine::Engine), Box::new(disk::Disk), Box::new(image::Image), Box::new(memory::Memory)]
}

/// A source of cases.
pub trait Part: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Its share of the time, in proportion to the other parts' shares.
    fn share(&self) -> u32;

    /// Whether its cases are too short for a line each in the output.
    fn is_quick(&self) -> bool {
        false
    }

    /// Why it cannot run here, if so.
    fn obstacle(&self, settings: &Settings) -> Option<String>;

    /// The case of a seed: the same seed draws the same case.
    fn draw(&self, seed: u64) -> Box<dyn Case>;
}

/// One configuration with one load.
pub trait Case {
    /// Configuration and load, for the reader of a fault.
    fn describe(&self) -> String;

    /// Time within which the case ends unless something hangs; a case beyond it is ended and is a fault.
    fn time_limit(&self) -> Duration;

    /// Runs it. Everything that it leaves in the context's folder is removed if it succeeds.
    fn run(&self, context: &Context) -> Result<Done, Fault>;
}

/// What holds for all cases of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `pagefold` program.
    pub program: PathBuf,
}

/// What a running case has.
#[derive(Debug, Clone)]
pub struct Context {
    /// The case's seed.
    pub seed: u64,
    /// A folder of its own, removed afterwards unless there was a fault.
    pub dir: PathBuf,
    /// What holds for all cases.
    pub settings: Settings,
}

impl Context {
    /// A path in the case's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The variable that gives `pagefold` a runtime folder inside the case's folder, and by which the processes of a
    /// case are found.
    pub fn runtime(&self) -> (&'static str, PathBuf) {
        (RUNTIME_VARIABLE, runtime_dir(&self.dir))
    }
}

/// The environment variable of `pagefold`'s runtime folder.
pub const RUNTIME_VARIABLE: &str = "PAGEFOLD_RUNTIME_DIR";

/// The runtime folder of a case.
pub fn runtime_dir(case_dir: &Path) -> PathBuf {
    case_dir.join("run")
}

/// What a case did, in a few words for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// It ran.
    Ran(String),
    /// It could not run here, for this reason.
    Skipped(String),
}

/// What kind of promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Bytes are not those that were written.
    Contents,
    /// A request was refused although there was room.
    Refused,
    /// A request was not answered in time.
    Hang,
    /// The server works though nothing is asked of it.
    Idle,
    /// The server takes more memory than it may.
    Memory,
    /// Something is left behind.
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

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<Self> {
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
    /// What was seen, and what should have been.
    pub message: String,
}

impl Fault {
    /// A fault with its message.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into() }
    }

    /// Something failed that should not have.
    pub fn failed(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Fault::new(FaultKind::Failed, format!("{what}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}
