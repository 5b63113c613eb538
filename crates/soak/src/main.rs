//! The soak: configurations and loads at random, from seeds, with checks of everything that is promised.
//!
//! | module | what |
//! |---|---|
//! | `part` | what a part of the soak implements, and what a case reports |
//! | `engine`, `disk`, `image`, `memory` | the parts: stores in this process; disks as users make them; images; regions of memory |
//! | `load`, `target` | what is written and read, and through what |
//! | `model` | when a refusal is right |
//! | `runner`, `verdict` | cases one after the other, each in a process of its own |
//! | `process`, `leftovers` | programs with time limits; what a case leaves behind |
//! | `random` | the same draws from the same seed |
//!
//! It is a program and not a test, because it runs for minutes or hours and finds something else each time. What it
//! finds gets a test of its own, beside the code.

mod cli;
mod disk;
mod engine;
mod image;
mod leftovers;
mod load;
mod memory;
mod model;
mod part;
mod process;
mod random;
mod runner;
mod target;
mod verdict;

use anyhow::{Context as _, bail};
use clap::Parser;
use cli::{Cli, One};
use pagefold_sys::signal::Termination;
use part::{Context, Part, Settings};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let is_one = args.nth(1).is_some_and(|word| word == "one");
    let outcome = if is_one { one(One::parse_from(std::env::args_os().skip(1))) } else { soak(Cli::parse()) };
    match outcome {
        Ok(code) => code,
        Err(e) => {
            eprintln!("pagefold-soak: error: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// One case, in this process.
fn one(one: One) -> anyhow::Result<ExitCode> {
    let part = find(&one.part)?;
    let settings = Settings { program: one.program };
    let context = Context { seed: one.case, dir: one.dir, settings };
    runner::run_here(&*part, &context).context("writing the verdict")?;
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> anyhow::Result<Box<dyn Part>> {
    let names: Vec<_> = part::all().iter().map(|p| p.name()).collect();
    let found = part::all().into_iter().find(|p| p.name() == name);
    found.with_context(|| format!("there is no part {name:?}; there are: {}", names.join(", ")))
}

fn soak(cli: Cli) -> anyhow::Result<ExitCode> {
    let parts = match &cli.part {
        Some(name) => vec![find(name)?],
        None => part::all(),
    };
    if let (Some(seed), Some(part), true) = (cli.case, parts.first(), cli.describe) {
        println!("{}", part.draw(seed).describe());
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings { program: program(cli.program.clone())? };
    let mut usable = Vec::new();
    for part in parts {
        match part.obstacle(&settings) {
            Some(why) => println!("SKIPPED soak {}: {why}", part.name()),
            None => usable.push(part),
        }
    }
    let dir = folder(&cli)?;
    stop_at_signals()?;
    let is_good = match (cli.case, usable.first()) {
        (_, None) => bail!("no part can run here"),
        (Some(seed), Some(part)) => replay(&**part, seed, cli.repeat, &dir, &settings),
        (None, _) => {
            let seed = cli.seed.unwrap_or_else(seed_from_clock);
            println!("seed {seed}, {} minutes, {}", cli.minutes, settings.program.display());
            let time = Duration::try_from_secs_f64(cli.minutes * 60.0).context("--minutes")?;
            let (jobs, max_faults) = (cli.jobs, cli.max_faults);
            let plan =
                runner::Plan { seed, time, jobs, max_faults, parts: usable, dir: dir.clone(), settings };
            runner::run(&plan).print()
        }
    };
    // Not empty if a case failed; then it holds what was kept.
    let _ = std::fs::remove_dir(&dir);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ctrl-C and SIGTERM end the run, and clear away what its cases have made.
fn stop_at_signals() -> anyhow::Result<()> {
    // Before any thread is started, so that all have the signals blocked; programs that are started do not.
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

/// Runs one case, again and again if asked to, until a fault.
fn replay(part: &dyn Part, seed: u64, repeat: u64, dir: &std::path::Path, settings: &Settings) -> bool {
    println!("{}", part.draw(seed).describe());
    let began = Instant::now();
    for _ in 0..repeat.max(1) {
        match runner::run_case(part, seed, dir, settings) {
            Ok(done) => println!("{:>5}s {done:?}", began.elapsed().as_secs()),
            Err(fault) => {
                let kept = runner::case_dir(dir, part, seed);
                runner::print_fault(part, seed, &fault, began.elapsed().as_secs(), &kept);
                return false;
            }
        }
    }
    true
}

fn seed_from_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The program to test. Under cargo it is built first: a run must not test what was built some time ago.
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

/// The folder for cases: private, because a disk's runtime folder must be reached through private folders only.
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
