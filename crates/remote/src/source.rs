//! An object on a server as a source of bytes.

use crate::access::{Access, PlainAccess};
use crate::ahead::ReadAhead;
use crate::answer::{AttemptError, Validator, Version, Wanted};
use crate::blocks::{Blocks, Fetch, ReadError};
use crate::cache::{CacheUse, CachedObject};
use crate::client::Client;
use crate::encoding::digest_name;
use crate::eviction::BLOCK_BYTES;
use crate::first_hashes::FirstHashes;
use crate::object::Object;
use crate::outage::Outage;
use crate::retry::{Deadline, until_deadline};
use crate::spool::{Spool, SpooledObject};
use crate::whole::NamedObject;
use crate::{Change, RemoteError, Secret, Url};
use pagefold_backing::{BackingError, ByteSource, Prefetched};
use pagefold_page::latency::Latency;
use ring::digest::{SHA256, digest};
use std::io::Read as _;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The longest request before the link is known, bytes.
const MAX_FIRST_BYTES: u64 = 1 << 20;

/// How an object is read.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest time of a read, from the start of its [scope](pagefold_backing::DeadlineScope) on, and of opening.
    /// Then it fails.
    pub timeout: Duration,
    /// Memory for ranges that were read, bytes; at least 32 KiB are taken. Reads in flight take up to 2 MiB each, an eighth
    /// of this at most, in addition.
    pub cache_bytes: usize,
    /// Threads that fetch ahead of readers that read in order.
    pub ahead_threads: usize,
    /// The value of the header `Authorization`. It is sent to the server of the URL only, and only by `https` or on this
    /// machine.
    pub authorization: Option<Secret>,
    /// Whether the caller verifies all bytes: they decide, and not how the server names the version of the object.
    pub is_verified: bool,
    /// A cache on disk.
    pub cache: Option<CacheUse>,
    /// The file for an object that comes as a whole only, if the caller reads all of it.
    pub spool: Option<Arc<Spool>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout: Duration::from_secs(30),
            cache_bytes: 16 << 20,
            ahead_threads: 3,
            authorization: None,
            is_verified: false,
            cache: None,
            spool: None,
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
    is_from_cache: bool,
}

impl RemoteSource {
    /// Opens the object: asks for its beginning, and so learns its length and version. An object whose bytes the caller
    /// verifies is opened without asking if the cache has it.
    pub fn open(url: &Url, options: Options) -> Result<Self, RemoteError> {
        let access = PlainAccess::new(url, options.authorization.clone())?;
        Self::open_by(Arc::new(access), &options)
    }

    /// Opens the object that a store gives access to.
    pub(crate) fn open_by(access: Arc<dyn Access>, options: &Options) -> Result<Self, RemoteError> {
        let client = Client::new(access, options.timeout)?;
        let cache = options.cache.as_ref();
        let fixed = client.access().fixed_len_bytes();
        let cached = cache.filter(|_| options.is_verified).and_then(CacheUse::find);
        if let Some(cached) = cached.filter(|cached| fixed.is_none_or(|len| len == cached.len_bytes())) {
            let version = Version { len_bytes: cached.len_bytes(), validator: Validator::None };
            return Ok(RemoteSource::new(client, version, None, Some(cached), None, options));
        }
        let opened = match (open_version(&client, options), &options.spool) {
            (Err(error), Some(spool)) if error.may_lack_ranges() => {
                let spooled = download(&client, spool, options)?;
                let version = Version { len_bytes: spooled.len_bytes, validator: Validator::None };
                return Ok(RemoteSource::new(client, version, None, None, Some(spooled), options));
            }
            (opened, _) => opened,
        };
        let (mut version, first) = opened?;
        let url = client.access().server();
        let cached = cache.zip(first.as_ref());
        let cached = cached.and_then(|(cache, first)| cache.object(&url, &version, fixed.is_some(), first));
        if options.is_verified {
            version.validator = Validator::None;
        }
        Ok(RemoteSource::new(client, version, first, cached, None, options))
    }

