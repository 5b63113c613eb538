//! Samples the counters of a disk several times a second during a load, and judges each refusal that the server counts.
//!
//! A refused write of a file system or fio may never be reported to the program that wrote, so the server's counters
//! decide. Memory and backing change between two samples; the judgement uses, of the samples of the last seconds, the
//! values that favour a refusal most, and the peak of memory since the disk was made: if the limit was never reached,
//! no refusal is justified.
//!
//! The sampling thread, the main thread (after the load and at the end) and, through [`RefusalJudge`], the threads of a
//! mixed load use a sampler. One mutex guards the samples; no thread holds it while it runs `disk show`.

use super::server::Server;
use crate::load::mixed::RefusalJudge;
use crate::model::{self, Judgement, Room, StoreState};
use crate::process;
use crate::verdict::{Fault, FaultKind, require};
use crate::watchdog::ANSWER;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(250);
/// Age up to which a sample justifies further refusals.
const FRESH: Duration = Duration::from_millis(50);
/// Age up to which a sample counts in a judgement.
const AGE_MAX: Duration = Duration::from_secs(3);

/// The samples of one disk.
pub struct Sampler<'a> {
    server: &'a Server<'a>,
    /// Requests that may be under way at the same time.
    requests: u64,
    samples: Mutex<Samples>,
}

#[derive(Default)]
struct Samples {
    /// The server of the last sample: counters begin anew with each.
    pid: u64,
    recent: VecDeque<(Instant, StoreState)>,
    /// Refused writes that the server has counted up to the last sample.
    refused: u64,
    /// The most memory in use since the disk was made or reset.
    peak_bytes: u64,
    /// Bytes that recompression has saved since then.
    saved_bytes: u64,
    /// The first fault.
    fault: Option<Fault>,
}

impl<'a> Sampler<'a> {
    /// A sampler of this disk, on which so many requests may be under way.
    pub fn new(server: &'a Server<'a>, requests: u64) -> Self {
        Sampler { server, requests, samples: Mutex::default() }
    }

    fn samples(&self) -> MutexGuard<'_, Samples> {
        // No code panics while it holds the lock.
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes samples until `stop` is set or there is a fault.
    pub fn run(&self, stop: &AtomicBool) {
        while !stop.load(Relaxed) && self.sample().is_ok() {
            std::thread::sleep(INTERVAL);
        }
    }

    /// Takes a sample. This call and all later ones return the first fault of all samples.
    pub fn sample(&self) -> Result<(), Fault> {
        // Another thread may ask later and record earlier: counters are compared with those recorded before this asks.
        let before = {
            let samples = self.samples();
            (samples.pid, samples.saved_bytes)
        };
        let shown = self.server.show();
        let mut samples = self.samples();
        let recorded = match shown {
            Ok(shown) => self.record(&mut samples, &shown, before),
            Err(fault) => Err(fault),
        };
        if samples.fault.is_none() {
            samples.fault = recorded.err();
        }
        samples.fault.clone().map_or(Ok(()), Err)
    }

    fn record(&self, samples: &mut Samples, shown: &Value, before: (u64, u64)) -> Result<(), Fault> {
        let number = |pointer: &str| process::number(shown, pointer);
        let pid = number("/server/pid");
        if std::mem::replace(&mut samples.pid, pid) != pid {
            (samples.refused, samples.saved_bytes) = (0, 0);
        }
        let saved_before = if before.0 == pid { before.1 } else { 0 };
        samples.peak_bytes = samples.peak_bytes.max(number("/memory/pool_max_bytes"));
        samples.recent.push_back((Instant::now(), self.server.state(shown)));
        while samples.recent.front().is_some_and(|(at, _)| at.elapsed() > AGE_MAX) && samples.recent.len() > 2
        {
            samples.recent.pop_front();
        }
        let saved = number("/recompression/saved_bytes");
        samples.saved_bytes = samples.saved_bytes.max(saved);
        let has_grown = saved >= saved_before;
        require!(has_grown, Failed, "recompression had saved {saved_before} bytes, and then {saved}");
        for operation in ["read", "write", "discard", "write_zeroes", "flush"] {
            let longest = Duration::from_nanos(number(&format!("/io/{operation}/latency/max_ns")));
            require!(longest <= ANSWER, Hang, "a {operation} took {longest:?}");
        }
        let failed = number("/events/failed_reads") + number("/io/read/errors");
        require!(failed == 0, Failed, "reads failed: {}", events(shown));
        let refused = number("/events/failed_writes").max(number("/io/write/errors"));
        let judged = samples.refused;
        samples.refused = judged.max(refused);
        if refused > judged
            && let Judgement::Unjustified(_, room) = self.judge_samples(samples)
        {
            let message = format!("{refused} writes were refused, but {room}; {}", events(shown));
            return Err(Fault::new(FaultKind::Refused, message));
        }
        Ok(())
    }

    fn judge_samples(&self, samples: &Samples) -> Judgement {
        let states = samples.recent.iter().map(|(_, state)| state.clone());
        let merged = states.reduce(StoreState::merge).unwrap_or_default();
        let ever = StoreState { in_use_bytes: merged.in_use_bytes.max(samples.peak_bytes), ..merged };
        // Memory may have been at its limit between two samples.
        model::judge(&ever, self.requests)
    }

    /// The peak of memory in use over all samples.
    pub fn peak_bytes(&self) -> u64 {
        self.samples().peak_bytes
    }
}

/// The parts of `disk show` that help to explain a refusal.
fn events(shown: &Value) -> String {
    let field = |pointer: &str| shown.pointer(pointer).map(Value::to_string).unwrap_or_default();
    format!("memory {}, events {}, writeback {}", field("/memory"), field("/events"), field("/writeback"))
}

impl RefusalJudge for Sampler<'_> {
    fn judge(&self) -> Result<Judgement, String> {
        // A disk at its limit refuses thousands of requests, and a sample for each would slow the load down too much.
        // A recent sample may justify a refusal; only a new one may show that it was unjustified.
        let is_justified = {
            let samples = self.samples();
            let is_fresh = samples.recent.back().is_some_and(|(at, _)| at.elapsed() < FRESH);
            is_fresh && matches!(self.judge_samples(&samples), Judgement::Justified(_))
        };
        if is_justified {
            return Ok(Judgement::Justified("a recent sample justifies it"));
        }
        self.sample().map_err(|fault| fault.message)?;
        let judgement = self.judge_samples(&self.samples());
        match judgement {
            Judgement::Unjustified(Room::Memory, room) => Err(room),
            judgement => Ok(judgement),
        }
    }
}
