//! Draws cases until the time is over, runs each in a child process with a time limit, and prints the report.
//!
//! [`run`] takes the next case of the suite that has used the smallest part of its share, runs it as a child process
//! ([`run_case`]) and counts the verdict. The child is this program again, with `--here`, and ends in [`run_here`].
//!
//! A case has a separate process, so a hang or a crash ends one case and not the soak. The runner touches nothing
//! that a case made until the case has ended or its time is over, and then only in an order in which nothing can hang
//! (`leftovers`).

use crate::case::{Context, Suite};
use crate::random::derive;
use crate::verdict::{Done, Fault, FaultKind, OrFault};
use crate::{leftovers, process, verdict, watchdog};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a process may take to exit after its verdict.
const EXIT_LIMIT: Duration = Duration::from_secs(5);
/// How often the count of quick cases is printed.
const REPORT: Duration = Duration::from_secs(15);
/// Longest file of a failed case that is not removed, bytes: logs stay, a backing does not.
const RETAINED_MAX: u64 = 4 << 20;

/// Whether [`stop`] was called.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Stops the run: no further case begins, and the running case is killed and cleared away.
pub fn stop() {
    IS_STOPPED.store(true, Relaxed);
}

/// The parameters of a run.
pub struct Plan<'a> {
    /// Seed from which the seeds of cases are derived.
    pub seed: u64,
    /// Time after which no case begins.
    pub time: Duration,
    /// Number of faults after which no further case begins.
    pub max_faults: usize,
    /// The suites to run.
    pub suites: &'a [&'static Suite],
    /// The parent of the cases' folders, and the program.
    pub context: &'a Context,
}

/// Numbers of cases of one suite, and the time that they took.
struct Count {
    suite: &'static Suite,
    ran: u64,
    skipped: u64,
    time: Duration,
}

/// Runs cases until the time is over. Returns whether there was no fault.
pub fn run(plan: &Plan<'_>) -> bool {
    let count = |suite: &&'static Suite| Count { suite, ran: 0, skipped: 0, time: Duration::ZERO };
    let mut counts: Vec<_> = plan.suites.iter().map(count).collect();
    let mut faults: Vec<String> = Vec::new();
    let (began, mut reported) = (Instant::now(), Instant::now());
    let seconds = || began.elapsed().as_secs();
    for index in 0.. {
        let is_over = IS_STOPPED.load(Relaxed) || began.elapsed() >= plan.time;
        let used_part = |count: &&mut Count| count.time / count.suite.share.max(1);
        let Some(count) = counts.iter_mut().min_by_key(used_part) else { break };
        if is_over || faults.len() >= plan.max_faults {
            break;
        }
        let (suite, seed) = (count.suite, derive(plan.seed, index) >> 32);
        if !suite.is_quick {
            println!("{:>5}s {} --case {seed}", seconds(), suite.name);
        }
        let case_began = Instant::now();
        let verdict = run_case(suite, seed, plan.context);
        let took = case_began.elapsed();
        count.time += took;
        count.ran += u64::from(!matches!(verdict, Ok(Done::Skipped(_))));
        match verdict {
            Ok(Done::Ran(_)) if suite.is_quick => {}
            Ok(Done::Ran(summary)) => println!("{:>5}s   ok in {took:.0?}: {summary}", seconds()),
            Ok(Done::Skipped(why)) => {
                count.skipped += 1;
                println!("{:>5}s   {} --case {seed} skipped: {why}", seconds(), suite.name);
            }
            Err(fault) => {
                print_fault(suite, seed, &fault, seconds(), plan.context);
                let first = fault.message.lines().next().unwrap_or_default();
                faults.push(format!("{} --case {seed}: {}: {first}", suite.name, fault.kind));
            }
        }
        if suite.is_quick && reported.elapsed() >= REPORT {
            reported = Instant::now();
            println!("{:>5}s {}: {} cases so far", seconds(), suite.name, count.ran);
        }
    }
    for Count { suite, ran, skipped, time } in counts {
        println!("{}: {ran} cases in {:.0} s, {skipped} skipped", suite.name, time.as_secs_f64());
    }
    match faults.len() {
        0 => println!("no fault"),
        n => println!("{n} faults:\n  {}", faults.join("\n  ")),
    }
    faults.is_empty()
}

