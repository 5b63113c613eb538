//! Recompression of a store during its load and after it: the drawn codecs, passes and rules, and their checks.
//!
//! During the load, threads run passes of all kinds beside its requests and the disturbances (`disturb`), and the
//! store's thread applies rules with short ages. After the load passes run alone, and must leave no page to try again.

use crate::model::FRAME;
use crate::random::{Random, derive};
use crate::recompression::{self, BEYOND_LIMIT_BYTES, Codec, FURTHER_MAX};
use crate::verdict::{Fault, OrFault, require};
use pagefold_store::recompress::{RecompressError, RecompressReport, RecompressRequest};
use pagefold_store::{AutoRecompress, CodecSpec, RecompressRule, RecompressStats, RecompressThread, Store};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Most workers of one pass.
const WORKERS_MAX: u64 = 4;
/// Time after which a pass without a load ends early: a slow codec would take seconds for a large store.
const QUIET_MAX: Duration = Duration::from_millis(400);

/// The drawn recompression of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recompression {
    /// The codecs of priority 1, 2 and 3.
    pub codecs: [Option<Codec>; FURTHER_MAX],
    /// Whether the store keeps access times.
    pub access_times: bool,
    /// Threads that run passes on request during the load.
    pub requesters: u64,
    /// Rules of automatic recompression, if its thread runs.
    pub rules: Option<Vec<RecompressRule>>,
    /// The share of a CPU that the thread may use, per cent.
    pub cpu_percent: u8,
    /// Seed of the passes.
    pub seed: u64,
}

impl Recompression {
    /// Draws the recompression of a store.
    pub fn draw(random: &mut Random) -> Self {
        let chance = random.pick(&[0, 40, 100]);
        let codecs = std::array::from_fn(|_| random.percent(chance).then(|| Codec::draw(random)));
        let mut recompression = Recompression {
            codecs,
            access_times: random.percent(50),
            requesters: random.pick(&[0, 1, 1, 2]),
            rules: None,
            cpu_percent: random.pick(&[1, 25, 100]),
            seed: random.next(),
        };
        let priorities: Vec<u8> = recompression.priorities().collect();
        recompression.rules = random.percent(50).then(|| {
            let rule = |&priority| RecompressRule { age_s: random.below(2), priority };
            priorities.iter().map(rule).collect()
        });
        recompression
    }

    /// The priorities for which the store has a codec.
    pub fn priorities(&self) -> impl Iterator<Item = u8> {
        (1..=FURTHER_MAX as u8).filter(|priority| self.codecs[usize::from(priority - 1)].is_some())
    }

    /// The codecs as a store takes them.
    pub fn specs(&self) -> [Option<CodecSpec>; FURTHER_MAX] {
        self.codecs.map(|codec| codec.as_ref().map(Codec::spec))
    }

    /// Most workers of passes at the same time.
    pub fn workers(&self) -> u64 {
        match self.priorities().next() {
            Some(_) => self.requesters * WORKERS_MAX + u64::from(self.rules.is_some()),
            None => 0,
        }
    }

    /// Starts automatic recompression, if it was drawn.
    pub fn start(&self, store: &Arc<Store>) -> Result<Option<RecompressThread>, Fault> {
        let Some(rules) = self.rules.clone() else { return Ok(None) };
        // The soak keeps the machine busy; the thread is to run all the same.
        store.set_recompress_busy_percent(0);
        let config = AutoRecompress { rules, cpu_percent: self.cpu_percent };
        let started = RecompressThread::start(store.clone(), config);
        started.map(Some).or_fault("recompression thread")
    }

