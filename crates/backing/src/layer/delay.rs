//! A layer that models a slow device with constant latency, for repeatable measurements.
//!
//! The modelled device has `depth` channels. A request starts when a channel is free and takes `delay`; requests of all
//! threads and queues share the channels. With a bandwidth, transfers also share one bus. The layer runs the request on
//! the medium below at once, then waits for the rest of the modelled time; so that medium must be much faster than the
//! delay (usually memory).

use super::{TimeSource, splitmix64};
use crate::{Backing, BackingError, Buffers, ByteSource, Completion, Prefetched, Queue, Request};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The modelled device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayOptions {
    /// Latency of each request.
    pub delay: Duration,
    /// Requests that the device works on at once, at least 1.
    pub depth: usize,
    /// Its bandwidth; `None` for no limit.
    pub bytes_per_s: Option<u64>,
    /// The most additional latency of a request, chosen by the seed: requests complete out of order.
    pub jitter: Duration,
    /// Seed of the jitter; the same seed produces the same jitter.
    pub seed: u64,
}

/// The device of the reference measurements: 100 us a request, 32 at once.
impl Default for DelayOptions {
    fn default() -> Self {
        let (delay, jitter) = (Duration::from_micros(100), Duration::ZERO);
        DelayOptions { delay, depth: 32, bytes_per_s: None, jitter, seed: 0 }
    }
}

/// A medium whose requests take the time of the modelled device.
pub struct DelayLayer<B> {
    inner: B,
    options: DelayOptions,
    clock: Arc<dyn TimeSource>,
    device: Mutex<Device>,
}

/// The state of the modelled device.
struct Device {
    /// For each channel, the time at which it becomes free.
    channels: Vec<Duration>,
    /// The time at which the bus becomes free.
    bus: Duration,
    request_count: u64,
}

/// How long a transfer of `len_bytes` takes at this bandwidth.
fn transfer_time(len_bytes: u64, bytes_per_s: u64) -> Duration {
    let ns = u128::from(len_bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

impl<B: Backing> DelayLayer<B> {
    /// Makes an idle device over `inner`.
    pub fn new(inner: B, options: DelayOptions, clock: Arc<dyn TimeSource>) -> Self {
        let channels = vec![Duration::ZERO; options.depth.max(1)];
        let device = Mutex::new(Device { channels, bus: Duration::ZERO, request_count: 0 });
        DelayLayer { inner, options, clock, device }
    }

    /// Reserves the channel that becomes free first, from `now` on or later. Returns the time at which the request
    /// ends.
    fn schedule(&self, now: Duration, len_bytes: u64) -> Duration {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = &mut *device;
        device.request_count += 1;
        let jitter_ns = (self.options.jitter.as_nanos() as u64).saturating_add(1);
        let jitter = Duration::from_nanos(splitmix64(self.options.seed, device.request_count) % jitter_ns);
        let Some(channel) = device.channels.iter_mut().min() else { return now };
        let start = now.max(*channel);
        let mut end = start.saturating_add(self.options.delay).saturating_add(jitter);
        if let Some(bytes_per_s) = self.options.bytes_per_s {
            device.bus = device.bus.max(start) + transfer_time(len_bytes, bytes_per_s);
            end = end.max(device.bus);
        }
        *channel = end;
        end
    }

    /// Runs one request on the medium below, and waits until the modelled device would have completed it.
    fn run_delayed<T>(&self, len_bytes: u64, request: impl FnOnce(&B) -> T) -> T {
        let deadline = self.schedule(self.clock.now(), len_bytes);
        let result = request(&self.inner);
        self.clock.wait_until(deadline);
        result
    }
}

impl<B: Backing> ByteSource for DelayLayer<B> {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.run_delayed(buf.len() as u64, |inner| inner.read_at(offset, buf))
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        self.inner.discard_cached(offset, len_bytes)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        self.run_delayed(len_bytes, |inner| inner.prefetch(offset, len_bytes))
    }

    fn describe(&self) -> String {
        let DelayOptions { delay, depth, .. } = self.options;
        format!("{}, delayed by {delay:?} at depth {depth}", self.inner.describe())
    }
}

impl<B: Backing> Backing for DelayLayer<B> {
    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn read_signal_safe(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
        self.run_delayed(buf.len() as u64, |inner| inner.read_signal_safe(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        self.run_delayed(data.len() as u64, |inner| inner.write_at(offset, data))
    }

    fn flush(&self) -> Result<(), BackingError> {
        self.run_delayed(0, |inner| inner.flush())
    }

    /// Passes the discard on without delay: devices queue discards and run them when they are idle.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        self.inner.discard(offset, len_bytes)
    }

    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        let (depth, queue) = (depth.max(1), self.inner.queue(depth, buffers)?);
        let (unsent, sent, finished) = (Vec::new(), HashMap::new(), Vec::new());
        Ok(Box::new(DelayQueue { layer: self, queue, depth, unsent, sent, finished, next_id: 0 }))
    }
}

/// A queue on the modelled device: requests start at `start` or `complete`, as on a ring.
struct DelayQueue<'a, B> {
    layer: &'a DelayLayer<B>,
    queue: Box<dyn Queue + 'a>,
    depth: usize,
    unsent: Vec<Request>,
    /// Requests in the queue below, by our id: the time at which each ends, and the submitter's id.
    sent: HashMap<u64, (Duration, u64)>,
    /// Requests that the queue below has completed, with the time at which each ends.
    finished: Vec<(Duration, Completion)>,
    next_id: u64,
}

