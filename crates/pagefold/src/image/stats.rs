//! `image stats`.

use super::{find, watch};
use crate::cli::numbers::percent;
use crate::cli::{chart, output, values};
use clap::{Args, ValueHint};
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::mounts;
use pagefold_control::report::LatencyReport;
use pagefold_control::report::mount::{CacheReport, MountReport, RecordState, RemoteReport};
use pagefold_control::text;
use pagefold_image::mount::MOUNT_NAME;
use pagefold_page::size::Human;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time between two samples, seconds.
const MAX_INTERVAL_S: u64 = 3600;

/// The arguments of `image stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Directory that the image is mounted on, or the image
    #[arg(value_name = "MOUNT", value_hint = ValueHint::AnyPath)]
    pub mount: PathBuf,
    /// Show the figures again and again, with what changed in between: drawn in one place on a terminal, a line each
    /// otherwise. Ends with the mount
    #[arg(long)]
    pub watch: bool,
    /// Time between two samples of --watch
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch")]
    pub interval: String,
    /// Print JSON with exact numbers; with --watch a line for each sample
    #[arg(long)]
    pub json: bool,
}

/// Prints the report of the server of a mounted image.
pub fn run(args: &StatsArgs) -> Result<()> {
    let point = find::mount_point(&args.mount)?;
    let found = mounts::find(|state| state.mount_point == point)?;
    let Some((dir, _)) = found.first() else { return Err(no_server(&point)?) };
    if args.watch {
        let interval_s = values::seconds("--interval", &args.interval)?;
        if !(1..=MAX_INTERVAL_S).contains(&interval_s) {
            return Err(CliError::usage("--interval is between a second and an hour"));
        }
        return watch::run(dir, Duration::from_secs(interval_s), args.json);
    }
    let report = Client::connect(dir)?.show_mount()?;
    match args.json {
        true => output::json(&report),
        false => output::text(&text(&report)),
    }
}

/// The error for a directory that no living server of this user has mounted.
fn no_server(point: &Path) -> Result<CliError> {
    let shown = point.display();
    let what = match pagefold_sys::mounts::at(point)? {
        Some(mount) if mount.fs_type == "erofs" => {
            format!("the kernel mounted '{shown}', and has no statistics of it")
        }
        Some(mount) if mount.fs_type == format!("fuse.{MOUNT_NAME}") => {
            format!("the server of '{shown}' has died, or another user runs it")
        }
        _ => return Ok(find::not_found(point)),
    };
    Ok(CliError::new(Exit::NotFound, what))
}

fn text(report: &MountReport) -> String {
    let (budget, reads) = (&report.budget, &report.reads);
    let lines = [
        ("image", report.image.display().to_string()),
        ("mounted on", report.mount_point.display().to_string()),
        (
            "server",
            format!(
                "process {}, {} threads, requests through {}",
                report.server.pid, report.threads, report.transport
            ),
        ),
        (
            "memory",
            format!(
                "{} of {} in use, {} of it cache; at most {}",
                Human(budget.in_use_bytes),
                Human(budget.limit_bytes),
                Human(budget.cached_bytes),
                Human(budget.peak_bytes)
            ),
        ),
        ("requests", report.requests.to_string()),
        ("waited for memory", format!("{} reads", budget.waits)),
        ("reads", format!("{}, {} failed", reads.reads, reads.errors)),
        ("requested", Human(reads.asked_bytes).to_string()),
        ("hits", percent(reads.hit_bytes, reads.asked_bytes)),
        (
            "read from media",
            format!(
                "{} ({} compressed, {} plain, {} metadata)",
                Human(reads.media_bytes),
                Human(reads.compressed_bytes),
                Human(reads.plain_bytes),
                Human(reads.metadata_bytes)
            ),
        ),
        ("read amplification", report.read_amplification.map_or("-".into(), |a| format!("{a:.2}"))),
        (
            "clusters decoded",
            format!("{}; {} reads waited for another that decoded the same", reads.clusters, reads.joined),
        ),
        ("decoded in place", percent(reads.in_place, reads.clusters)),
        ("via second buffer", percent(reads.bounced, reads.clusters)),
        ("through a window", percent(reads.windowed, reads.clusters)),
        ("unrequested pages", per(reads.temporary_pages, reads.clusters)),
        ("read ahead", format!("{} clusters, {} dropped", reads.readahead_issued, reads.readahead_dropped)),
    ];
    let remote = report.remote.as_ref().map(remote_lines).unwrap_or_default();
    let lines = lines.into_iter().chain(rings_lines(report)).chain(remote).chain(startup_lines(report));
    let mut text: String = lines.map(|(name, value)| format!("{name:<20}{value}\n")).collect();
    text.push_str(&latency(&report.latency));
    text
}