    /// Runs passes until `stop` is set, as requester `number`.
    pub fn run(&self, number: u64, store: &Store, stop: &AtomicBool) -> Result<(), Fault> {
        let mut random = Random::new(derive(self.seed, number));
        let mut counted = RecompressStats::default();
        while !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(random.below(10)));
            let pages = store.len_bytes().div_ceil(FRAME);
            let (request, has_codec) = recompression::request(&mut random, &self.codecs, pages, WORKERS_MAX);
            // Some passes end early, at their second call or later.
            let mut calls_left = if random.percent(20) { random.between(1, 20) } else { u64::MAX };
            let result = store.recompress(&request, &mut |_| {
                calls_left -= 1;
                match calls_left == 0 || stop.load(Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            check_result(&request, has_codec, &result)?;
            counted = check_counters(store, counted)?;
            check_limit(store)?;
        }
        Ok(())
    }

    /// Runs passes over all pages with each codec, while nothing else uses the store. Checks that no page changes
    /// under them, and that a second round tries none again, whatever passes ran before.
    pub fn check_quiet(&self, store: &Store) -> Result<(), Fault> {
        let mut random = Random::new(derive(self.seed, u64::MAX));
        let deadline = Instant::now() + QUIET_MAX;
        for is_second in [false, true] {
            for priority in self.priorities() {
                let threads = random.between(1, WORKERS_MAX) as usize;
                let request =
                    RecompressRequest { priority: Some(priority), threads, ..RecompressRequest::default() };
                let result = store.recompress(&request, &mut |_| match Instant::now() < deadline {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                });
                check_result(&request, true, &result)?;
                check_limit(store)?;
                let Ok(report) = result else { continue };
                let is_alone = report.changed_pages == 0;
                require!(is_alone, Failed, "pages changed under a pass of priority {priority}: {report:?}");
                // At the memory limit a page may find no space for its new object, and is tried again.
                if report.stopped || report.no_memory_pages > 0 {
                    return Ok(());
                }
                let is_new = !is_second || tried(&report) == 0;
                require!(is_new, Failed, "a second pass of priority {priority} tries pages: {report:?}");
            }
        }
        Ok(())
    }
}

/// Checks the result of a pass on a store that has its codec, or does not.
fn check_result(
    request: &RecompressRequest,
    has_codec: bool,
    result: &Result<RecompressReport, RecompressError>,
) -> Result<(), Fault> {
    let is_right = match result {
        Err(RecompressError::NoCodec { .. } | RecompressError::NoSuchCodec { .. }) => !has_codec,
        Err(_) => false,
        Ok(report) => {
            has_codec
                && report.failed_pages == 0
                && report.new_bytes <= report.old_bytes
                && tried(report) <= request.pages_max.unwrap_or(u64::MAX)
        }
    };
    require!(is_right, Failed, "{request:?} of a store, which has its codec: {has_codec}: {result:?}");
    Ok(())
}

/// Pages that a pass has tried.
fn tried(report: &RecompressReport) -> u64 {
    let RecompressReport { recompressed_pages, not_smaller_pages, no_memory_pages, failed_pages, .. } =
        report;
    recompressed_pages + not_smaller_pages + report.changed_pages + no_memory_pages + failed_pages
}

/// Checks that counters of the past have not gone down since `before`, and returns them.
pub fn check_counters(store: &Store, before: RecompressStats) -> Result<RecompressStats, Fault> {
    let now = store.stats().recompress;
    let rises = now.saved_bytes >= before.saved_bytes
        && now.recompressed_pages >= before.recompressed_pages
        && now.not_smaller_pages >= before.not_smaller_pages;
    require!(rises, Failed, "the counters of recompression: {before:?}, then {now:?}");
    Ok(now)
}

/// Checks that pages have taken no more memory than the limit, and than recompression and pages that become shorter may
/// take beyond it.
pub fn check_limit(store: &Store) -> Result<(), Fault> {
    let stats = store.stats().mm;
    let (mem_limit, mem_used_max) = (stats.mem_limit, stats.mem_used_max);
    let is_within = mem_limit == 0 || mem_used_max <= mem_limit + BEYOND_LIMIT_BYTES;
    require!(is_within, Memory, "pages took {mem_used_max} bytes; the limit is {mem_limit}");
    Ok(())
}
