//! The threads that compress segments.
//!
//! The builder's thread submits segments and takes the results in the order of submission; so what is written does not
//! depend on which thread was faster. The builder takes a result before it submits a segment for which there is no
//! [room](Workers::has_room). The bound is in bytes: one long segment must not keep the other threads waiting because
//! short ones behind it fill the queue.

use super::segment::{Cut, SEGMENT_BYTES_MAX, Segment};
use crate::build::BuildError;
use crate::build::options::{Compression, Method, Options};
use pagefold_codec::cluster::Format;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Most segments under way for each thread, however short: each costs some memory beside its bytes.
const SEGMENTS_PER_THREAD_MAX: u64 = 256;

/// A segment to compress.
struct Job {
    number: u64,
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
pub struct Queue(Mutex<Option<Receiver<Job>>>);

/// The threads, and the queue to and from them.
pub struct Workers {
    jobs: Sender<Job>,
    results: Receiver<(u64, Result<Done, BuildError>)>,
    /// Results that came before their turn.
    early: HashMap<u64, Result<Done, BuildError>>,
    submitted: u64,
    taken: u64,
    /// Bytes of the sources of segments that are submitted and not taken.
    under_way_bytes: usize,
    threads: usize,
}

impl Workers {
    /// Starts the threads.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        options: &'scope Options,
        queue: &'scope Queue,
        threads: usize,
    ) -> Result<Self, BuildError> {
        let (jobs, received) = channel();
        let (done, results) = channel();
        *lock(&queue.0) = Some(received);
        for number in 0..threads {
            let done = done.clone();
            std::thread::Builder::new()
                .name(format!("compress-{number}"))
                .spawn_scoped(scope, move || work(options, queue, &done))
                .map_err(BuildError::Threads)?;
        }
        let (early, submitted, taken, under_way_bytes) = (HashMap::new(), 0, 0, 0);
        Ok(Workers { jobs, results, early, submitted, taken, under_way_bytes, threads })
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
    pub fn submit(&mut self, src: Vec<u8>, cut: Cut, compression: Compression) {
        let number = self.submitted;
        self.submitted += 1;
        self.under_way_bytes += src.len();
        // If no thread is left, taking the result fails.
        let _ = self.jobs.send(Job { number, src, cut, compression });
    }

    /// Waits for the result of the segment that was submitted first.
    pub fn take(&mut self) -> Result<Done, BuildError> {
        let number = self.taken;
        self.taken += 1;
        loop {
            if let Some(result) = self.early.remove(&number) {
                self.under_way_bytes -= result.as_ref().map_or(0, |done| done.src.len());
                return result;
            }
            let Ok((number, result)) = self.results.recv() else {
                return Err(BuildError::Threads(std::io::Error::other("a thread that compresses ended")));
            };
            self.early.insert(number, result);
        }
    }
}

/// Compresses segments until the builder submits no more.
fn work(options: &Options, queue: &Queue, done: &Sender<(u64, Result<Done, BuildError>)>) {
    let mut encoders = BTreeMap::new();
    loop {
        // The lock is held while the thread waits: the others wait for the lock.
        let job = match &*lock(&queue.0) {
            Some(jobs) => jobs.recv(),
            None => return,
        };
        let Ok(job) = job else { return };
        let begun = Instant::now();
        let segment = compress(&job, options, &mut encoders);
        let result = segment.map(|segment| Done { segment, elapsed: begun.elapsed(), src: job.src });
        if done.send((job.number, result)).is_err() {
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