/// The buffers of rings, or the reason that there are none although they were wanted.
fn rings_lines(report: &MountReport) -> Vec<(&'static str, String)> {
    let rings = report.rings.as_ref().map(|rings| {
        let (buffers, request) = (Human(rings.buffer_bytes), Human(rings.max_request_bytes));
        ("rings", format!("{buffers} of buffers, part of --memory, for requests of at most {request}"))
    });
    let warning = report.without_rings.clone().map(|warning| ("warning", warning));
    rings.into_iter().chain(warning).collect()
}

/// The time of the first read, and the start-up lists.
fn startup_lines(report: &MountReport) -> Vec<(&'static str, String)> {
    let mut lines = vec![("first read after", report.first_read_ns.map_or("-".into(), text::time))];
    if let Some(record) = &report.record {
        let list = record.list.display();
        let state = match (record.state, &record.error) {
            (RecordState::Recording, _) => format!("{list}, under way"),
            (RecordState::Failed, Some(error)) => error.clone(),
            (RecordState::Written | RecordState::Failed, _) => {
                let lost = match record.lost {
                    0 => String::new(),
                    n => format!("; {} left out", text::counted(n, "read was", "reads were")),
                };
                format!("{list}, {} written{lost}", text::counted(record.entries, "entry", "entries"))
            }
        };
        lines.push(("recording", state));
    }
    if let Some(prefetch) = &report.prefetch {
        let state = if prefetch.has_ended { "done" } else { "under way" };
        let (done, planned) = (Human(prefetch.done_bytes), Human(prefetch.planned_bytes));
        let left_out = match prefetch.left_out_bytes {
            0 => String::new(),
            bytes => format!(", {} left out", Human(bytes)),
        };
        let (entries, all, skipped) = (prefetch.entries, prefetch.list_entries, prefetch.skipped);
        let what = format!(
            "{state}: {entries} of {all} entries, {skipped} of them not in the image; {done} of {planned}{left_out}"
        );
        lines.push(("prefetch", what));
    }
    lines
}

/// The figures of the requests to servers.
fn remote_lines(remote: &RemoteReport) -> Vec<(&'static str, String)> {
    let received = Human(remote.received_bytes);
    let requests = format!("{}, {} of them repeated, {received} received", remote.requests, remote.retries);
    let time = |ns: Option<u64>| ns.map_or("-".into(), text::time);
    let mean_ns = remote.request_ns.checked_div(remote.latency.buckets.iter().map(|b| b.requests).sum());
    let latency = format!("mean {}, p99 <= {}", time(mean_ns), time(remote.latency.p99_ns));
    let mut lines = vec![
        ("requests to servers", requests),
        ("latency of these", latency),
        ("memory for these", format!("{} at most", Human(remote.cache_bytes))),
    ];
    if let Some(error) = &remote.last_error {
        lines.push(("failed at servers", format!("{} reads; the last: {error}", remote.failed_reads)));
    }
    lines.extend(remote.cache.iter().flat_map(cache_lines));
    lines
}

/// The figures of the cache on disk.
fn cache_lines(cache: &CacheReport) -> Vec<(&'static str, String)> {
    let (hits, written) = (Human(cache.hit_bytes), Human(cache.written_bytes));
    let (used, size) = (Human(cache.used_bytes), Human(cache.size_bytes));
    let mut lines = vec![("cache on disk", format!("{hits} read, {written} stored; {used} of {size} used"))];
    if let Some(error) = &cache.error {
        lines.push(("cache fails", error.clone()));
    }
    lines
}

fn per(count: u64, clusters: u64) -> String {
    match clusters {
        0 => "-".into(),
        _ => format!("{:.2} per cluster", count as f64 / clusters as f64),
    }
}

/// Formats the percentiles and the histogram.
fn latency(latency: &LatencyReport) -> String {
    let time = |ns: Option<u64>| ns.map_or("-".into(), text::time);
    let [p50, p90, p99, p999] = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns].map(time);
    let heading = format!("Latency of reads: p50 <= {p50}, p90 <= {p90}, p99 <= {p99}, p99.9 <= {p999}");
    format!("\n{heading}\n{}", chart::histogram(&latency.buckets, "  "))
}
