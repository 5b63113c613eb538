//! The soak: draws configurations and loads at random from seeds, runs them, and checks all documented promises.
//!
//! The modules, from the top layer to the bottom; each uses only those in rows below its row:
//!
//! | module | contents |
//! |---|---|
//! | `cli`, `runner` | the command line; scheduling of cases, each in a separate process |
//! | `suites` | the table of suites |
//! | `engine`, `disk`, `image`, `memory` | the suites: stores in this process; disks of servers; images; regions of memory |
//! | `backing`, `recompression` | drawn backings of stores in this process; drawn codecs |
//! | `load` | reads and writes that check what they read |
//! | `target` | interfaces that a load writes to: a store, a region, a device, NBD |
//! | `watchdog` | detection of requests that hang |
//! | `leftovers` | mounts, loop devices and processes that a case leaves behind |
//! | `process` | programs with time limits, and reading about processes |
//! | `case` | the interface between a suite and the runner |
//! | `model` | when a refusal is justified |
//! | `random`, `verdict` | draws that are the same for a seed; summary or fault of a case |
//!
//! Path of a case: `main` -> `runner` -> this program again as `one`, in a child process -> `runner::run_here` -> the
//! `run` of the suite's case -> a file with the verdict, which the parent reads.
//!
//! The soak is a program and not a test, because it runs for minutes or hours and draws other cases each time. A
//! fault that it finds gets a regression test beside the code.

mod backing;
mod case;
mod cli;
mod disk;
mod engine;
mod image;
mod leftovers;
mod load;
mod memory;
mod model;
mod process;
mod random;
mod recompression;
mod runner;
mod suites;
mod target;
mod verdict;
mod watchdog;

use anyhow::{Context as _, bail};
use case::{Context, Settings, Suite};
use clap::Parser;
use cli::{Cli, OneCase};
use pagefold_sys::signal::Termination;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let is_one = args.nth(1).is_some_and(|word| word == "one");
    let outcome =
        if is_one { one(OneCase::parse_from(std::env::args_os().skip(1))) } else { soak(Cli::parse()) };
    match outcome {
        Ok(code) => code,
        Err(e) => {
            eprintln!("pagefold-soak: error: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs one case in this process.
fn one(one: OneCase) -> anyhow::Result<ExitCode> {
    let suite = find(&one.suite)?;
    let settings = Settings { program: one.program };
    let context = Context { seed: one.case, dir: one.dir, settings };
    runner::run_here(suite, &context).context("writing the verdict")?;
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> anyhow::Result<&'static Suite> {
    let names: Vec<_> = suites::ALL.iter().map(|s| s.name).collect();
    let found = suites::ALL.iter().find(|s| s.name == name);
    found.with_context(|| format!("there is no suite {name:?}; there are: {}", names.join(", ")))
}

fn soak(cli: Cli) -> anyhow::Result<ExitCode> {
    let suites = match &cli.suite {
        Some(name) => vec![find(name)?],
        None => suites::ALL.iter().collect(),
    };
    if let (Some(seed), Some(suite), true) = (cli.case, suites.first(), cli.describe) {
        println!("{:?}", (suite.draw)(seed));
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings { program: program(cli.program.clone())? };
    let mut usable = Vec::new();
    for suite in suites {
        match (suite.obstacle)(&settings) {
            Some(why) => println!("SKIPPED soak {}: {why}", suite.name),
            None => usable.push(suite),
        }
    }
    let dir = folder(&cli)?;
    stop_at_signals()?;
    let is_good = match (cli.case, usable.first()) {
        (_, None) => bail!("no suite can run here"),
        (Some(seed), Some(suite)) => replay(suite, seed, cli.repeat, &dir, &settings),
        (None, _) => {
            let seed = cli.seed.unwrap_or_else(seed_from_clock);
            println!("seed {seed}, {} minutes, {}", cli.minutes, settings.program.display());
            let time = Duration::try_from_secs_f64(cli.minutes * 60.0).context("--minutes")?;
            let (jobs, max_faults) = (cli.jobs, cli.max_faults);
            let plan =
                runner::Plan { seed, time, jobs, max_faults, suites: usable, dir: dir.clone(), settings };
            runner::run(&plan).print()
        }
    };
    // This fails if the folder holds the files of a failed case.
    let _ = std::fs::remove_dir(&dir);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes Ctrl-C and SIGTERM stop the run and clear away what its cases have made.
fn stop_at_signals() -> anyhow::Result<()> {
    // Threads inherit the blocked signals, so this comes before any thread is started. Child processes unblock them.
    let signals = Termination::listen()?;
    std::thread::spawn(move || {
        while signals.take().is_none() {
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("stopped by a signal");
        runner::stop();
    });
    Ok(())
}

/// Runs one case `repeat` times, or until a fault.
fn replay(suite: &Suite, seed: u64, repeat: u64, dir: &std::path::Path, settings: &Settings) -> bool {
    println!("{:?}", (suite.draw)(seed));
    let began = Instant::now();
    for _ in 0..repeat.max(1) {
        match runner::run_case(suite, seed, dir, settings) {
            Ok(done) => println!("{:>5}s {done:?}", began.elapsed().as_secs()),
            Err(fault) => {
                let case_dir = runner::case_dir(dir, suite, seed);
                runner::print_fault(suite, seed, &fault, began.elapsed().as_secs(), &case_dir);
                return false;
            }
        }
    }
    true
}

fn seed_from_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The program to test. Under `cargo run` it is built first, so that a run does not test an old build.
fn program(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return path.canonicalize().with_context(|| format!("--program {}", path.display()));
    }
    let own = std::env::current_exe().context("finding this program")?;
    let path = own.with_file_name("pagefold");
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "-p", "pagefold", "--bin", "pagefold"]);
        if own.parent().is_some_and(|dir| dir.ends_with("release")) {
            command.arg("--release");
        }
        let status = command.status().context("building pagefold")?;
        anyhow::ensure!(status.success(), "building pagefold failed");
    }
    anyhow::ensure!(path.is_file(), "{} does not exist: cargo build --release -p pagefold", path.display());
    Ok(path)
}

/// Makes the folder for cases. It is private, because a disk's runtime folder must lie in private folders only.
fn folder(cli: &Cli) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let default = || PathBuf::from(format!("/var/tmp/pagefold-soak-{}", std::process::id()));
    let dir = cli.dir.clone().unwrap_or_else(default);
    let make = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    make.with_context(|| format!("making {}", dir.display()))?;
    let is_empty = std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))?.next().is_none();
    anyhow::ensure!(is_empty, "{} is not empty", dir.display());
    dir.canonicalize().with_context(|| format!("{}", dir.display()))
}
