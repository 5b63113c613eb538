//! Schedules cases until the time is over, runs each in a child process with a time limit, and prints the report.
//!
//! [`run`] starts as many threads as there are jobs. Each of them takes the next case ([`next`]: of the suite that
//! has used the smallest part of its share), runs it as a child process ([`run_case`]) and records the verdict
//! ([`record`]). One mutex guards the progress; no thread holds it while a case runs. The child is this program
//! again, as `one`, and ends in [`run_here`].
//!
//! A case has a separate process, so a hang or a crash ends one case and not the soak. The runner touches nothing
//! that a case made until the case has ended or its time is over, and then only in an order in which nothing can hang
//! (`leftovers`).

use crate::case::{Context, Settings, Suite};
use crate::random::derive;
use crate::verdict::{Done, Fault, FaultKind};
use crate::{leftovers, process, verdict};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a process may take to exit after its verdict.
const EXIT_LIMIT: Duration = Duration::from_secs(5);
/// How often the count of quick cases is printed.
const REPORT: Duration = Duration::from_secs(15);
/// Longest file of a failed case that is not removed, bytes: logs stay, a backing does not.
const RETAINED_MAX: u64 = 4 << 20;

/// Whether [`stop`] was called.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Stops the run: no further case begins, and running cases are killed and cleared away.
pub fn stop() {
    IS_STOPPED.store(true, Relaxed);
}

/// The parameters of a run.
pub struct Plan {
    /// Seed from which the seeds of cases are derived.
    pub seed: u64,
    /// Time after which no case begins.
    pub time: Duration,
    /// Cases that run at the same time.
    pub jobs: usize,
    /// Number of faults after which no further case begins.
    pub max_faults: usize,
    /// The suites to run.
    pub suites: Vec<&'static Suite>,
    /// Parent of the cases' folders.
    pub dir: PathBuf,
    /// Settings of all cases.
    pub settings: Settings,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Numbers of cases, by suite.
    pub counts: Vec<Count>,
    /// The faults, one line each.
    pub faults: Vec<String>,
}

/// Numbers of cases of one suite.
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
    /// Time that each suite has used.
    charged: Vec<Duration>,
    reported: Instant,
}

/// Runs cases until the time is over.
pub fn run(plan: &Plan) -> Summary {
    let counts = plan.suites.iter().map(|s| Count { name: s.name, ..Count::default() }).collect();
    let now = Instant::now();
    let progress = Mutex::new(Progress {
        began: now,
        next_index: 0,
        summary: Summary { counts, faults: Vec::new() },
        charged: vec![Duration::ZERO; plan.suites.len()],
        reported: now,
    });
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                while let Some((suite, seed)) = next(plan, &progress) {
                    let began = Instant::now();
                    let verdict = run_case(plan.suites[suite], seed, &plan.dir, &plan.settings);
                    record(plan, &progress, suite, seed, began.elapsed(), verdict);
                }
            });
        }
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).summary
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    // A thread that panicked has printed why; the counts of the other threads are still right.
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next case, of the suite that has used the smallest part of its share; `None` at the end of the run.
fn next(plan: &Plan, progress: &Mutex<Progress>) -> Option<(usize, u64)> {
    let mut progress = lock(progress);
    if IS_STOPPED.load(Relaxed)
        || progress.began.elapsed() >= plan.time
        || progress.summary.faults.len() >= plan.max_faults
    {
        return None;
    }
    let used_part = |i: &usize| progress.charged[*i] / plan.suites[*i].share.max(1);
    let suite = (0..plan.suites.len()).min_by_key(used_part)?;
    // Threads that choose before the case has ended shall choose other suites; `record` adds the time that it took.
    progress.charged[suite] += Duration::from_millis(1);
    let seed = derive(plan.seed, progress.next_index) >> 32;
    progress.next_index += 1;
    if !plan.suites[suite].is_quick {
        println!("{:>5}s {} --case {seed}", progress.began.elapsed().as_secs(), plan.suites[suite].name);
    }
    Some((suite, seed))
}

