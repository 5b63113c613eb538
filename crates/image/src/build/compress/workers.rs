//! The threads that compress segments.
//!
//! The builder's thread submits segments and takes the results in an order of its choice, by ticket; so what is written
//! does not depend on which thread was faster. The builder takes a result before it submits a segment for which there is
//! no [room](Workers::has_room). The bound is in bytes: one long segment must not keep the other threads waiting because
//! short ones behind it fill the queue.

use super::segment::{Cut, SEGMENT_BYTES_MAX, Segment};
use crate::build::BuildError;
use crate::build::options::{Compression, Method, Options};
use pagefold_codec::cluster::Format;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Most segments under way for each thread, however short: each costs some memory beside its bytes.
const SEGMENTS_PER_THREAD_MAX: u64 = 256;

/// The number of a submitted segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// When a segment gets a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Behind those that wait.
    Last,
    /// Before those that wait.
    First,
}

/// A segment to compress.
struct Job {
    ticket: Ticket,
    src: Vec<u8>,
    cut: Cut,
    compression: Compression,
}

/// A compressed segment.
pub struct Done {
    /// The segment.
    pub segment: Segment,
    /// Time that compression took.
    pub elapsed: Duration,
    /// The source.
    pub src: Vec<u8>,
}

/// The segments that wait for a thread.
#[derive(Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job, turn: Turn) {
        let mut state = self.lock();
        match turn {
            Turn::Last => state.jobs.push_back(job),
            Turn::First => state.jobs.push_front(job),
        }
        self.changed.notify_one();
    }

    /// Waits for a segment; `None` when the builder is done.
    fn pop(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

/// The threads, and the queue to and from them. Dropping it ends the threads, which finish the segments they have.
pub struct Workers<'scope> {
    queue: &'scope Queue,
    results: Receiver<(Ticket, Result<Done, BuildError>)>,
    /// Results that came before they were asked for.
    early: HashMap<Ticket, Result<Done, BuildError>>,
    submitted: u64,
    taken: u64,
    /// Bytes of the sources of segments that are submitted and not taken.
    under_way_bytes: usize,
    threads: usize,
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl<'scope> Workers<'scope> {
    /// Starts the threads.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        options: &'scope Options,
        queue: &'scope Queue,
        threads: usize,
    ) -> Result<Self, BuildError> {
        let (done, results) = channel();
        let (early, submitted, taken, under_way_bytes) = (HashMap::new(), 0, 0, 0);
        // It closes the queue if a thread cannot be started.
        let workers = Workers { queue, results, early, submitted, taken, under_way_bytes, threads };
        for number in 0..threads {
            let done = done.clone();
            std::thread::Builder::new()
                .name(format!("compress-{number}"))
                .spawn_scoped(scope, move || work(options, queue, &done))
                .map_err(BuildError::Threads)?;
        }
        Ok(workers)
    }

    /// Whether a segment of this length may be submitted before one is taken. There is room for a long segment a
    /// thread, one that waits and one that is being written, so that no thread waits for the builder.
    pub fn has_room(&self, src_bytes: usize) -> bool {
        let room_bytes = (self.threads + 2) * SEGMENT_BYTES_MAX;
        let segments = self.submitted - self.taken;
        segments == 0
            || self.under_way_bytes + src_bytes <= room_bytes
                && segments < SEGMENTS_PER_THREAD_MAX * self.threads as u64
    }

    /// Submits a segment.
    pub fn submit(&mut self, src: Vec<u8>, cut: Cut, compression: Compression, turn: Turn) -> Ticket {
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.under_way_bytes += src.len();
        self.queue.push(Job { ticket, src, cut, compression }, turn);
        ticket
    }

    /// Waits for the result of a segment, which is taken once.
    pub fn take(&mut self, ticket: Ticket) -> Result<Done, BuildError> {
        self.taken += 1;
        loop {
            if let Some(result) = self.early.remove(&ticket) {
                self.under_way_bytes -= result.as_ref().map_or(0, |done| done.src.len());
                return result;
            }
            let Ok((ticket, result)) = self.results.recv() else {
                return Err(BuildError::Threads(std::io::Error::other("a thread that compresses ended")));
            };
            self.early.insert(ticket, result);
        }
    }
}

/// Compresses segments until the builder is done.
fn work(options: &Options, queue: &Queue, done: &Sender<(Ticket, Result<Done, BuildError>)>) {
    let mut encoders = BTreeMap::new();
    while let Some(job) = queue.pop() {
        let begun = Instant::now();
        let segment = compress(&job, options, &mut encoders);
        let result = segment.map(|segment| Done { segment, elapsed: begun.elapsed(), src: job.src });
        if done.send((job.ticket, result)).is_err() {
            return;
        }
    }
}

fn compress(
    job: &Job,
    options: &Options,
    encoders: &mut BTreeMap<Compression, Encoder>,
) -> Result<Segment, BuildError> {
    let encoder = match encoders.entry(job.compression) {
        std::collections::btree_map::Entry::Occupied(made) => made.into_mut(),
        std::collections::btree_map::Entry::Vacant(vacant) => {
            vacant.insert(Encoder::new(&config(job.compression, options))?)
        }
    };
    job.cut.compress(&job.src, encoder)
}

/// The encoder's configuration for a compression.
fn config(compression: Compression, options: &Options) -> EncoderConfig {
    let (level, cluster_bytes) = (compression.level, options.cluster_bytes);
    let window_bytes = options.lz4_window_bytes;
    match compression.method {
        Method::Lz4 => EncoderConfig::Lz4 { window_bytes },
        Method::Lz4Hc => EncoderConfig::Lz4Hc { window_bytes, level },
        Method::Zstd => EncoderConfig::Zstd { max_window_bytes: zstd_window_bytes(cluster_bytes), level },
        Method::Deflate => EncoderConfig::Deflate { level },
        Method::Lzma => {
            let dict_bytes = (4 * cluster_bytes).clamp(32 << 10, 8 << 20);
            EncoderConfig::MicroLzma { dict_bytes, level, extreme: false }
        }
    }
}

/// The format of a compression's clusters, with the limits that the image declares.
pub fn format(compression: Compression, options: &Options) -> Format {
    config(compression, options).format()
}

/// The window of zstd frames: eight clusters, at most 1 MiB, which is the format's limit.
fn zstd_window_bytes(cluster_bytes: u32) -> u32 {
    (8 * cluster_bytes).next_power_of_two().min(1 << 20)
}
