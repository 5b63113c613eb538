//! Runs `pagefold image` commands on one image, and checks the promises of every command.
//!
//! A command ends in time, with a documented exit code, without a signal or panic, prints the reason of a failure,
//! and takes no more memory than its budget and a fixed overhead.

use crate::case::Context;
use crate::process;
use crate::verdict::{Fault, FaultKind};
use crate::watchdog::ANSWER;
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// How often the memory of a command is read.
const POLL: Duration = Duration::from_millis(1);
/// Bytes of the buffer that `check` and `extract` have for each thread.
const THREAD_BYTES: u64 = 1 << 20;
/// Bound on memory in addition to the budget and those buffers, bytes: the program, its threads' stacks, the first
/// MiB of the tree's bookkeeping, findings. Measured: 6 to 8 MiB.
const OVERHEAD_BYTES: u64 = 16 << 20;

/// Runs commands on an image in a folder.
pub struct CommandRunner<'a> {
    /// The context of the case.
    pub context: &'a Context,
    /// Working folder of the commands, in which they also put their results.
    pub dir: PathBuf,
    /// Path of the image.
    pub image: PathBuf,
    /// Paths of the image's further devices.
    pub devices: Vec<PathBuf>,
    /// Most memory that a command took in addition to its budget, bytes.
    pub overhead_max: Cell<u64>,
    /// Number of commands that ran.
    pub count: Cell<u64>,
}

/// A command line.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// `check`, `extract` and so on.
    pub subcommand: &'static str,
    /// `--memory`, bytes.
    pub budget: u64,
    /// `--threads`.
    pub threads: Option<u64>,
    /// Further options.
    pub options: Vec<String>,
    /// Operands after the image.
    pub operands: Vec<OsString>,
    /// Whether an ordinary user runs it, who can access only files in the folder.
    pub as_user: bool,
}

/// A command that has completed.
#[derive(Debug)]
pub struct Completed {
    /// The command line.
    pub line: String,
    /// The exit code.
    pub code: i32,
    /// Path of the file with standard output.
    pub out: PathBuf,
    /// Standard error.
    pub err: String,
}

impl Completed {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Result<serde_json::Value, Fault> {
        serde_json::from_str(&self.text()).map_err(|e| Fault::failed(format!("the JSON of {}", self.line), e))
    }

    /// Returns a fault unless the command succeeded.
    pub fn ok(self) -> Result<Self, Fault> {
        match self.code {
            0 => Ok(self),
            code => {
                let (err, out) = (process::tail(&self.err, 1500), self.text());
                Err(Fault::failed(self.line, format!("exit code {code}: {err}{}", process::tail(&out, 1500))))
            }
        }
    }

    /// The budget in bytes that the command reports as needed, if it failed for that reason.
    pub fn needed_budget(&self) -> Option<u64> {
        let (before, _) = self.err.split_once(" bytes of memory are needed")?;
        before.rsplit(' ').next()?.parse().ok()
    }

    /// Whether the command reported that a limit or the budget was too small to do everything.
    pub fn is_limited(&self) -> bool {
        let output = format!("{}{}", self.err, process::tail(&self.text(), 65_536));
        ["--max-bytes", "--max-inodes", "--memory", "too little memory"]
            .iter()
            .any(|word| output.contains(word))
    }
}

impl<'a> CommandRunner<'a> {
    /// A runner for an image; the folder `dir` exists.
    pub fn new(context: &'a Context, dir: PathBuf, image: PathBuf, devices: Vec<PathBuf>) -> Self {
        CommandRunner { context, dir, image, devices, overhead_max: Cell::new(0), count: Cell::new(0) }
    }

    /// The smallest budget for the image, as a command reports it that was started with too small a one.
    pub fn least_budget(&self) -> Result<u64, Fault> {
        let completed = self.run(&Call { subcommand: "ls", budget: 4096, ..Call::default() })?;
        let needed = completed.needed_budget();
        needed.ok_or_else(|| {
            Fault::failed(&completed.line, format!("it reports no smallest budget: {}", completed.err))
        })
    }