/// Counts a case and prints its result.
fn record(
    plan: &Plan,
    progress: &Mutex<Progress>,
    index: usize,
    seed: u64,
    took: Duration,
    verdict: Result<Done, Fault>,
) {
    let mut progress = lock(progress);
    let (suite, at) = (plan.suites[index], progress.began.elapsed().as_secs());
    progress.charged[index] += took;
    let count = &mut progress.summary.counts[index];
    count.time += took;
    match verdict {
        Ok(Done::Ran(summary)) => {
            count.ran += 1;
            if !suite.is_quick {
                println!("{at:>5}s   ok in {:.0?}: {summary}", took);
            }
        }
        Ok(Done::Skipped(why)) => {
            count.skipped += 1;
            println!("{at:>5}s   {} --case {seed} skipped: {why}", suite.name);
        }
        Err(fault) => {
            count.ran += 1;
            let dir = case_dir(&plan.dir, suite, seed);
            print_fault(suite, seed, &fault, at, &dir);
            let first = fault.message.lines().next().unwrap_or_default();
            progress.summary.faults.push(format!("{} --case {seed}: {}: {first}", suite.name, fault.kind));
        }
    }
    if progress.reported.elapsed() >= REPORT {
        progress.reported = Instant::now();
        for (suite, count) in plan.suites.iter().zip(&progress.summary.counts) {
            if suite.is_quick {
                println!("{at:>5}s {}: {} cases so far", suite.name, count.ran);
            }
        }
    }
}

/// Prints a fault with the case's configuration, the command that runs the case again, and the folder with its files.
pub fn print_fault(suite: &Suite, seed: u64, fault: &Fault, at_s: u64, dir: &Path) {
    println!("{at_s:>5}s FAULT {fault}");
    println!("       case    {:?}", (suite.draw)(seed));
    let program = std::env::current_exe().unwrap_or_default();
    println!("       replay  {} {} --case {seed}", program.display(), suite.name);
    println!("       kept    {}", dir.display());
}

/// The folder of a case.
pub fn case_dir(dir: &Path, suite: &Suite, seed: u64) -> PathBuf {
    dir.join(format!("{}-{seed}", suite.name))
}

/// Runs one case in a child process, waits for its verdict, and clears away its leftovers, which are a fault.
///
/// An old folder of the same case is removed first. After a good case its folder is removed; after a fault it stays,
/// without its large files.
pub fn run_case(suite: &Suite, seed: u64, dir: &Path, settings: &Settings) -> Result<Done, Fault> {
    let dir = case_dir(dir, suite, seed);
    let limit = (suite.draw)(seed).time_limit();
    let setting_up = |e| Fault::failed(format!("setting up {}", dir.display()), e);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(setting_up)?;
    let mut child = spawn(suite, seed, &dir, settings).map_err(setting_up)?;
    let verdict = wait_for_verdict(&mut child, &dir, limit);
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
        Err(_) => remove_large_files(&dir),
    }
    verdict
}

fn spawn(suite: &Suite, seed: u64, dir: &Path, settings: &Settings) -> std::io::Result<Child> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["one", suite.name, "--case", &seed.to_string(), "--dir"]).arg(dir);
    command.arg("--program").arg(&settings.program).process_group(0);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Waits until a case has exited and returns its verdict. Kills a process that does not exit after its verdict, or
/// that does not exit within the limit. Such a case is a hang, even if it had written a good verdict; a fault that it
/// had written stays.
fn wait_for_verdict(child: &mut Child, dir: &Path, limit: Duration) -> Result<Done, Fault> {
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
        let stays = decided.is_some_and(|at| at.elapsed() >= EXIT_LIMIT);
        if IS_STOPPED.load(Relaxed) || began.elapsed() >= limit || stays {
            let stacks = process::stacks(child.id()) + &leftovers::stacks(dir);
            leftovers::abort_and_kill(dir);
            process::kill_group(child.id());
            let _ = process::wait(child, EXIT_LIMIT);
            return verdict::read(dir).filter(Result::is_err).unwrap_or_else(|| {
                let why = match stays {
                    true => format!("the process did not exit within {EXIT_LIMIT:?} after its verdict"),
                    false => format!("the case did not end within {limit:?}"),
                };
                Err(Fault::new(FaultKind::Hang, format!("{why}\n{stacks}")))
            });
        }
        std::thread::sleep(Duration::from_millis(if began.elapsed().as_secs() < 1 { 1 } else { 20 }));
    }
}

/// Removes a folder in which nothing is mounted.
fn remove(dir: &Path) {
    if let Err(e) = std::fs::remove_dir_all(dir) {
        println!("       {} cannot be removed: {e}", dir.display());
    }
}

fn remove_large_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|m| m.is_file() && m.len() > RETAINED_MAX) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Runs a case in this process and writes its verdict to the case's folder.
pub fn run_here(suite: &Suite, context: &Context) -> std::io::Result<()> {
    let case = (suite.draw)(context.seed);
    println!("{case:?}");
    let verdict = case.run(context);
    match &verdict {
        Ok(done) => println!("{done:?}"),
        Err(fault) => println!("FAULT {fault}"),
    }
    verdict::write(&context.dir, &verdict)
}

impl Summary {
    /// Prints the last lines of a run. Returns true if there was no fault.
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
