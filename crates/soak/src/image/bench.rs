//! Commands on one image: run with a budget and a time limit, and held to what every command promises.
//!
//! A command ends in time, with a code that is documented, by no signal and no panic, says why it failed, and takes no
//! more memory than its budget and a fixed part.

use crate::part::{Context, Fault, FaultKind};
use crate::process;
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// A command is to end within this time.
pub const ANSWER: Duration = Duration::from_secs(60);
/// How often the memory of a command is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// `check` and `extract` have a buffer of this size for each thread.
const JOB_BYTES: u64 = 1 << 20;
/// Memory beside the budget and those buffers, bytes: the program, its threads' stacks, the first MiB of what is remembered of
/// the tree, findings. A fixed bound on what may come on top of what users give as memory; measured it is 6 to 8 MiB.
const BESIDE_BYTES: u64 = 16 << 20;

/// An image, and the folder in which commands on it run.
pub struct Bench<'a> {
    /// The case.
    pub context: &'a Context,
    /// Where commands run and put what they make.
    pub dir: PathBuf,
    /// The image.
    pub image: PathBuf,
    /// Its further devices.
    pub devices: Vec<PathBuf>,
    /// The most memory that a command took beside its budget, bytes.
    pub most_beside: Cell<u64>,
    /// Commands that ran.
    pub commands: Cell<u64>,
}

/// How a command is called.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// `check`, `extract` and so on.
    pub verb: &'static str,
    /// `--memory`, bytes.
    pub budget: u64,
    /// `--jobs`.
    pub jobs: Option<u64>,
    /// Further options.
    pub options: Vec<String>,
    /// What comes behind the image.
    pub behind: Vec<OsString>,
    /// As an ordinary user, who can reach what is in the folder.
    pub as_user: bool,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its command line.
    pub line: String,
    /// Its exit code.
    pub code: i32,
    /// The file with its standard output.
    pub out: PathBuf,
    /// What it said.
    pub err: String,
}

impl Ended {
    /// Its output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Its output as JSON.
    pub fn json(&self) -> Result<serde_json::Value, Fault> {
        serde_json::from_str(&self.text()).map_err(|e| Fault::failed(format!("the JSON of {}", self.line), e))
    }

    /// A fault unless it succeeded.
    pub fn ok(self) -> Result<Self, Fault> {
        match self.code {
            0 => Ok(self),
            code => {
                let (err, out) = (process::tail(&self.err, 1500), self.text());
                Err(Fault::failed(self.line, format!("exit code {code}: {err}{}", process::tail(&out, 1500))))
            }
        }
    }

    /// The budget that it says it needs, bytes, if that is why it failed.
    pub fn needed(&self) -> Option<u64> {
        let (before, _) = self.err.split_once(" bytes of memory are needed")?;
        before.rsplit(' ').next()?.parse().ok()
    }

    /// Whether it did not do everything because a limit or the budget was too small, which it said.
    pub fn is_limited(&self) -> bool {
        let said = format!("{}{}", self.err, process::tail(&self.text(), 65_536));
        ["--max-bytes", "--max-inodes", "--memory", "too little memory"]
            .iter()
            .any(|word| said.contains(word))
    }
}

impl<'a> Bench<'a> {
    /// For an image; commands run in a folder that exists.
    pub fn new(context: &'a Context, dir: PathBuf, image: PathBuf, devices: Vec<PathBuf>) -> Self {
        Bench { context, dir, image, devices, most_beside: Cell::new(0), commands: Cell::new(0) }
    }

    /// The least budget with which the image is read, as a command says that is refused a smaller one.
    pub fn least_budget(&self) -> Result<u64, Fault> {
        let ended = self.run(&Call { verb: "list", budget: 4096, ..Call::default() })?;
        let said = ended.needed();
        said.ok_or_else(|| Fault::failed(&ended.line, format!("no least budget is said: {}", ended.err)))
    }

    /// Runs a command; faults are what no command may do, whatever the image.
    pub fn run(&self, call: &Call) -> Result<Ended, Fault> {
        let number = self.commands.replace(self.commands.get() + 1);
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
        let (status, peak) = watched(&mut child, &line)?;
        let said = String::from_utf8_lossy(&fs::read(&err).unwrap_or_default()).into_owned();
        // What nobody asks for any more.
        let _ = fs::remove_file(err);
        let code = status.code().unwrap_or(-1);
        println!("+ {line}: {code} in {:?}, {} KiB {:.300}", began.elapsed(), peak >> 10, said.trim_end());
        if !(0..=5).contains(&code) || said.contains("panicked") {
            return Err(Fault::failed(&line, format!("{status}: {}", process::tail(&said, 2000))));
        }
        if code != 0 && !said.contains("pagefold: error: ") && !said.contains("error:") {
            return Err(Fault::failed(&line, format!("exit code {code} without a word")));
        }
        let jobs = if ["check", "extract"].contains(&call.verb) { call.jobs.unwrap_or(2) } else { 0 };
        let promised = call.budget + jobs * JOB_BYTES;
        self.is_within(peak, promised, &line)?;
        Ok(Ended { line, code, out, err: said })
    }

    /// A fault if a process took more memory than was promised and a fixed part.
    pub fn is_within(&self, peak: u64, promised: u64, line: &str) -> Result<(), Fault> {
        self.most_beside.set(self.most_beside.get().max(peak.saturating_sub(promised)));
        match peak > promised + BESIDE_BYTES {
            false => Ok(()),
            true => {
                let message =
                    format!("{line}: {peak} bytes of RAM, {promised} and {BESIDE_BYTES} are promised");
                Err(Fault::new(FaultKind::Memory, message))
            }
        }
    }

    fn args(&self, call: &Call) -> Vec<OsString> {
        let mut args: Vec<OsString> =
            vec!["image".into(), call.verb.into(), "-m".into(), call.budget.to_string().into()];
        if let Some(jobs) = call.jobs {
            args.extend(["-j".into(), jobs.to_string().into()]);
        }
        for device in &self.devices {
            args.extend(["--device".into(), self.named(device, call)]);
        }
        args.extend(call.options.iter().map(OsString::from));
        args.push(self.named(&self.image, call));
        args.extend(call.behind.iter().cloned());
        args
    }

    /// An ordinary user gets into the folder by being there, and by no path that leads to it.
    fn named(&self, path: &Path, call: &Call) -> OsString {
        match path.file_name() {
            Some(name) if call.as_user => name.into(),
            _ => path.into(),
        }
    }
}

/// Waits for a command, and looks at its memory meanwhile. The highest mark only grows, so only what is taken in the last
/// moment is missed.
fn watched(child: &mut Child, line: &str) -> Result<(std::process::ExitStatus, u64), Fault> {
    let (began, mut peak) = (Instant::now(), 0);
    loop {
        peak = process::peak_rss_bytes(child.id()).unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().map_err(|e| Fault::failed(line, e))? {
            return Ok((status, peak));
        }
        if began.elapsed() >= ANSWER {
            let stacks = process::stacks(child.id());
            process::end_group(child.id());
            return Err(Fault::new(FaultKind::Hang, format!("no end after {ANSWER:?}: {line}\n{stacks}")));
        }
        std::thread::sleep(LOOK);
    }
}