impl<B: Backing> DelayQueue<'_, B> {
    /// Waits for all requests in the queue below, which is fast, and sorts them by the time at which they end.
    fn collect_finished(&mut self) {
        let mut done = Vec::new();
        self.queue.complete(usize::MAX, &mut done);
        for mut completion in done {
            let known = self.sent.remove(&completion.request.id);
            let (deadline, id) = known.unwrap_or((Duration::ZERO, completion.request.id));
            completion.request.id = id;
            self.finished.push((deadline, completion));
        }
        self.finished.sort_by_key(|(deadline, _)| *deadline);
    }
}

impl<B: Backing> Queue for DelayQueue<'_, B> {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        if self.in_flight() >= self.depth {
            return Err(Completion { request, result: Err(BackingError::QueueFull { depth: self.depth }) });
        }
        self.unsent.push(request);
        Ok(())
    }

    fn start(&mut self) {
        let now = self.layer.clock.now();
        for mut request in self.unsent.drain(..) {
            let deadline = self.layer.schedule(now, request.len_bytes as u64);
            let id = std::mem::replace(&mut request.id, self.next_id);
            self.sent.insert(self.next_id, (deadline, id));
            self.next_id += 1;
            if let Err(mut refused) = self.queue.submit(request) {
                self.sent.remove(&refused.request.id);
                refused.request.id = id;
                self.finished.push((deadline, refused));
            }
        }
        self.queue.start();
    }

    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        self.start();
        self.collect_finished();
        let want = min.min(self.finished.len());
        if let Some((deadline, _)) = want.checked_sub(1).and_then(|last| self.finished.get(last)) {
            self.layer.clock.wait_until(*deadline);
        }
        let now = self.layer.clock.now();
        let count = self.finished.partition_point(|(deadline, _)| *deadline <= now);
        done.extend(self.finished.drain(..count).map(|(_, completion)| completion));
        count
    }

    fn in_flight(&self) -> usize {
        self.unsent.len() + self.sent.len() + self.finished.len()
    }

    fn is_degraded(&self) -> bool {
        self.queue.is_degraded()
    }

    fn register_again(&mut self) {
        self.queue.register_again();
    }
}

impl<B> Drop for DelayQueue<'_, B> {
    /// Runs the submitted requests, without waiting for their modelled end.
    fn drop(&mut self) {
        for request in self.unsent.drain(..) {
            if self.queue.submit(request).is_err() {
                break;
            }
        }
        self.queue.complete(usize::MAX, &mut Vec::new());
    }
}
