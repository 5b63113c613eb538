//! Runs cases until the time is over: who is next, a process for each, a limit on its time, and the report.
//!
//! Each case runs in a process of its own, so that whatever hangs or crashes is one case and not the soak. The runner
//! touches nothing that a case made until the case has ended or its time is over, and then only in an order in which
//! nothing can hang (`leftovers`).

use crate::part::{Context, Done, Fault, FaultKind, Part, Settings};
use crate::random::derive;
use crate::{leftovers, process, verdict};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a process may take to end after its verdict.
const ENDING: Duration = Duration::from_secs(5);
/// Quick cases are counted, and the count is printed this often.
const REPORT: Duration = Duration::from_secs(15);
/// Files of a failed case up to this length are kept; a backing is not.
const KEPT_LEN: u64 = 4 << 20;

/// Set by a signal that ends the run.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Ends the run: no further case begins, and those that run are ended and cleared away.
pub fn stop() {
    IS_STOPPED.store(true, Relaxed);
}

/// What is to be run.
pub struct Plan {
    /// Cases are drawn from this.
    pub seed: u64,
    /// No case begins after this.
    pub time: Duration,
    /// Cases that run side by side.
    pub jobs: usize,
    /// After so many faults no further case begins.
    pub max_faults: usize,
    /// The parts that take turns.
    pub parts: Vec<Box<dyn Part>>,
    /// Where the folders of cases go.
    pub dir: PathBuf,
    /// For the cases.
    pub settings: Settings,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Summary {
    /// Cases that ran, and of those that could not, by part.
    pub counts: Vec<Count>,
    /// The faults, one line each.
    pub faults: Vec<String>,
}

/// Cases of one part.
#[derive(Debug, Clone, Default)]
pub struct Count {
    name: &'static str,
    ran: u64,
    skipped: u64,
    time: Duration,
}

struct Progress {
    began: Instant,
    next_index: u64,
    summary: Summary,
    /// What each part has had of the time, and the sum of what it will have had.
    charged: Vec<Duration>,
    reported: Instant,
}

/// Runs cases until the time is over.
pub fn run(plan: &Plan) -> Summary {
    let counts = plan.parts.iter().map(|p| Count { name: p.name(), ..Count::default() }).collect();
    let now = Instant::now();
    let progress = Mutex::new(Progress {
        began: now,
        next_index: 0,
        summary: Summary { counts, faults: Vec::new() },
        charged: vec![Duration::ZERO; plan.parts.len()],
        reported: now,
    });
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                while let Some((part, seed)) = next(plan, &progress) {
                    let began = Instant::now();
                    let verdict = run_case(&*plan.parts[part], seed, &plan.dir, &plan.settings);
                    note(plan, &progress, part, seed, began.elapsed(), verdict);
                }
            });
        }
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).summary
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    // A thread that panicked has printed why; the counts of the others still hold.
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next case: of the part that has had the least of its share.
fn next(plan: &Plan, progress: &Mutex<Progress>) -> Option<(usize, u64)> {
    let mut progress = lock(progress);
    if IS_STOPPED.load(Relaxed)
        || progress.began.elapsed() >= plan.time
        || progress.summary.faults.len() >= plan.max_faults
    {
        return None;
    }
    let due = |i: &usize| progress.charged[*i] / plan.parts[*i].share().max(1);
    let part = (0..plan.parts.len()).min_by_key(due)?;
    // So that threads that choose at the same time choose different parts; replaced by the time it took.
    progress.charged[part] += Duration::from_millis(1);
    let seed = derive(plan.seed, progress.next_index) >> 32;
    progress.next_index += 1;
    if !plan.parts[part].is_quick() {
        println!("{:>5}s {} --case {seed}", progress.began.elapsed().as_secs(), plan.parts[part].name());
    }
    Some((part, seed))
}

/// Counts a case and prints what is to be printed of it.
fn note(
    plan: &Plan,
    progress: &Mutex<Progress>,
    index: usize,
    seed: u64,
    took: Duration,
    verdict: Result<Done, Fault>,
) {
    let mut progress = lock(progress);
    let (part, at) = (&plan.parts[index], progress.began.elapsed().as_secs());
    progress.charged[index] += took;
    let count = &mut progress.summary.counts[index];
    count.time += took;
    match verdict {
        Ok(Done::Ran(what)) => {
            count.ran += 1;
            if !part.is_quick() {
                println!("{at:>5}s   ok in {:.0?}: {what}", took);
            }
        }
        Ok(Done::Skipped(why)) => {
            count.skipped += 1;
            println!("{at:>5}s   {} --case {seed} skipped: {why}", part.name());
        }
        Err(fault) => {
            count.ran += 1;
            let dir = case_dir(&plan.dir, &**part, seed);
            print_fault(&**part, seed, &fault, at, &dir);
            let first = fault.message.lines().next().unwrap_or_default();
            progress.summary.faults.push(format!("{} --case {seed}: {}: {first}", part.name(), fault.kind));
        }
    }
    if progress.reported.elapsed() >= REPORT {
        progress.reported = Instant::now();
        for (part, count) in plan.parts.iter().zip(&progress.summary.counts) {
            if part.is_quick() {
                println!("{at:>5}s {}: {} cases so far", part.name(), count.ran);
            }
        }
    }
}