    /// A source of a version. `first` is its first block, if the server has sent it.
    fn new(
        client: Client,
        version: Version,
        first: Option<Vec<u8>>,
        cached: Option<CachedObject>,
        spooled: Option<SpooledObject>,
        options: &Options,
    ) -> Self {
        let is_from_cache = first.is_none() && cached.is_some();
        let blocks = Arc::new(Blocks::new(version.len_bytes, options.cache_bytes));
        // The first requests too take no more than their part of a small memory.
        blocks.set_request_bytes(MAX_FIRST_BYTES);
        first.into_iter().for_each(|first| blocks.insert_first(first));
        let object = Arc::new(Object {
            client,
            version,
            blocks,
            cached,
            spooled,
            link: Mutex::default(),
            active: AtomicU64::new(0),
            timeout: options.timeout,
            outage: Outage::default(),
            first_hashes: OnceLock::new(),
        });
        let loaded = object.clone();
        let load = move |run: &Range<u64>| loaded.load_ahead(run).ok().flatten();
        let ahead = ReadAhead::start(options.ahead_threads, Arc::new(load));
        let (failed_reads, last_error) = Default::default();
        RemoteSource { object, ahead, failed_reads, last_error, is_from_cache }
    }

    /// Whether the object was opened by what the cache says, without asking the server. Then the cache may be wrong about
    /// its length, too.
    pub fn is_from_cache(&self) -> bool {
        self.is_from_cache
    }

    /// The name of the version of the object: its digest, or the entity tag or time that its server sends. `None` if it was
    /// opened without that.
    pub fn version_name(&self) -> Option<String> {
        let digest = self.content_digest().map(String::from);
        digest.or_else(|| match &self.object.version.validator {
            Validator::Etag(name) | Validator::LastModified(name) => Some(name.clone()),
            Validator::None => None,
        })
    }

    /// Remembers the hash of each block that comes from now on, and of those that are in memory:
    /// [`verify_rest`](crate::whole::WholeHash::verify_rest) fails if one comes again with other bytes.
    pub fn remember(&self) {
        let hashes = self.object.first_hashes.get_or_init(FirstHashes::default);
        self.object.blocks.ready().into_iter().for_each(|(block, bytes)| hashes.note(block, &vec![bytes]));
    }

