//! What the server of a mounted image says of itself: `image show --live`.

use super::mount::mount_point;
use crate::cli::{chart, output};
use crate::failure::{Exit, Failure, Outcome};
use crate::service::client::Client;
use crate::service::images::{self, LatencyReport, MountReport};
use pagefold_page::size::Human;
use std::path::Path;

/// Shows the mounts of an image, or the one on a directory.
pub fn run(target: &Path, json: bool) -> Outcome<()> {
    let path = mount_point(target)?;
    let found = images::find(|state| state.mount_point == path || state.image == path)?;
    if found.is_empty() {
        let what = format!("'{}' is neither a mounted image nor where one is mounted", path.display());
        return Err(Failure::new(Exit::NotFound, what));
    }
    let ask = |(dir, _): &(_, _)| Client::connect(dir).and_then(|mut client| client.show_mount());
    let reports = found.iter().map(ask).collect::<Outcome<Vec<_>>>()?;
    match json {
        true => reports.iter().try_for_each(output::json),
        false => output::text(&reports.iter().map(text).collect::<Vec<_>>().join("\n")),
    }
}

fn text(report: &MountReport) -> String {
    let (budget, reads) = (&report.budget, &report.reads);
    let lines = [
        ("image", report.image.display().to_string()),
        ("mounted on", report.mount_point.display().to_string()),
        ("server", format!("process {}, {} threads", report.pid, report.threads)),
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
        ("asked", Human(reads.asked_bytes).to_string()),
        ("hits", share(reads.hit_bytes, reads.asked_bytes)),
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
        ("clusters decoded", format!("{}, and {} waited for another's", reads.clusters, reads.joined)),
        ("decoded in place", share(reads.in_place, reads.clusters)),
        ("in a second buffer", share(reads.bounced, reads.clusters)),
        ("through a window", share(reads.windowed, reads.clusters)),
        ("unasked pages", per(reads.temporary_pages, reads.clusters)),
        ("read ahead", format!("{} clusters, {} dropped", reads.readahead_issued, reads.readahead_dropped)),
    ];
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<20}{value}\n")).collect();
    text.push_str(&latency(&report.latency));
    text
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

fn per(count: u64, clusters: u64) -> String {
    match clusters {
        0 => "-".into(),
        _ => format!("{:.2} per cluster", count as f64 / clusters as f64),
    }
}

/// Percentiles, and a bar for each power of two.
fn latency(latency: &LatencyReport) -> String {
    let time = |ns: Option<u64>| ns.map_or("-".into(), chart::time);
    let [p50, p90, p99, p999] = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns].map(time);
    let heading = format!("Latency of reads: p50 <= {p50}, p90 <= {p90}, p99 <= {p99}, p99.9 <= {p999}");
    format!("\n{heading}\n{}", chart::histogram(&latency.buckets, "  "))
}
