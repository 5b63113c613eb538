//! An object on a server as a source of bytes.

use crate::ahead::ReadAhead;
use crate::answer::{AttemptError, Validator, Version, Wanted};
use crate::blocks::{BLOCK_BYTES, Blocks, Loaded, ReadError, Run};
use crate::client::Client;
use crate::link::{Link, Timing};
use crate::prefetch::PrefetchClaim;
use crate::retry::{Deadline, until_deadline};
use crate::{RemoteError, Secret, Url};
use pagefold_backing::{BackingError, ByteSource, Prefetched};
use pagefold_page::latency::Latency;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How an object is read.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest time of a read, and of opening. Then it fails.
    pub timeout: Duration,
    /// Memory for ranges that were read, bytes; at least 64 KiB are taken. Reads in flight take up to 2 MiB each, an eighth
    /// of this at most, in addition.
    pub cache_bytes: usize,
    /// Threads that fetch ahead of readers that read in order.
    pub ahead_threads: usize,
    /// The value of the header `Authorization`. It is sent to the server of the URL only, and only by `https` or on this
    /// machine.
    pub authorization: Option<Secret>,
    /// Whether the caller verifies all bytes, so that an object without a version is accepted.
    pub is_verified: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout: Duration::from_secs(30),
            cache_bytes: 16 << 20,
            ahead_threads: 3,
            authorization: None,
            is_verified: false,
        }
    }
}

/// Counters of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Requests sent, redirects and further attempts included.
    pub requests: u64,
    /// Further attempts, after transient failures.
    pub retries: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
    /// Bytes of reads that were in memory already.
    pub hit_bytes: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Memory for ranges, at most, bytes.
    pub cache_bytes: u64,
    /// The sum of the times of all requests that succeeded, from sending to the last byte, ns.
    pub request_ns: u64,
    /// The times of these requests.
    pub latency: Latency,
}