    /// Whether ranges that were read stay on this machine until the object is closed, so that another read of all of it
    /// fetches little: there is a cache on disk, or all of it has space in memory.
    pub fn is_kept(&self) -> bool {
        let blocks = self.len_bytes().div_ceil(BLOCK_BYTES);
        self.object.cached.is_some()
            || self.object.spooled.is_some()
            || blocks <= self.object.blocks.max_blocks as u64
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

    /// Passes the bytes of a range to `put`, in order and in parts, as [`read_at`](ByteSource::read_at) reads them. The
    /// reader goes on up to `wanted_end`, so requests may fetch that too.
    pub fn read_parts(
        &self,
        range: Range<u64>,
        wanted_end: u64,
        put: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackingError> {
        self.check_range(range.start, range.end.saturating_sub(range.start))?;
        let Object { client, blocks, timeout, .. } = &*self.object;
        let deadline = Deadline::of_current_request(*timeout);
        let (first, end) = (range.start / BLOCK_BYTES, range.end.div_ceil(BLOCK_BYTES));
        self.offer_ahead(|| blocks.run_ahead_of(first, end.saturating_sub(1)));
        let load = |run: &Range<u64>| self.object.load(run, &deadline);
        let error = match blocks.read_parts(range, wanted_end, deadline.end, &load, put) {
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
        let error = error.of_read(&client.access().name());
        self.failed_reads.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        Err(error)
    }

    /// Offers runs to the threads that fetch ahead, until all are busy or nothing is missing.
    fn offer_ahead(&self, next: impl Fn() -> Option<Fetch>) {
        if let Some(ahead) = &self.ahead {
            while next().is_some_and(|run| ahead.offer(run)) {}
        }
    }

    /// The error of the last read that failed, for people.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Asks for the beginning of an object. Returns its version, and its first block unless it has no bytes.
fn open_version(client: &Client, options: &Options) -> Result<(Version, Option<Vec<u8>>), RemoteError> {
    let deadline = Deadline::after(options.timeout);
    // An object that is named by its digest has one version, whatever validators the servers of its store send.
    let fixed = client.access().fixed_len_bytes();
    let fixed = fixed.map(|len_bytes| Version { len_bytes, validator: Validator::None });
    let end = fixed.as_ref().map_or(BLOCK_BYTES, |version| BLOCK_BYTES.min(version.len_bytes));
    let wanted = Wanted { range: 0..end, version: fixed.as_ref(), is_whole: false, is_checked: false };
    let attempt = || {
        if wanted.range.is_empty() {
            return Ok(None);
        }
        let Some(body) = client.get(&wanted, &deadline)? else { return Ok(None) };
        let version = fixed.clone().unwrap_or_else(|| body.version.clone());
        let mut first = [vec![0; (body.range.end - body.range.start) as usize]];
        client.read_body(body, &mut first)?;
        Ok(Some((version, first)))
    };
    let (version, first) = match until_deadline(&deadline, |pause| client.wait(pause), attempt)? {
        Some((version, [first])) => (version, Some(first)),
        None => (Version { len_bytes: 0, validator: Validator::None }, None),
    };
    if fixed.is_some() {
        if version.len_bytes <= BLOCK_BYTES {
            check_whole(client.access(), first.as_deref().unwrap_or_default())?;
        }
    } else if first.is_some() && version.validator == Validator::None && !options.is_verified {
        return Err(RemoteError::Unversioned);
    }
    Ok((version, first))
}

/// Downloads the whole object.
fn download(client: &Client, spool: &Arc<Spool>, options: &Options) -> Result<SpooledObject, RemoteError> {
    spool.file()?;
    let deadline = Deadline::after(options.timeout);
    let fixed = client.access().fixed_len_bytes();
    let is_checked = fixed.is_some() || options.is_verified;
    let wanted = Wanted { range: 0..u64::MAX, version: None, is_whole: true, is_checked };
    let attempt = || {
        let body = client.get(&wanted, &deadline)?;
        body.ok_or_else(|| AttemptError::refused("it has no bytes"))
    };
    let body = until_deadline(&deadline, |pause| client.wait(pause), attempt)?;
    let len_bytes = Some(body.version.len_bytes).filter(|len| *len != u64::MAX);
    check_length(fixed, len_bytes)?;
    let spooled = client.read_whole(body, |reader| {
        // One byte more shows that there are others behind the last one.
        let most = fixed.map_or(u64::MAX, |fixed| fixed.saturating_add(1));
        spool.download(&client.access().name(), &mut reader.take(most), len_bytes)
    })?;
    check_length(fixed, Some(spooled.len_bytes))?;
    Ok(spooled)
}

/// Compares the length of an object with the one that its name fixes, as far as both are known.
fn check_length(fixed: Option<u64>, found: Option<u64>) -> Result<(), RemoteError> {
    match fixed.zip(found) {
        Some((fixed, found)) if fixed != found => {
            let what = format!("the blob has another length than its manifest names, {fixed} bytes");
            Err(RemoteError::Changed { what, reason: Change::Length })
        }
        _ => Ok(()),
    }
}

/// Compares an object that came as a whole with its name, if that is a digest.
fn check_whole(access: &dyn Access, bytes: &[u8]) -> Result<(), RemoteError> {
    let found = digest_name(&digest(&SHA256, bytes));
    match access.content_digest() {
        Some(wanted) if wanted != found => {
            Err(RemoteError::OtherDigest { found, wanted: wanted.to_string() })
        }
        _ => Ok(()),
    }
}

impl NamedObject for RemoteSource {
    fn content_digest(&self) -> Option<&str> {
        self.object.client.access().content_digest()
    }

    fn has_other_bytes(&self) -> Result<bool, BackingError> {
        Ok(self.object.first_hashes.get().is_some_and(FirstHashes::has_other))
    }
}

impl ByteSource for RemoteSource {
    fn len_bytes(&self) -> u64 {
        self.object.version.len_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let mut rest = buf;
        let mut put = |bytes: &[u8]| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            part.copy_from_slice(bytes);
            rest = after;
        };
        self.read_parts(range.clone(), range.end, &mut put)
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        let Some(cached) = &self.object.cached else { return false };
        let end = offset.saturating_add(len_bytes).min(self.len_bytes());
        let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let was_cached = cached.forget(&blocks);
        // Blocks in memory may have come from the cache, too.
        let was_in_memory = self.object.blocks.forget(&blocks);
        was_cached || was_in_memory
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        if self.check_range(offset, len_bytes).is_err() {
            return Prefetched::Failed;
        }
        let wanted = offset / BLOCK_BYTES..(offset + len_bytes).div_ceil(BLOCK_BYTES);
        loop {
            let run = match self.object.blocks.claim_prefetch(&wanted) {
                Ok(run) => run,
                Err(end) => return end,
            };
            match self.object.load_ahead(run.blocks()) {
                Ok(Some(loaded)) => run.complete(loaded),
                // Another process fetches the blocks: they may be in the cache soon.
                Ok(None) => return Prefetched::NoRoom,
                Err(_) => return Prefetched::Failed,
            }
        }
    }

    fn describe(&self) -> String {
        format!("{}, by range requests", self.object.client.access().name())
    }
}
