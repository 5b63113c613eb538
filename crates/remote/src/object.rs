//! One version of an object, and how its blocks are loaded: from the cache on disk, or else from the server.

use crate::RemoteError;
use crate::answer::{AttemptError, Version, Wanted};
use crate::blocks::{Blocks, Loaded};
use crate::cache::{CachedObject, Wait};
use crate::client::Client;
use crate::eviction::BLOCK_BYTES;
use crate::first_hashes::FirstHashes;
use crate::link::{Link, Timing};
use crate::outage::{Outage, Permission};
use crate::retry::{Deadline, until_deadline};
use crate::spool::SpooledObject;
use pagefold_backing::DeadlineScope;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The longest wait for another process that fetches the same range into the cache.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(5);

/// The object, as readers and the threads that fetch ahead share it.
pub(crate) struct Object {
    pub(crate) client: Client,
    pub(crate) version: Version,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) cached: Option<CachedObject>,
    /// The whole object, if its server answers no range requests.
    pub(crate) spooled: Option<SpooledObject>,
    pub(crate) link: Mutex<Link>,
    /// Requests under way.
    pub(crate) active: AtomicU64,
    pub(crate) timeout: Duration,
    pub(crate) outage: Outage,
    /// Set by [`RemoteSource::remember`].
    pub(crate) first_hashes: OnceLock<FirstHashes>,
}

impl Object {
    /// Loads the first of these blocks, at least one, for a reader: from the cache, or else from the server.
    pub(crate) fn load(&self, blocks: &Range<u64>, deadline: &Deadline) -> Result<Loaded, RemoteError> {
        if let Some(spooled) = &self.spooled {
            return spooled.read(&self.blocks.byte_range(blocks), BLOCK_BYTES);
        }
        let fetch = |blocks: &Range<u64>| self.fetch(blocks, deadline);
        let end = Instant::now() + (self.timeout / 4).min(MAX_CLAIM_WAIT);
        let wait = Wait::Bounded(end.min(deadline.end));
        let cached = self.cached.as_ref().map_or(Ok(None), |cached| cached.load(blocks, wait, fetch))?;
        let loaded = cached.map_or_else(|| fetch(blocks), Ok)?;
        self.note(blocks, &loaded);
        Ok(loaded)
    }

    /// Notes blocks that came, before anybody gets their bytes.
    fn note(&self, blocks: &Range<u64>, loaded: &Loaded) {
        self.first_hashes.get().into_iter().for_each(|hashes| hashes.note(blocks.start, loaded));
    }

    /// Loads the first of these blocks ahead of readers, by one attempt; `None` if another process is at it. A reader that
    /// waits for them has half of its time left for further attempts.
    pub(crate) fn load_ahead(&self, blocks: &Range<u64>) -> Result<Option<Loaded>, AttemptError> {
        if let Some(spooled) = &self.spooled {
            let read = spooled.read(&self.blocks.byte_range(blocks), BLOCK_BYTES);
            return read.map(Some).map_err(AttemptError::Permanent);
        }
        let fetch = |blocks: &Range<u64>| self.fetch_once(blocks, &Deadline::after(self.timeout / 2));
        let loaded = match &self.cached {
            Some(cached) => cached.load(blocks, Wait::Never, fetch),
            None => fetch(blocks).map(Some),
        }?;
        loaded.iter().for_each(|loaded| self.note(blocks, loaded));
        Ok(loaded)
    }

    /// Fetches blocks, by requests that are repeated until the deadline. The first of them only, by one short attempt, if
    /// another read of it has just failed.
    fn fetch(&self, blocks: &Range<u64>, deadline: &Deadline) -> Result<Loaded, RemoteError> {
        let wait = |pause| self.client.wait(pause);
        let timed_out = |last| RemoteError::TimedOut { timeout: deadline.timeout, last };
        let is_scoped = DeadlineScope::begun().is_some();
        // Reads before this one in its scope may have used up the time: then that it fails says little about the server.
        let had_time = deadline.remaining() >= deadline.timeout / 2;
        let permission = match is_scoped {
            true => self.outage.permission(blocks.start, Instant::now(), deadline.remaining()),
            false => Permission::Full,
        };
        let fetched = match permission {
            Permission::Full => until_deadline(deadline, wait, || self.fetch_once(blocks, deadline)),
            Permission::Probe(most) => {
                let (begun, first) = (Instant::now(), blocks.start..blocks.start + 1);
                let fetched = self.fetch_once(&first, &deadline.within(most));
                if fetched.is_err() {
                    self.outage.probed(most, begun.elapsed());
                }
                fetched.map_err(|failure| match failure {
                    AttemptError::Permanent(error) => error,
                    AttemptError::Transient { error, .. } => timed_out(error.to_string()),
                })
            }
            Permission::None(last) => return Err(timed_out(last)),
        };
        if let Err(RemoteError::TimedOut { last, .. }) = &fetched
            && had_time
        {
            self.outage.failed(blocks.start, Instant::now(), last);
        }
        fetched
    }

    /// Fetches blocks by one request.
    fn fetch_once(&self, blocks: &Range<u64>, deadline: &Deadline) -> Result<Loaded, AttemptError> {
        self.active.fetch_add(1, Ordering::Relaxed);
        let fetched = self.fetch_timed(blocks, deadline);
        self.active.fetch_sub(1, Ordering::Relaxed);
        let (loaded, timing) = fetched?;
        self.outage.ended();
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
        let wanted =
            Wanted { range: range.clone(), version: Some(&self.version), is_whole: false, is_checked: false };
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
