//! `image stats`.

use super::{find, watch};
use crate::cli::numbers::{self, percent, time};
use crate::cli::{chart, output, values};
use clap::{Args, ValueHint};
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::mounts;
use pagefold_control::report::LatencyReport;
use pagefold_control::report::mount::{MountReport, PrefetchReport, RecordReport, RecordState, RemoteReport};
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
    /// Show the figures again and again, with what changed in between. Drawn in one place on a terminal, a line each
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
    let report = Client::ask(dir, Client::show_mount)?;
    match args.json {
        true => output::json(&report),
        false => output::text(&text(&report)),
    }
}

/// The error for a directory that no living server of this user has mounted.
pub fn no_server(point: &Path) -> Result<CliError> {
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
    let mut text = String::new();
    let mut row = |name: &str, value: &str| text.push_str(&format!("{name:<20}{value}\n"));
    row("image", &report.image.display().to_string());
    if report.offset_bytes > 0 {
        row("begins at", &format!("byte {} of the file", report.offset_bytes));
    }
    row("mounted on", &report.mount_point.display().to_string());
    let (pid, transport) = (report.server.pid, &report.transport);
    row("server", &format!("process {pid}, {} threads, requests through {transport}", report.threads));
    let [used, limit, cached, peak] =
        [budget.in_use_bytes, budget.limit_bytes, budget.cached_bytes, budget.peak_bytes].map(Human);
    row("if it dies", &report.keeper.in_words("the mount fails"));
    row("confined", &report.confinement.in_words());
    row("memory", &format!("{used} of {limit} in use, {cached} of it cache; at most {peak}"));
    row("requests", &report.requests.to_string());
    if report.panics > 0 {
        row(
            "panicked",
            &format!("{}; the log has the places", text::counted(report.panics, "request", "requests")),
        );
    }
    row("waited for memory", &format!("{} reads", budget.waits));
    row("reads", &format!("{}, {} failed", reads.reads, reads.errors));
    row("requested", &Human(reads.asked_bytes).to_string());
    row("hits", &percent(reads.hit_bytes, reads.asked_bytes));
    let [media, compressed, plain, metadata] =
        [reads.media_bytes, reads.compressed_bytes, reads.plain_bytes, reads.metadata_bytes].map(Human);
    row("read from media", &format!("{media} ({compressed} compressed, {plain} plain, {metadata} metadata)"));
    row("read amplification", &report.read_amplification.map_or("-".into(), |a| format!("{a:.2}")));
    let (clusters, joined) = (reads.clusters, reads.joined);
    row("clusters decoded", &format!("{clusters}; {joined} reads waited for another that decoded the same"));
    row("decoded in place", &percent(reads.in_place, clusters));
    row("via second buffer", &percent(reads.bounced, clusters));
    row("decoded in parts", &percent(reads.windowed, clusters));
    row("unrequested pages", &per(reads.temporary_pages, clusters));
    let (issued, dropped) = (reads.readahead_issued, reads.readahead_dropped);
    row("read ahead", &format!("{issued} clusters, {dropped} dropped"));
    report.rings.iter().for_each(|rings| row("rings", &numbers::rings(rings)));
    // The reason that there are no rings although they were wanted.
    report.without_rings.iter().for_each(|warning| row("warning", warning));
    report.remote.iter().for_each(|remote| remote_rows(remote, &mut row));
    row("first read after", &time(report.first_read_ns));
    report.record.iter().for_each(|record| row("recording", &recording(record)));
    report.prefetch.iter().for_each(|prefetch| row("prefetch", &prefetched(prefetch)));
    text.push_str(&latency(&report.latency));
    text
}

fn recording(record: &RecordReport) -> String {
    let list = record.list.display();
    match (record.state, &record.error) {
        (RecordState::Recording, _) => format!("{list}, under way"),
        (RecordState::Failed, Some(error)) => error.clone(),
        (RecordState::Written | RecordState::Failed, _) => {
            let left_out = |n| format!("; {} left out", text::counted(n, "read was", "reads were"));
            let lost = numbers::if_any(record.lost, left_out);
            format!("{list}, {} written{lost}", text::counted(record.entries, "entry", "entries"))
        }
    }
}

fn prefetched(prefetch: &PrefetchReport) -> String {
    let state = if prefetch.has_ended { "done" } else { "under way" };
    let (done, planned) = (Human(prefetch.done_bytes), Human(prefetch.planned_bytes));
    let left_out = numbers::if_any(prefetch.left_out_bytes, |bytes| format!(", {} left out", Human(bytes)));
    let (entries, all, skipped) = (prefetch.entries, prefetch.list_entries, prefetch.skipped);
    format!(
        "{state}: {entries} of {all} entries, {skipped} of them not in the image; {done} of {planned}{left_out}"
    )
}

/// The figures of the requests to servers, and of the cache on disk.
fn remote_rows(remote: &RemoteReport, row: &mut impl FnMut(&str, &str)) {
    let (requests, retries, received) = (remote.requests, remote.retries, Human(remote.received_bytes));
    row("requests to servers", &format!("{requests}, {retries} of them repeated, {received} received"));
    let mean_ns = remote.request_ns.checked_div(remote.latency.buckets.iter().map(|b| b.requests).sum());
    let (mean, p99) = (time(mean_ns), time(remote.latency.p99_ns));
    row("latency of these", &format!("mean {mean}, p99 <= {p99}"));
    row("memory for these", &format!("{} at most", Human(remote.cache_bytes)));
    if let Some(error) = &remote.last_error {
        row("failed at servers", &format!("{} reads; the last: {error}", remote.failed_reads));
    }
    let Some(cache) = &remote.cache else { return };
    let [hits, written, used, size] =
        [cache.hit_bytes, cache.written_bytes, cache.used_bytes, cache.size_bytes].map(Human);
    row("cache on disk", &format!("{hits} read, {written} stored; {used} of {size} used"));
    cache.error.iter().for_each(|error| row("cache fails", error));
}

fn per(count: u64, clusters: u64) -> String {
    match clusters {
        0 => "-".into(),
        _ => format!("{:.2} per cluster", count as f64 / clusters as f64),
    }
}

/// Formats the percentiles and the histogram.
fn latency(latency: &LatencyReport) -> String {
    let [p50, p90, p99, p999] = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns].map(time);
    let heading = format!("Latency of reads: p50 <= {p50}, p90 <= {p90}, p99 <= {p99}, p99.9 <= {p999}");
    format!("\n{heading}\n{}", chart::histogram(&latency.buckets, "  "))
}
