//! An object on a server as a source of bytes.

use crate::answer::{AttemptError, Validator, Version, Wanted};
use crate::blocks::{BLOCK_BYTES, Blocks, Loaded, ReadError};
use crate::client::Client;
use crate::retry::{Deadline, until_deadline};
use crate::{RemoteError, Secret, Url};
use pagefold_backing::{BackingError, ByteSource};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How an object is read.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest time of a read, and of opening. Then it fails.
    pub timeout: Duration,
    /// Memory for ranges that were read, bytes; at least 64 KiB are taken. Reads in flight take up to 1 MiB each in
    /// addition.
    pub cache_bytes: usize,
    /// The value of the header `Authorization`. It is sent to the server of the URL only, and only by `https` or on this
    /// machine.
    pub authorization: Option<Secret>,
    /// Whether the caller verifies all bytes, so that an object without a version is accepted.
    pub is_verified: bool,
}

impl Default for Options {
    fn default() -> Self {
        let timeout = Duration::from_secs(30);
        Options { timeout, cache_bytes: 16 << 20, authorization: None, is_verified: false }
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
}

/// One version of an object on a server. Reads share the ranges that are in memory; those of several threads are in
/// flight at once.
pub struct RemoteSource {
    client: Client,
    version: Version,
    blocks: Blocks,
    timeout: Duration,
    failed_reads: AtomicU64,
    last_error: Mutex<Option<String>>,
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
        let blocks = Blocks::new(version.len_bytes, options.cache_bytes);
        first.into_iter().for_each(|first| blocks.insert_first(first));
        let (failed_reads, last_error) = (AtomicU64::new(0), Mutex::default());
        Ok(RemoteSource { client, version, blocks, timeout: options.timeout, failed_reads, last_error })
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> RemoteStats {
        let counters = &self.client.counters;
        RemoteStats {
            requests: counters.requests.load(Ordering::Relaxed),
            retries: counters.retries.load(Ordering::Relaxed),
            received_bytes: counters.received_bytes.load(Ordering::Relaxed),
            hit_bytes: self.blocks.hit_bytes.load(Ordering::Relaxed),
            failed_reads: self.failed_reads.load(Ordering::Relaxed),
        }
    }

    /// The error of the last read that failed, for people.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches blocks by one request, which is repeated until the deadline.
    fn fetch(&self, blocks: &Range<u64>, deadline: &Deadline) -> Result<Loaded, RemoteError> {
        let range = self.blocks.byte_range(blocks);
        let wanted = Wanted { range: range.clone(), version: Some(&self.version) };
        until_deadline(
            deadline,
            |pause| self.client.wait(pause),
            || {
                let body = self.client.get(&wanted, deadline)?;
                let body = body.ok_or_else(|| AttemptError::refused("it has no bytes"))?;
                let starts = range.clone().step_by(BLOCK_BYTES as usize);
                let lens = starts.map(|start| (range.end - start).min(BLOCK_BYTES) as usize);
                let mut loaded: Loaded = lens.map(|len| vec![0; len]).collect();
                self.client.read_body(body, &mut loaded)?;
                Ok(loaded)
            },
        )
    }
}

impl ByteSource for RemoteSource {
    fn len_bytes(&self) -> u64 {
        self.version.len_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.check_range(offset, buf.len() as u64)?;
        let deadline = Deadline::after(self.timeout);
        let read = self.blocks.read(offset, buf, deadline.end, &|run| self.fetch(run, &deadline));
        let error = match read {
            Ok(()) => return Ok(()),
            Err(ReadError::Load(error)) => error,
            Err(ReadError::TimedOut) => RemoteError::TimedOut {
                timeout: self.timeout,
                last: "another reader waits for the same bytes".to_string(),
            },
        };
        let error = error.of_read(self.client.url());
        self.failed_reads.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        Err(error)
    }

    fn describe(&self) -> String {
        format!("{}, by range requests", self.client.url())
    }
}