/// Everything about a fault that one needs to look at it.
pub fn print_fault(part: &dyn Part, seed: u64, fault: &Fault, at_s: u64, dir: &Path) {
    println!("{at_s:>5}s FAULT {fault}");
    println!("       case    {}", part.draw(seed).describe());
    let program = std::env::current_exe().unwrap_or_default();
    println!("       replay  {} {} --case {seed}", program.display(), part.name());
    println!("       kept    {}", dir.display());
}

/// The folder of a case.
pub fn case_dir(dir: &Path, part: &dyn Part, seed: u64) -> PathBuf {
    dir.join(format!("{}-{seed}", part.name()))
}

/// Runs one case in a process of its own, watches it, and clears away what it leaves.
pub fn run_case(part: &dyn Part, seed: u64, dir: &Path, settings: &Settings) -> Result<Done, Fault> {
    let dir = case_dir(dir, part, seed);
    let limit = part.draw(seed).time_limit();
    let setting_up = |e| Fault::failed(format!("setting up {}", dir.display()), e);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(setting_up)?;
    let mut child = spawn(part, seed, &dir, settings).map_err(setting_up)?;
    let verdict = watch(&mut child, &dir, limit);
    let left = leftovers::find(&dir);
    let stuck = if left.is_empty() { Vec::new() } else { leftovers::clear(&dir) };
    let verdict = match verdict {
        _ if IS_STOPPED.load(Relaxed) => Ok(Done::Skipped("the run was stopped".into())),
        Ok(_) if !left.is_empty() => Err(Fault::new(FaultKind::Leftover, format!("{left:?}"))),
        Ok(done) => Ok(done),
        Err(fault) if stuck.is_empty() => Err(fault),
        Err(fault) => Err(Fault::new(fault.kind, format!("{}\ncannot be cleared: {stuck:?}", fault.message))),
    };
    match &verdict {
        Ok(_) => remove(&dir),
        Err(_) => drop_large_files(&dir),
    }
    verdict
}

fn spawn(part: &dyn Part, seed: u64, dir: &Path, settings: &Settings) -> std::io::Result<Child> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["one", part.name(), "--case", &seed.to_string(), "--dir"]).arg(dir);
    command.arg("--program").arg(&settings.program).process_group(0);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Waits for the verdict. A process that has one and does not end, or has none in time, is ended by force.
fn watch(child: &mut Child, dir: &Path, limit: Duration) -> Result<Done, Fault> {
    let began = Instant::now();
    let mut decided = None;
    loop {
        let ended = child.try_wait().map_err(|e| Fault::failed("waiting for the case", e))?;
        if let Some(status) = ended {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            return verdict::read(dir).unwrap_or_else(|| {
                let log = process::tail(&log, 1500);
                Err(Fault::new(FaultKind::Failed, format!("the case ended with {status}:\n{log}")))
            });
        }
        if decided.is_none() && verdict::read(dir).is_some() {
            decided = Some(Instant::now());
        }
        let is_over = IS_STOPPED.load(Relaxed)
            || began.elapsed() >= limit
            || decided.is_some_and(|at| at.elapsed() >= ENDING);
        if is_over {
            let stacks = hanging(child.id(), dir);
            leftovers::abort_all(dir);
            process::end_group(child.id());
            let _ = process::wait(child, ENDING);
            return verdict::read(dir).filter(Result::is_err).unwrap_or_else(|| {
                Err(Fault::new(FaultKind::Hang, format!("the case did not end within {limit:?}\n{stacks}")))
            });
        }
        std::thread::sleep(Duration::from_millis(if began.elapsed().as_secs() < 1 { 1 } else { 20 }));
    }
}

fn hanging(child: u32, dir: &Path) -> String {
    let mut text = process::stacks(child);
    for leftover in leftovers::find(dir) {
        if let leftovers::Leftover::Process { id, .. } = leftover {
            text += &process::stacks(id);
        }
    }
    text
}

/// Removes a folder in which nothing is mounted.
fn remove(dir: &Path) {
    if let Err(e) = std::fs::remove_dir_all(dir) {
        println!("       {} cannot be removed: {e}", dir.display());
    }
}

fn drop_large_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|m| m.is_file() && m.len() > KEPT_LEN) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Runs a case in this process and leaves its verdict in the folder.
pub fn run_here(part: &dyn Part, context: &Context) -> std::io::Result<()> {
    let case = part.draw(context.seed);
    println!("{}", case.describe());
    let verdict = case.run(context);
    match &verdict {
        Ok(done) => println!("{done:?}"),
        Err(fault) => println!("FAULT {fault}"),
    }
    verdict::write(&context.dir, &verdict)
}

impl Summary {
    /// The last lines of a run; true if there was no fault.
    pub fn print(&self) -> bool {
        for count in &self.counts {
            let Count { name, ran, skipped, time } = count;
            println!("{name}: {ran} cases in {:.0} s, {skipped} skipped", time.as_secs_f64());
        }
        match self.faults.len() {
            0 => println!("no fault"),
            n => println!("{n} faults:\n  {}", self.faults.join("\n  ")),
        }
        self.faults.is_empty()
    }
}