/// One version of an object on a server. Reads share the ranges that are in memory; those of several threads are in
/// flight at once.
pub struct RemoteSource {
    object: Arc<Object>,
    ahead: Option<ReadAhead>,
    failed_reads: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// The object, as readers and the threads that fetch ahead share it.
struct Object {
    client: Client,
    version: Version,
    blocks: Arc<Blocks>,
    link: Mutex<Link>,
    /// Requests under way.
    active: AtomicU64,
    timeout: Duration,
}

impl RemoteSource {
    /// Opens the object: asks for its beginning, and so learns its length and version.
    pub fn open(url: &Url, options: Options) -> Result<Self, RemoteError> {
        let client = Client::new(url, &options)?;
        let deadline = Deadline::after(options.timeout);
        let wanted = Wanted { range: 0..BLOCK_BYTES, version: None };
        let opened = until_deadline(
            &deadline,
            |pause| client.wait(pause),
            || {
                let Some(body) = client.get(&wanted, &deadline)? else { return Ok(None) };
                let version = body.version.clone();
                let mut first = [vec![0; (body.range.end - body.range.start) as usize]];
                client.read_body(body, &mut first)?;
                Ok(Some((version, first)))
            },
        )?;
        let (version, first) = match opened {
            Some((version, [first])) => (version, Some(first)),
            None => (Version { len_bytes: 0, validator: Validator::None }, None),
        };
        if first.is_some() && version.validator == Validator::None && !options.is_verified {
            return Err(RemoteError::Unversioned);
        }
        let blocks = Arc::new(Blocks::new(version.len_bytes, options.cache_bytes));
        first.into_iter().for_each(|first| blocks.insert_first(first));
        let object = Arc::new(Object {
            client,
            version,
            blocks,
            link: Mutex::default(),
            active: AtomicU64::new(0),
            timeout: options.timeout,
        });
        let fetched = object.clone();
        let fetch = move |run: &Range<u64>| fetched.fetch_once(run, &Deadline::after(fetched.timeout)).ok();
        let ahead = ReadAhead::start(options.ahead_threads, Arc::new(fetch));
        Ok(RemoteSource { object, ahead, failed_reads: AtomicU64::new(0), last_error: Mutex::default() })
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> RemoteStats {
        let Object { client: Client { counters, .. }, blocks, .. } = &*self.object;
        RemoteStats {
            requests: counters.requests.load(Ordering::Relaxed),
            retries: counters.retries.load(Ordering::Relaxed),
            received_bytes: counters.received_bytes.load(Ordering::Relaxed),
            hit_bytes: blocks.hit_bytes.load(Ordering::Relaxed),
            failed_reads: self.failed_reads.load(Ordering::Relaxed),
            cache_bytes: blocks.max_blocks as u64 * BLOCK_BYTES,
            request_ns: counters.request_ns.load(Ordering::Relaxed),
            latency: counters.latency.snapshot(),
        }
    }

    /// Offers runs to the threads that fetch ahead, until all are busy or nothing is missing.
    fn offer_ahead(&self, next: impl Fn() -> Option<Run>) {
        if let Some(ahead) = &self.ahead {
            while next().is_some_and(|run| ahead.offer(run)) {}
        }
    }

    /// The error of the last read that failed, for people.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Object {
    /// Fetches blocks, by requests that are repeated until the deadline.
    fn fetch(&self, blocks: &Range<u64>, deadline: &Deadline) -> Result<Loaded, RemoteError> {
        until_deadline(deadline, |pause| self.client.wait(pause), || self.fetch_once(blocks, deadline))
    }

    /// Fetches blocks by one request.
    fn fetch_once(&self, blocks: &Range<u64>, deadline: &Deadline) -> Result<Loaded, AttemptError> {
        self.active.fetch_add(1, Ordering::Relaxed);
        let fetched = self.fetch_timed(blocks, deadline);
        self.active.fetch_sub(1, Ordering::Relaxed);
        let (loaded, timing) = fetched?;
        self.client.counters.record(timing.head + timing.body);
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.add(timing);
        self.blocks.set_request_bytes(link.request_bytes());
        Ok(loaded)
    }

    fn fetch_timed(
        &self,
        blocks: &Range<u64>,
        deadline: &Deadline,
    ) -> Result<(Loaded, Timing), AttemptError> {
        let range = self.blocks.byte_range(blocks);
        let wanted = Wanted { range: range.clone(), version: Some(&self.version) };
        let begun = Instant::now();
        let body = self.client.get(&wanted, deadline)?;
        let body = body.ok_or_else(|| AttemptError::refused("it has no bytes"))?;
        let head = begun.elapsed();
        let starts = range.clone().step_by(BLOCK_BYTES as usize);
        let lens = starts.map(|start| (range.end - start).min(BLOCK_BYTES) as usize);
        let mut loaded: Loaded = lens.map(|len| vec![0; len]).collect();
        self.client.read_body(body, &mut loaded)?;
        let (body, active) = (begun.elapsed() - head, self.active.load(Ordering::Relaxed));
        Ok((loaded, Timing { head, body, bytes: range.end - range.start, active }))
    }
}

impl ByteSource for RemoteSource {
    fn len_bytes(&self) -> u64 {
        self.object.version.len_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.check_range(offset, buf.len() as u64)?;
        let Object { client, blocks, timeout, .. } = &*self.object;
        let deadline = Deadline::after(*timeout);
        let (first, end) = (offset / BLOCK_BYTES, (offset + buf.len() as u64).div_ceil(BLOCK_BYTES));
        self.offer_ahead(|| blocks.run_ahead_of(first, end.saturating_sub(1)));
        let read = blocks.read(offset, buf, deadline.end, &|run| self.object.fetch(run, &deadline));
        let error = match read {
            Ok(()) => {
                self.offer_ahead(|| blocks.run_ahead(end.saturating_sub(1)));
                return Ok(());
            }
            Err(ReadError::Load(error)) => error,
            Err(ReadError::TimedOut) => RemoteError::TimedOut {
                timeout: *timeout,
                last: "another reader waits for the same bytes".to_string(),
            },
        };
        let error = error.of_read(client.url());
        self.failed_reads.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        Err(error)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        if self.check_range(offset, len_bytes).is_err() {
            return Prefetched::Failed;
        }
        let wanted = offset / BLOCK_BYTES..(offset + len_bytes).div_ceil(BLOCK_BYTES);
        loop {
            let run = match self.object.blocks.claim_prefetch(&wanted) {
                PrefetchClaim::Nothing => return Prefetched::Done,
                PrefetchClaim::NoRoom => return Prefetched::NoRoom,
                PrefetchClaim::Fetch(run) => run,
            };
            match self.object.fetch_once(run.blocks(), &Deadline::after(self.object.timeout)) {
                Ok(loaded) => run.complete(loaded),
                Err(_) => return Prefetched::Failed,
            }
        }
    }

    fn describe(&self) -> String {
        format!("{}, by range requests", self.object.client.url())
    }
}
