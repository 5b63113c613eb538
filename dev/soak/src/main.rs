//! The soak: draws configurations and loads at random from seeds, runs them, and checks all documented promises.
//!
//! The modules, from the top layer to the bottom; each uses only those in rows below its row:
//!
//! | module | contents |
//! |---|---|
//! | `cli`, `runner` | the command line; scheduling of cases, each in a separate process |
//! | `engine`, `disk`, `image`, `memory` | the suites: stores in this process; disks of servers; images; regions of memory |
//! | `backing`, `recompression` | drawn backings of stores in this process; drawn codecs |
//! | `load` | reads and writes that check what they read |
//! | `target` | connections that a load writes to: to a store, a region, a device, NBD |
//! | `watchdog` | detection of requests that hang |
//! | `leftovers` | mounts, loop devices and processes that a case leaves behind |
//! | `process` | programs with time limits, and reading about processes |
//! | `case` | the interface between a suite and the runner |
//! | `model` | when a refusal is justified |
//! | `random`, `verdict` | draws that are the same for a seed; summary or fault of a case |
//!
//! Path of a case: `main` -> `runner` -> this program again with `--here`, in a child process -> `runner::run_here` -> the
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
mod target;
mod verdict;
mod watchdog;

use anyhow::{Context as _, bail};
use case::{Context, Suite};
use clap::Parser;
use cli::Cli;
use pagefold_sys::signal::Termination;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// All suites, in the order in which `runner` prefers them while none has used its share.
static SUITES: [Suite; 4] = [engine::SUITE, disk::SUITE, image::SUITE, memory::SUITE];

fn main() -> ExitCode {
    match soak(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("pagefold-soak: error: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Does what the command line says. Returns whether there was no fault.
fn soak(cli: Cli) -> anyhow::Result<bool> {
    let is_meant = |suite: &&Suite| cli.suite.as_ref().is_none_or(|name| name == suite.name);
    let mut suites: Vec<&'static Suite> = SUITES.iter().filter(is_meant).collect();
    if suites.is_empty() {
        bail!(
            "there is no suite {:?}; there are: {}",
            cli.suite,
            SUITES.each_ref().map(|s| s.name).join(", ")
        );
    }
    if let (Some(seed), true) = (cli.case, cli.describe) {
        println!("{:?}", (suites[0].draw)(seed));
        return Ok(true);
    }
    if let (Some(seed), Some(dir)) = (cli.case, cli.here) {
        let context = Context { dir, program: cli.program.unwrap_or_default() };
        runner::run_here(suites[0], seed, &context).context("writing the verdict")?;
        return Ok(true);
    }
    let program = program(cli.program)?;
    suites.retain(|suite| {
        let obstacle = (suite.obstacle)();
        obstacle.iter().for_each(|why| println!("SKIPPED soak {}: {why}", suite.name));
        obstacle.is_none()
    });
    let Some(first) = suites.first() else { bail!("no suite can run here") };
    let context = Context { dir: folder(cli.dir)?, program };
    stop_at_signals()?;
    let is_good = match cli.case {
        Some(seed) => runner::replay(first, seed, cli.repeat, &context),
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let seed = cli.seed.unwrap_or(now);
            println!("seed {seed}, {} minutes, {}", cli.minutes, context.program.display());
            let time = Duration::try_from_secs_f64(cli.minutes * 60.0).context("--minutes")?;
            let max_faults = cli.max_faults;
            runner::run(&runner::Plan { seed, time, max_faults, suites: &suites, context: &context })
        }
    };
    // This fails if the folder holds the files of a failed case.
    let _ = std::fs::remove_dir(&context.dir);
    Ok(is_good)
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
fn folder(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let default = || PathBuf::from(format!("/var/tmp/pagefold-soak-{}", std::process::id()));
    let dir = given.unwrap_or_else(default);
    let make = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    make.with_context(|| format!("making {}", dir.display()))?;
    let is_empty = std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))?.next().is_none();
    anyhow::ensure!(is_empty, "{} is not empty", dir.display());
    dir.canonicalize().with_context(|| format!("{}", dir.display()))
}
