//! A job over data that is larger than the memory it may use, with live statistics.
//!
//!     cargo run --release --example larger-than-memory
//!     cargo run --release --example larger-than-memory -- --size 4G --limit 512M
//!
//! A table of sales is made, sorted and grouped in a [`Region`] of compressed memory: one range of memory, of
//! which no more than the limit is resident; the rest is folded, that is compressed. The job ([`job`]) does
//! not know: it gets a slice and works on it with the standard library's sort. What memory does meanwhile is
//! printed ([`live`]).

mod job;
mod live;

use clap::{Parser, ValueEnum};
use live::{Progress, Show};
use pagefold_memory::{Region, RegionConfig, Service};
use pagefold_page::size::{self, Human};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Sort and group a table that is larger than the memory it may use.
#[derive(Parser)]
struct Args {
    /// Size of the table
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// How much of it may be resident; the rest is folded
    #[arg(long, default_value = "256M", value_parser = size::parse)]
    limit: u64,
    /// Who brings folded pages back
    #[arg(long, value_enum, default_value = "faulting-thread")]
    service: Who,
}

#[derive(Clone, Copy, ValueEnum)]
enum Who {
    /// The thread that touches them: fastest, needs no privilege
    FaultingThread,
    /// Threads beside it: system calls may touch them, too; needs root or a kernel setting
    HandlerThreads,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("larger-than-memory: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let service = match args.service {
        Who::FaultingThread => Service::FaultingThread,
        Who::HandlerThreads => Service::HandlerThreads,
    };
    let region = Region::new(RegionConfig { service, ..RegionConfig::new(args.size, args.limit) })?;
    println!("a table of {}, of which {} may be resident\n", Human(args.size), Human(args.limit));

    // SAFETY: the region is mapped for as long as `region` lives, which is longer than `memory`, and begins
    // as zeroes. This is the only reference to its bytes: beside it only counters are read.
    let memory = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len_bytes()) };
    let progress = Progress::new();
    let mut phases: Vec<(job::Phase, Instant)> = Vec::new();
    let outcome = std::thread::scope(|scope| {
        let show = scope.spawn(|| Show::new(&region, &progress).run());
        let outcome = job::run(memory, job::SEED, &mut |phase, done| {
            if phases.last().is_none_or(|(last, _)| *last != phase) {
                phases.push((phase, Instant::now()));
            }
            progress.set(phase, done);
        });
        progress.end();
        // Its panic, if it had one, has been printed.
        let _ = show.join();
        outcome
    })?;
    phases_and_result(&phases, Instant::now(), &outcome);
    summary(&region);
    Ok(())
}

fn phases_and_result(phases: &[(job::Phase, Instant)], end: Instant, outcome: &job::Outcome) {
    let ends = phases.iter().skip(1).map(|(_, began)| *began).chain([end]);
    let times = phases.iter().zip(ends).map(|((phase, began), end)| (phase.name(), end - *began));
    let times: Vec<(&str, Duration)> = times.collect();
    let all: Duration = times.iter().map(|(_, took)| *took).sum();
    println!(
        "\n{} records, {} customers, checksum {:016x}",
        outcome.records, outcome.groups, outcome.checksum
    );
    for (name, took) in times {
        println!("{name:<22}{:.1} s", took.as_secs_f64());
    }
    println!("{:<22}{:.1} s", "in all", all.as_secs_f64());
}

/// What memory did.
fn summary(region: &Region) {
    let stats = region.stats();
    let faults = &stats.faults;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let lines = [
        (
            "resident at most",
            format!("{} of a limit of {}", Human(stats.memory.resident_max), Human(stats.memory.limit)),
        ),
        (
            "folded at the end",
            format!(
                "{}; memory for folded pages: {}; ratio {:.2}",
                Human(stats.folded_bytes),
                Human(stats.memory.pool),
                stats.ratio()
            ),
        ),
        (
            "faults",
            format!(
                "{} of new pages, {} of folded ones, {} of pages on their way out",
                faults.zero, faults.folded, faults.staged
            ),
        ),
        (
            "neighbours",
            format!(
                "{} brought in with them, {} known to have been used ({:.0} %)",
                stats.neighbours_brought,
                stats.neighbours_used,
                share(stats.neighbours_used, stats.neighbours_brought)
            ),
        ),
        (
            "time lost in faults",
            format!(
                "{:.1} s, of which {:.1} s waiting for memory",
                faults.time.as_secs_f64(),
                faults.wait_time.as_secs_f64()
            ),
        ),
    ];
    for (name, text) in lines {
        println!("{name:<22}{text}");
    }
}
