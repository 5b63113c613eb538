//! Runs `pagefold image` commands on one image, and checks the promises of every command.
//!
//! A command ends in time, with a documented exit code, without a signal or panic, prints the reason of a failure,
//! and takes no more memory than its budget and a fixed overhead.

use crate::case::Context;
use crate::process::{self, Ended, Rules};
use crate::random::Random;
use crate::verdict::{Fault, OrFault, require};
use crate::watchdog::ANSWER;
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Smallest budget for images without large clusters, bytes.
const BUDGET_MIN: u64 = 256 << 10;
/// Bytes of the buffer that `check` and `extract` have for each thread.
const THREAD_BYTES: u64 = 1 << 20;
/// Bound on memory in addition to the budget and those buffers, bytes: the program, its threads' stacks, the first
/// MiB of the tree's bookkeeping, findings. Measured: 6 to 8 MiB.
const OVERHEAD_BYTES: u64 = 16 << 20;

/// Runs commands on an image in a folder.
pub struct ImageCommands<'a> {
    /// The context of the case.
    pub context: &'a Context,
    /// Working folder of the commands, in which they also put their results.
    pub dir: PathBuf,
    /// Path of the image.
    pub image: PathBuf,
}

/// A command line.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// `check`, `extract` and so on.
    pub subcommand: &'static str,
    /// Further options.
    pub options: Vec<String>,
    /// `--memory`, bytes.
    pub budget: u64,
    /// `--threads`.
    pub threads: Option<u64>,
    /// Operands after the image.
    pub operands: Vec<OsString>,
    /// Whether an ordinary user runs it, who can access only files in the folder.
    pub as_user: bool,
    /// A signal, and the time after which it is sent to the command.
    pub signal: Option<(Duration, Signal)>,
}

impl Call {
    /// A call without a budget.
    pub fn new(subcommand: &'static str, options: &[&str]) -> Self {
        let options = options.iter().map(|option| option.to_string()).collect();
        Call { subcommand, options, ..Call::default() }
    }

    /// A call with a drawn budget and, if the command has it, a drawn number of threads.
    pub fn draw(random: &mut Random, subcommand: &'static str, options: &[&str]) -> Self {
        let budget = match random.below(4) {
            0 => BUDGET_MIN,
            1 => random.between(BUDGET_MIN, 4 << 20),
            _ => random.doubling(BUDGET_MIN, 256 << 20),
        };
        let threads = ["check", "extract"].contains(&subcommand).then(|| draw_threads(random));
        Call { budget, threads, ..Call::new(subcommand, options) }
    }
}

/// Draws the number of threads of a command.
pub fn draw_threads(random: &mut Random) -> u64 {
    random.pick(&[1, 1, 2, 3, 8, 40])
}

/// The budget in bytes that a command reports as needed, if it failed for that reason.
pub fn needed_budget(ended: &Ended) -> Option<u64> {
    let (before, _) = ended.err.split_once(" bytes of memory are needed")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Removes a tree that is not needed any more.
pub fn remove_tree(dir: &Path) -> Result<(), Fault> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.or_fault(format!("removing {}", dir.display())),
    }
}

impl<'a> ImageCommands<'a> {
    /// Commands on the image of a folder that exists.
    pub fn new(context: &'a Context, dir: PathBuf) -> Self {
        ImageCommands { context, image: dir.join("image"), dir }
    }

    /// Builds the image of a tree.
    pub fn build(
        &self,
        tree: &Path,
        options: &[&str],
        signal: Option<(Duration, Signal)>,
    ) -> Result<Ended, Fault> {
        let mut command = process::command(self.context, &self.context.program);
        command.args(["image", "build", "--quiet"]).args(options).arg(tree).arg(&self.image);
        self.finish(command, signal)
    }

    /// Runs a command on the image.
    pub fn run(&self, call: &Call) -> Result<Ended, Fault> {
        let program = &self.context.program;
        let mut command =
            process::command(self.context, if call.as_user { Path::new("setpriv") } else { program });
        if call.as_user {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        }
        command.args(["image", call.subcommand, "-m", &call.budget.to_string()]);
        command.args(call.threads.map(|threads| format!("--threads={threads}"))).args(&call.options);
        // An ordinary user needs a relative path, because folders above are private.
        command.arg(if call.as_user { Path::new("image") } else { &self.image }).args(&call.operands);
        let ended = self.finish(command, call.signal)?;
        let threads = call.threads.filter(|_| ["check", "extract"].contains(&call.subcommand)).unwrap_or(0);
        check_memory(ended.peak_bytes, call.budget + threads * THREAD_BYTES, &ended.line)?;
        Ok(ended)
    }

    /// Faults are broken promises that hold for every command.
    fn finish(
        &self,
        mut command: std::process::Command,
        signal: Option<(Duration, Signal)>,
    ) -> Result<Ended, Fault> {
        command.current_dir(&self.dir);
        let ended = process::finish(self.context, command, Rules { limit: ANSWER, signal, is_quiet: false })?;
        let Ended { line, code, err, .. } = &ended;
        let tail = process::tail(err, 2000);
        let is_documented = (0..=6).contains(code) || (ended.is_signalled && *code == -1);
        require!(is_documented && !err.contains("panicked"), Failed, "{line}: exit code {code}: {tail}");
        let has_reason = *code <= 0 || err.contains("error:");
        require!(has_reason, Failed, "{line}: exit code {code} without a message");
        Ok(ended)
    }
}

/// Checks that a process took no more memory than promised, plus the fixed overhead.
pub fn check_memory(peak: u64, promised: u64, line: &str) -> Result<(), Fault> {
    let is_within = peak <= promised + OVERHEAD_BYTES;
    require!(is_within, Memory, "{line}: {peak} bytes of RAM; {promised} and {OVERHEAD_BYTES} are promised");
    Ok(())
}
