//! `image stats --watch`: the figures of a mount, again and again, with what changed in between.
//!
//! On a terminal the figures are drawn in one place. Otherwise each sample is a line, of text or, with `--json`, of JSON.
//! It ends with the mount, when its reader has gone, or by Ctrl-C.

use crate::cli::{numbers, output};
use pagefold_control::client::Client;
use pagefold_control::error::{Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::report::Bucket;
use pagefold_control::report::mount::{MountChange, MountReport, MountStats, RemoteReport};
use pagefold_page::size::Human;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A report, and the time at which it came.
struct Sample {
    at: Instant,
    report: MountReport,
}

/// Shows samples until the mount ends.
pub fn run(dir: &InstanceDir, interval: Duration, json: bool) -> Result<()> {
    let is_terminal = std::io::stdout().is_terminal() && !json;
    let mut before: Option<Sample> = None;
    let mut drawn_lines = 0;
    loop {
        let report = match Client::connect(dir).and_then(|mut client| client.show_mount()) {
            Ok(report) => report,
            // The mount has ended.
            Err(e) if before.is_some() && e.exit == Exit::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        let now = Sample { at: Instant::now(), report };
        let change = change(before.as_ref(), &now);
        let shown = match (json, is_terminal) {
            (true, _) => output::json_line(&MountStats { report: now.report.clone(), change: Some(change) })?,
            (false, true) => {
                let lines = lines(&now.report, &change);
                let text: String = lines.iter().map(|(name, value)| format!("{name:<16}{value}\n")).collect();
                let back = if drawn_lines > 0 { format!("\x1b[{drawn_lines}F\x1b[J") } else { String::new() };
                drawn_lines = lines.len();
                output::piece(format!("{back}{text}").as_bytes())?
            }
            (false, false) => {
                let fields = lines(&now.report, &change).into_iter().skip(1);
                let fields: Vec<_> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
                output::piece(format!("{}\n", fields.join("; ")).as_bytes())?
            }
        };
        if shown.is_break() {
            return Ok(());
        }
        before = Some(now);
        std::thread::sleep(interval);
    }
}

/// The difference of two samples; of the first sample, the figures since the mount began.
fn change(before: Option<&Sample>, now: &Sample) -> MountChange {
    let old = before.map(|sample| &sample.report);
    let grown = |figure: fn(&MountReport) -> u64| figure(&now.report).saturating_sub(old.map_or(0, figure));
    let remote = |figure: fn(&RemoteReport) -> u64| {
        let of = |report: &MountReport| report.remote.as_ref().map_or(0, figure);
        of(&now.report).saturating_sub(old.map_or(0, of))
    };
    let buckets = |report: &MountReport| {
        report.remote.as_ref().map(|remote| remote.latency.buckets.clone()).unwrap_or_default()
    };
    let ended = grown_buckets(&old.map(buckets).unwrap_or_default(), &buckets(&now.report));
    let count: u64 = ended.iter().map(|bucket| bucket.requests).sum();
    MountChange {
        interval_ms: before.map(|sample| now.at.duration_since(sample.at).as_millis() as u64),
        reads: grown(|report| report.reads.reads),
        asked_bytes: grown(|report| report.reads.asked_bytes),
        requests: remote(|remote| remote.requests),
        retries: remote(|remote| remote.retries),
        received_bytes: remote(|remote| remote.received_bytes),
        request_mean_ns: remote(|remote| remote.request_ns).checked_div(count),
        request_p99_ns: p99_ns(&ended, count),
    }
}

/// A number for each second, if there is an interval.
fn rate(change: &MountChange, n: u64) -> Option<f64> {
    change.interval_ms.filter(|ms| *ms > 0).map(|ms| n as f64 * 1000.0 / ms as f64)
}

fn count(change: &MountChange, total: u64, n: u64) -> String {
    let rate = rate(change, n).map(|rate| format!(" ({rate:.1}/s)")).unwrap_or_default();
    format!("{}{rate}", numbers::count(total))
}

fn bytes(change: &MountChange, total: u64, n: u64) -> String {
    let rate = rate(change, n).map(|rate| format!(" ({}/s)", Human(rate as u64))).unwrap_or_default();
    format!("{}{rate}", Human(total))
}

/// The requests of `now` that `before` does not have, by their times.
fn grown_buckets(before: &[Bucket], now: &[Bucket]) -> Vec<Bucket> {
    let old = |below_ns| before.iter().find(|bucket| bucket.below_ns == below_ns).map_or(0, |b| b.requests);
    let grown = now.iter().map(|bucket| Bucket {
        below_ns: bucket.below_ns,
        requests: bucket.requests.saturating_sub(old(bucket.below_ns)),
    });
    grown.filter(|bucket| bucket.requests > 0).collect()
}

/// The bound that 99 % of the requests do not exceed.
fn p99_ns(buckets: &[Bucket], count: u64) -> Option<u64> {
    let wanted = (count * 99).div_ceil(100);
    let mut seen = 0;
    let mut found = buckets.iter().skip_while(|bucket| {
        seen += bucket.requests;
        seen < wanted
    });
    found.next().map(|bucket| bucket.below_ns - 1)
}

/// The figures, with their names. The first is the image.
fn lines(report: &MountReport, change: &MountChange) -> Vec<(&'static str, String)> {
    let (reads, budget) = (&report.reads, &report.budget);
    let mut lines = vec![
        ("image", report.image.display().to_string()),
        ("first read after", numbers::time(report.first_read_ns)),
        ("reads", count(change, reads.reads, change.reads)),
        ("read", bytes(change, reads.asked_bytes, change.asked_bytes)),
        ("memory", format!("{} of {}", Human(budget.in_use_bytes), Human(budget.limit_bytes))),
    ];
    if let Some(remote) = &report.remote {
        let hits = numbers::percent(remote.hit_bytes.min(reads.media_bytes), reads.media_bytes);
        let mean_p99 = [change.request_mean_ns, change.request_p99_ns].map(numbers::time);
        lines.extend([
            ("requests", count(change, remote.requests, change.requests)),
            ("retries", count(change, remote.retries, change.retries)),
            ("received", bytes(change, remote.received_bytes, change.received_bytes)),
            ("latency", format!("mean {}, p99 <= {}", mean_p99[0], mean_p99[1])),
            ("cache hits", hits),
        ]);
        lines.extend(remote.last_error.clone().map(|error| ("last error", error)));
    }
    lines.extend(report.prefetch.as_ref().map(|prefetch| {
        let state = if prefetch.has_ended { ", done" } else { "" };
        ("prefetch", format!("{} of {}{state}", Human(prefetch.done_bytes), Human(prefetch.planned_bytes)))
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_of_an_interval_is_that_of_its_requests_alone() {
        let bucket = |below_ns, requests| Bucket { below_ns, requests };
        let before = [bucket(1024, 5), bucket(4096, 1000)];
        let now = [bucket(1024, 104), bucket(2048, 1), bucket(4096, 1000)];
        let grown = grown_buckets(&before, &now);
        assert_eq!(grown, [bucket(1024, 99), bucket(2048, 1)]);
        assert_eq!(
            (p99_ns(&grown, 100), p99_ns(&grown, 101), p99_ns(&[], 0)),
            (Some(1023), Some(2047), None)
        );
        let change = MountChange { interval_ms: Some(500), ..MountChange::default() };
        assert_eq!(
            (count(&change, 1234, 3), bytes(&change, 2 << 20, 1 << 19)),
            (format!("{} (6.0/s)", numbers::count(1234)), "2 MiB (1 MiB/s)".into())
        );
        assert_eq!(count(&MountChange::default(), 7, 3), "7");
    }
}
