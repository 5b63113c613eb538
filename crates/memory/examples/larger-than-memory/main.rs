//! A job over data that is larger than the memory it may use, with live statistics.
//!
//!     cargo run --release -p pagefold-memory --example larger-than-memory
//!     cargo run --release -p pagefold-memory --example larger-than-memory -- --size 4G --limit 512M
//!
//! The job makes, sorts and groups a table of sales in a [`Region`] of compressed memory: one range of memory, of
//! which no more than the limit is resident; pagefold compresses the rest. The code of the job ([`job`])
//! takes a plain slice and uses the standard library's sort. A second thread prints statistics meanwhile ([`live`]).

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
    /// Limit of its resident part; the rest is compressed
    #[arg(long, default_value = "256M", value_parser = size::parse)]
    limit: u64,
    /// Threads that load compressed pages
    #[arg(long, value_enum, default_value = "faulting-thread")]
    service: ServiceChoice,
}

#[derive(Clone, Copy, ValueEnum)]
enum ServiceChoice {
    /// The thread that accesses a page: fastest, needs no privilege
    FaultingThread,
    /// Separate threads: system calls may access pages, too; needs root or a kernel setting
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
        ServiceChoice::FaultingThread => Service::FaultingThread,
        ServiceChoice::HandlerThreads => Service::HandlerThreads,
    };
    let region = Region::new(RegionConfig { service, ..RegionConfig::new(args.size, args.limit) })?;
    println!("a table of {}, of which {} may be resident\n", Human(args.size), Human(args.limit));

    // SAFETY: the region is mapped as long as `region` lives, which is longer than `memory`, and is initially
    // zero. This is the only reference to its bytes: the other thread reads only counters.
    let memory = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len_bytes()) };
    let progress = Progress::new();
    let mut phases: Vec<(job::Phase, Instant)> = Vec::new();
    let result = std::thread::scope(|scope| {
        let show = scope.spawn(|| Show::new(&region, &progress).run());
        let result = job::run(memory, job::SEED, &mut |phase, done| {
            if phases.last().is_none_or(|(last, _)| *last != phase) {
                phases.push((phase, Instant::now()));
            }
            progress.set(phase, done);
        });
        progress.end();
        // If the thread panicked, the panic has been printed.
        let _ = show.join();
        result
    })?;
    print_phases(&phases, Instant::now(), &result);
    print_memory(&region);
    Ok(())
}

fn print_phases(phases: &[(job::Phase, Instant)], end: Instant, result: &job::JobResult) {
    let ends = phases.iter().skip(1).map(|(_, began)| *began).chain([end]);
    let times = phases.iter().zip(ends).map(|((phase, began), end)| (phase.name(), end - *began));
    let times: Vec<(&str, Duration)> = times.collect();
    let all: Duration = times.iter().map(|(_, took)| *took).sum();
    println!("\n{} records, {} customers, checksum {:016x}", result.records, result.groups, result.checksum);
    for (name, took) in times {
        println!("{name:<22}{:.1} s", took.as_secs_f64());
    }
    println!("{:<22}{:.1} s", "in all", all.as_secs_f64());
}

/// Prints the statistics of the region.
fn print_memory(region: &Region) {
    let stats = region.stats();
    let faults = &stats.faults;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let lines = [
        (
            "resident at most",
            format!("{} of a limit of {}", Human(stats.memory.resident_max), Human(stats.memory.limit)),
        ),
        (
            "compressed at the end",
            format!(
                "{}; memory for compressed pages: {}; ratio {:.2}",
                Human(stats.folded_bytes),
                Human(stats.memory.pool),
                stats.ratio()
            ),
        ),
        (
            "faults",
            format!(
                "{} of new pages, {} of compressed ones, {} of pages on their way out",
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
