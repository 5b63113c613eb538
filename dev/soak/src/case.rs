//! The interface between a suite and the runner: a suite, its cases, and the surroundings of a running case.
//!
//! A [`Suite`] draws cases from seeds; a [`Case`] is a configuration with a load, which runs and returns either a
//! summary ([`Done`]) or the first [`Fault`] that it found. Suites do not deal with time, processes and replays:
//! `runner` starts each case in a separate process with a private folder, watches it, and prints the command that
//! runs it again.
//!
//! A new suite is a module with a `SUITE` constant and a [`Case`]; `main` lists it.

use crate::verdict::{Done, Fault};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A source of cases.
pub struct Suite {
    /// The name on the command line.
    pub name: &'static str,
    /// The share of the time, in proportion to the other suites' shares.
    pub share: u32,
    /// Whether cases are too short for a line each in the output.
    pub is_quick: bool,
    /// Time within which a case ends unless something hangs; the runner kills a case that takes longer and reports a
    /// fault.
    pub time_limit: Duration,
    /// Returns the reason if the suite cannot run here.
    pub obstacle: fn() -> Option<String>,
    /// Draws the case of a seed: the same seed draws the same case.
    pub draw: fn(u64) -> Box<dyn Case>,
}

/// One configuration with one load. `Debug` prints both for the reader of a fault.
pub trait Case: fmt::Debug {
    /// Runs the case. The runner removes the context's folder if the case succeeds.
    fn run(&self, context: &Context) -> Result<Done, Fault>;
}

/// The surroundings of a running case.
#[derive(Debug, Clone)]
pub struct Context {
    /// The case's private folder, removed afterwards unless there was a fault.
    pub dir: PathBuf,
    /// Path of the `pagefold` program.
    pub program: PathBuf,
}

impl Context {
    /// A path in the case's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The environment variable, with its value, that puts `pagefold`'s runtime folder into the case's folder.
    /// `leftovers` finds the processes of a case by it.
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
