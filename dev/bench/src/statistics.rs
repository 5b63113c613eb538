//! Two threads that store and load, while statistics are read every millisecond, against the same without that.
//!
//! A note says what remains if a thread wakes up every millisecond and reads nothing: on two busy CPUs each wake interrupts
//! one of them, and in a virtual machine a timer costs microseconds.
//!
//! The statistics are read as the server of a disk reads them for `disk show --attribute` and for files of statistics: by
//! the table of attributes. The way from a command to the server is not included.

use super::pages::PageSet;
use super::plan::{self, Plan};
use super::report::{Report, Row};
use super::stats::Rounds;
use super::threads::{THREADS, throughput};
use pagefold_control::config::DiskConfig;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceName;
use pagefold_server::attributes;
use pagefold_server::disk::Disk;
use pagefold_sys::cpu;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between the starts of two reads.
const PERIOD: Duration = Duration::from_millis(1);
/// The attributes that each read shows.
const SHOWN: [&str; 2] = ["mm_stat", "io_stat"];
/// Share of the intended reads below which the report notes that they were fewer.
const READS_MIN: f64 = 0.9;

/// Measures one set and adds the row. With a single CPU, adds a note instead.
pub fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if cpu::count() < THREADS {
        report.note("two threads with statistics read were not measured: this machine has one CPU".into());
        return Ok(());
    }
    let disk = disk(set.bytes().len() as u64)?;
    let store = disk.store().map_err(|e| anyhow::anyhow!("{e}"))?;
    let [mut with_reads, mut waking, mut alone] = std::array::from_fn(|_| Rounds::default());
    let (mut share_of_reads, mut us_of_reads) = (Rounds::default(), Rounds::default());
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let mut order = [Extra::Reads, Extra::Wakes, Extra::Nothing];
        order.rotate_left(round % 3);
        for extra in order {
            let work = || throughput([&store; THREADS], set, plan.statistics_repeats);
            let pages_per_s = match extra {
                Extra::Nothing => work()?,
                _ => {
                    let (pages_per_s, reads) = while_read(&disk, extra, work)?;
                    if extra == Extra::Reads {
                        share_of_reads.push(reads.share);
                        us_of_reads.push(reads.cpu_us);
                    }
                    pages_per_s
                }
            };
            if round >= plan.warm_up_rounds {
                match extra {
                    Extra::Reads => &mut with_reads,
                    Extra::Wakes => &mut waking,
                    Extra::Nothing => &mut alone,
                }
                .push(pages_per_s);
            }
        }
    }
    if share_of_reads.median() < READS_MIN {
        let percent = 100.0 * share_of_reads.median();
        report.note(format!("statistics were read at {percent:.0} % of the intended rate"));
    }
    let us = us_of_reads.median();
    report.note(format!(
        "set '{}': {us:.1} us of CPU time for each read of statistics, waking included; a thread that only wakes each ms \
         leaves {:.3} of the throughput, and with reads there is {:.3} of that",
        set.name,
        waking.over(&alone).median(),
        with_reads.over(&waking).median(),
    ));
    let row = Row::new("two threads, statistics read each ms", set, "pages/s", "no reads", plan::STATISTICS);
    let ratio = Some(with_reads.over(&alone).median());
    report.rows.push(Row { ours: with_reads.median(), peer: Some(alone.median()), ratio, ..row });
    Ok(())
}

/// A disk with lz4 and without a limit, an export or a server.
fn disk(size_bytes: u64) -> anyhow::Result<Disk> {
    let config = DiskConfig::new(size_bytes, super::engine::CODEC, ExportKind::Nbd);
    let name = InstanceName::parse("bench").map_err(|e| anyhow::anyhow!("{e}"))?;
    Disk::new(name, &config, None).map_err(|e| anyhow::anyhow!("{e}"))
}

/// The extra work of every millisecond during a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    Reads,
    Wakes,
    Nothing,
}

/// The reads of statistics during a measurement.
struct Reads {
    /// Their number / the intended number.
    share: f64,
    /// CPU time of the reading thread for each, microseconds.
    cpu_us: f64,
}

/// Does `work` while another thread reads the statistics. Returns the result of `work`, and the reads.
fn while_read(
    disk: &Disk,
    extra: Extra,
    work: impl FnOnce() -> anyhow::Result<f64>,
) -> anyhow::Result<(f64, Reads)> {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || read_until(disk, extra, stop));
        let started = Instant::now();
        let worked = work();
        let intended = started.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
        stop.store(true, Relaxed);
        let joined = reader.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a measuring thread panicked")));
        let (reads, cpu) = joined?;
        let cpu_us = cpu.as_secs_f64() * 1e6 / reads as f64;
        Ok((worked?, Reads { share: reads as f64 / intended, cpu_us }))
    })
}

/// Reads the statistics every [`PERIOD`], and returns how often, and the CPU time. A read that is late is left out.
fn read_until(disk: &Disk, extra: Extra, stop: &AtomicBool) -> anyhow::Result<(u64, Duration)> {
    let (started, cpu, mut reads) = (Instant::now(), cpu::thread_time(), 0);
    while !stop.load(Relaxed) {
        for name in SHOWN.iter().filter(|_| extra == Extra::Reads) {
            let shown = attributes::find(name).and_then(|attribute| attribute.show(disk));
            std::hint::black_box(shown.map_err(|e| anyhow::anyhow!("{e}"))?);
        }
        reads += 1;
        let since = started.elapsed();
        let next = PERIOD * (since.as_millis() as u32 + 1);
        std::thread::sleep(next.saturating_sub(since));
    }
    Ok((reads, cpu::thread_time() - cpu))
}
