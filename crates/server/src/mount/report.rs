//! Fills in the report on a mounted image, for `image stats`.

use super::lists::{Prefetch, Recording};
use crate::fetcher::Fetcher;
use pagefold_control::config::MountConfig;
use pagefold_control::instance::InstanceDir;
use pagefold_control::report::disk::RingsReport;
use pagefold_control::report::keeper::KeeperReport;
use pagefold_control::report::mount::{BudgetReport, MountReport, ReadsReport};
use pagefold_control::report::{ConfinementReport, LatencyReport, ServerReport};
use pagefold_image::{Image, ImageStats, ReadStats};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A mounted image, for the reports on it.
pub struct MountSession {
    /// Its configuration.
    pub config: MountConfig,
    /// Its folder.
    pub dir: InstanceDir,
    /// The image.
    pub image: Image,
    /// Threads that serve requests.
    pub threads: usize,
    /// How requests reach them.
    pub transport: &'static str,
    /// The warning that rings do not serve although they were wanted.
    pub without_rings: Option<String>,
    /// The buffers of rings, if they serve.
    pub rings: Option<RingsReport>,
    /// Why the mount does not outlive this server; `None` if it does.
    pub not_kept: Option<String>,
    /// How this server is confined.
    pub confinement: ConfinementReport,
    /// The longest read request, bytes.
    pub max_read_bytes: usize,
    /// Requests that the kernel has sent so far.
    pub requests: Arc<AtomicU64>,
    /// Requests that panicked and failed.
    pub panics: Arc<AtomicU64>,
    /// The process that reads what is on servers.
    pub fetcher: Option<Arc<Fetcher>>,
    /// The start of the server.
    pub begun: Instant,
    /// The first read that was answered.
    pub first_read: Arc<OnceLock<Instant>>,
    /// The list that is written.
    pub recording: Option<Arc<Recording>>,
    /// The list that is fetched.
    pub prefetch: Option<Prefetch>,
}

/// The present report on a mounted image.
pub fn report(session: &MountSession) -> MountReport {
    let MountSession { config, image, .. } = session;
    let ImageStats { reads, budget, cached_bytes, read_bytes, latency } = image.stats();
    let amplification = (reads.asked_bytes > 0).then(|| read_bytes as f64 / reads.asked_bytes as f64);
    MountReport {
        image: config.media.image.name(),
        offset_bytes: config.media.offset_bytes,
        mount_point: config.mount_point.clone(),
        server: ServerReport::of_this_process(),
        threads: session.threads,
        transport: session.transport.to_string(),
        without_rings: session.without_rings.clone(),
        rings: session.rings,
        keeper: KeeperReport::new(&session.dir, session.not_kept.as_deref()),
        confinement: session.confinement.clone(),
        max_read_bytes: session.max_read_bytes,
        requests: session.requests.load(Ordering::Relaxed),
        panics: session.panics.load(Ordering::Relaxed),
        budget: copied! {
            BudgetReport from budget: limit_bytes in_use_bytes peak_bytes waits refused; cached_bytes
        },
        reads: reads_report(&reads, read_bytes),
        read_amplification: amplification,
        latency: LatencyReport::new(&latency),
        remote: session.fetcher.as_ref().and_then(|fetcher| fetcher.report()),
        first_read_ns: session.first_read.get().map(|at| {
            u64::try_from(at.saturating_duration_since(session.begun).as_nanos()).unwrap_or(u64::MAX)
        }),
        record: session.recording.as_ref().map(|recording| recording.report()),
        prefetch: session.prefetch.as_ref().map(Prefetch::report),
    }
}

fn reads_report(reads: &ReadStats, media_bytes: u64) -> ReadsReport {
    copied! {
        ReadsReport from reads:
        reads errors asked_bytes hit_bytes compressed_bytes plain_bytes metadata_bytes clusters in_place bounced
        windowed joined temporary_pages readahead_issued readahead_dropped;
        media_bytes
    }
}