/// Runs one case `repeat` times, or until a fault. Returns whether there was none.
pub fn replay(suite: &Suite, seed: u64, repeat: u64, context: &Context) -> bool {
    println!("{:?}", (suite.draw)(seed));
    let began = Instant::now();
    let mut results = (0..repeat.max(1)).map(|_| run_case(suite, seed, context));
    results.all(|result| match result {
        Ok(done) => {
            println!("{:>5}s {done:?}", began.elapsed().as_secs());
            true
        }
        Err(fault) => {
            print_fault(suite, seed, &fault, began.elapsed().as_secs(), context);
            false
        }
    })
}

/// Prints a fault with the case's configuration, the command that runs the case again, and the folder with its files.
fn print_fault(suite: &Suite, seed: u64, fault: &Fault, at_s: u64, context: &Context) {
    println!("{at_s:>5}s FAULT {fault}");
    println!("       case    {:?}", (suite.draw)(seed));
    let program = std::env::current_exe().unwrap_or_default();
    println!("       replay  {} {} --case {seed}", program.display(), suite.name);
    println!("       kept    {}", case_dir(suite, seed, context).display());
}

/// The folder of a case.
fn case_dir(suite: &Suite, seed: u64, context: &Context) -> PathBuf {
    context.path(&format!("{}-{seed}", suite.name))
}

/// Runs one case in a child process, waits for its verdict, and clears away its leftovers, which are a fault.
///
/// An old folder of the same case is removed first. After a good case its folder is removed; after a fault it stays,
/// without its large files.
fn run_case(suite: &Suite, seed: u64, context: &Context) -> Result<Done, Fault> {
    let dir = case_dir(suite, seed, context);
    let setting_up = || format!("setting up {}", dir.display());
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).or_fault(setting_up())?;
    let mut child = spawn(suite, seed, &dir, context).or_fault(setting_up())?;
    let verdict = wait_for_verdict(&mut child, &dir, suite.time_limit);
    let left = leftovers::find(&dir);
    let stuck = if left.is_empty() { Vec::new() } else { leftovers::clear(&dir) };
    let verdict = match verdict {
        _ if IS_STOPPED.load(Relaxed) => Ok(Done::Skipped("the run was stopped".into())),
        Ok(_) if !left.is_empty() => Err(Fault::new(FaultKind::Leftover, format!("{left:?}"))),
        Err(fault) if !stuck.is_empty() => {
            Err(Fault::new(fault.kind, format!("{}\ncannot be cleared: {stuck:?}", fault.message)))
        }
        verdict => verdict,
    };
    match &verdict {
        Ok(_) => {
            // Nothing is mounted in it.
            if let Err(e) = std::fs::remove_dir_all(&dir) {
                println!("       {} cannot be removed: {e}", dir.display());
            }
        }
        Err(_) => remove_large_files(&dir),
    }
    verdict
}

fn spawn(suite: &Suite, seed: u64, dir: &Path, context: &Context) -> std::io::Result<Child> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([suite.name, "--case", &seed.to_string(), "--here"]).arg(dir);
    command.arg("--program").arg(&context.program).process_group(0);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Waits until a case has exited and returns its verdict. Kills a process that does not exit after its verdict, or
/// that does not exit within the limit. Such a case is a hang, even if it had written a good verdict; a fault that it
/// had written stays.
fn wait_for_verdict(child: &mut Child, dir: &Path, limit: Duration) -> Result<Done, Fault> {
    let began = Instant::now();
    let mut decided = None;
    loop {
        if let Some(status) = child.try_wait().or_fault("waiting for the case")? {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            let log = || process::tail(&log, 1500);
            return verdict::read(dir)
                .unwrap_or_else(|| Err(Fault::failed(format!("the case ended with {status}"), log())));
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
            let why = match stays {
                true => format!("the process did not exit within {EXIT_LIMIT:?} after its verdict"),
                false => format!("the case did not end within {limit:?}"),
            };
            let hang = || Err(Fault::new(FaultKind::Hang, format!("{why}\n{stacks}")));
            return verdict::read(dir).filter(Result::is_err).unwrap_or_else(hang);
        }
        std::thread::sleep(Duration::from_millis(if began.elapsed().as_secs() < 1 { 1 } else { 20 }));
    }
}

fn remove_large_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|m| m.is_file() && m.len() > RETAINED_MAX) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Runs a case in this process, under the watchdog, and writes its verdict to the case's folder.
pub fn run_here(suite: &Suite, seed: u64, context: &Context) -> std::io::Result<()> {
    let case = (suite.draw)(seed);
    println!("{case:?}");
    let verdict = watchdog::start(&context.dir).and_then(|()| case.run(context));
    match &verdict {
        Ok(done) => println!("{done:?}"),
        Err(fault) => println!("FAULT {fault}"),
    }
    verdict::write(&context.dir, &verdict)
}