    /// Runs a command. Faults are broken promises that hold for every image.
    pub fn run(&self, call: &Call) -> Result<Completed, Fault> {
        let number = self.count.replace(self.count.get() + 1);
        let out = self.dir.join(format!("{number}.out"));
        let err = self.dir.join(format!("{number}.err"));
        let args = self.args(call);
        let mut command = match call.as_user {
            true => {
                let mut command = process::command(self.context, "setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
                command.arg(&self.context.settings.program);
                command
            }
            false => process::command(self.context, &self.context.settings.program),
        };
        let shown: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
        let line = format!("pagefold {}", shown.join(" "));
        let failed = |e| Fault::failed(&line, e);
        command.args(&args).current_dir(&self.dir).stdout(File::create(&out).map_err(failed)?);
        let began = Instant::now();
        let mut child = command.stderr(File::create(&err).map_err(failed)?).spawn().map_err(failed)?;
        let (status, peak) = wait_with_peak(&mut child, &line)?;
        let stderr = String::from_utf8_lossy(&fs::read(&err).unwrap_or_default()).into_owned();
        let _ = fs::remove_file(err);
        let code = status.code().unwrap_or(-1);
        println!("+ {line}: {code} in {:?}, {} KiB {:.300}", began.elapsed(), peak >> 10, stderr.trim_end());
        if !(0..=6).contains(&code) || stderr.contains("panicked") {
            return Err(Fault::failed(&line, format!("{status}: {}", process::tail(&stderr, 2000))));
        }
        if code != 0 && !stderr.contains("pagefold: error: ") && !stderr.contains("error:") {
            return Err(Fault::failed(&line, format!("exit code {code} without a message")));
        }
        let threads =
            if ["check", "extract"].contains(&call.subcommand) { call.threads.unwrap_or(2) } else { 0 };
        let promised = call.budget + threads * THREAD_BYTES;
        self.check_memory(peak, promised, &line)?;
        Ok(Completed { line, code, out, err: stderr })
    }

    /// Checks that a process took no more memory than promised, plus the fixed overhead.
    pub fn check_memory(&self, peak: u64, promised: u64, line: &str) -> Result<(), Fault> {
        self.overhead_max.set(self.overhead_max.get().max(peak.saturating_sub(promised)));
        match peak > promised + OVERHEAD_BYTES {
            false => Ok(()),
            true => {
                let message =
                    format!("{line}: {peak} bytes of RAM; {promised} and {OVERHEAD_BYTES} are promised");
                Err(Fault::new(FaultKind::Memory, message))
            }
        }
    }

    fn args(&self, call: &Call) -> Vec<OsString> {
        let mut args: Vec<OsString> =
            vec!["image".into(), call.subcommand.into(), "-m".into(), call.budget.to_string().into()];
        if let Some(threads) = call.threads {
            args.extend(["-j".into(), threads.to_string().into()]);
        }
        for device in &self.devices {
            args.extend(["--device".into(), self.path_for(device, call)]);
        }
        args.extend(call.options.iter().map(OsString::from));
        args.push(self.path_for(&self.image, call));
        args.extend(call.operands.iter().cloned());
        args
    }

    /// The path of a file in the folder. An ordinary user needs a relative one, because folders above are private.
    fn path_for(&self, path: &Path, call: &Call) -> OsString {
        match path.file_name() {
            Some(name) if call.as_user => name.into(),
            _ => path.into(),
        }
    }
}

/// Waits for a command, and returns its status and peak memory. The peak only grows, so polling misses only memory
/// that is taken in the last moment.
fn wait_with_peak(child: &mut Child, line: &str) -> Result<(std::process::ExitStatus, u64), Fault> {
    let (began, mut peak) = (Instant::now(), 0);
    loop {
        peak = process::peak_rss_bytes(child.id()).unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().map_err(|e| Fault::failed(line, e))? {
            return Ok((status, peak));
        }
        if began.elapsed() >= ANSWER {
            let stacks = process::stacks(child.id());
            process::kill_group(child.id());
            return Err(Fault::new(FaultKind::Hang, format!("no end after {ANSWER:?}: {line}\n{stacks}")));
        }
        std::thread::sleep(POLL);
    }
}
