//! The threads that work on segments: they compress them, or find their chunks.
//!
//! The builder's thread submits segments and takes the results in an order of its choice, by ticket; so what is written
//! does not depend on which thread was faster. The builder takes a result before it submits a segment for which there is
//! no [capacity](Workers::has_capacity). The bound is in bytes: one long segment must not keep the other threads waiting because
//! short ones after it fill the queue.
//!
//! It also reads no further while [enough](Workers::has_enough) segments wait for a thread, and writes results that have
//! come: memory that serves for the next segment at once is still in the processor's caches.

use super::buffers::{Buffer, SharedBuffers};
use super::cutter::CutRules;
use super::input::{SegmentInput, Src};
use super::segment;
use super::stored::Segment;
use crate::compression::{Compression, Method};
use crate::options::Options;
use crate::{BuildError, Result};
use pagefold_codec::cluster::Format;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use pagefold_image::queue;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Longest time that the caller's wish to end waits for a segment, which may take minutes.
const SIGNAL_LATENCY: Duration = Duration::from_millis(100);
/// Bytes of the segments that wait for each thread: a thread that ends one has the next at hand. A longer segment counts as
/// this, because it is for one thread.
const WAITING_BYTES_PER_THREAD: usize = 2 << 20;
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

/// A segment to work on, with the instructions for it.
struct Job<W> {
    ticket: Ticket,
    src: Src,
    what: W,
}

/// The instructions for compressing a segment.
pub struct ToCompress {
    /// Where to cut it.
    pub cut: CutRules,
    /// The compression of its file; `None`: it is stored plain.
    pub compression: Option<Compression>,
}

/// The result of a thread's work on a segment.
pub struct Done<O> {
    /// The result.
    pub output: O,
    /// Time that the work took.
    pub elapsed: Duration,
    /// The memory of the source, unless the thread read it.
    pub src: Option<Buffer>,
}

/// The segments that wait for a thread.
pub struct Queue<W> {
    jobs: queue::Queue<Job<W>>,
    /// Whether the builder is done, or has failed: the threads need not finish their segments.
    is_stopped: AtomicBool,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Queue { jobs: queue::Queue::new(usize::MAX), is_stopped: AtomicBool::new(false) }
    }
}

impl<W> Queue<W> {
    fn push(&self, job: Job<W>, turn: Turn) {
        match turn {
            // It is never full.
            Turn::Last => _ = self.jobs.push(job),
            Turn::First => self.jobs.push_first(job),
        }
    }

    fn close(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.jobs.close();
        self.jobs.clear();
    }
}

/// The threads, and the queue to and from them. Dropping it ends the threads, which finish the segments they have.
pub struct Workers<'scope, W, O> {
    queue: &'scope Queue<W>,
    events: Receiver<Event<O>>,
    /// Results that came before they were asked for.
    early: HashMap<Ticket, Finished<O>>,
    submitted: u64,
    taken: u64,
    /// Bytes of the sources of segments that are submitted and not taken.
    under_way_bytes: usize,
    /// Bytes of those of them that no thread has begun, as they count for [`Workers::has_enough`].
    waiting_bytes: usize,
    /// Their number.
    waiting: usize,
    in_flight_bytes: usize,
    threads: usize,
}

/// A message of a thread to the builder.
enum Event<O> {
    /// It has begun a segment of this many bytes.
    Begun(usize),
    /// It has finished a segment.
    Finished(Ticket, Finished<O>),
}

/// The result of a segment, and the length of its source.
type Finished<O> = (Result<Done<O>>, usize);

impl<W, O> Drop for Workers<'_, W, O> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl<'scope, W: Send, O: Send + 'scope> Workers<'scope, W, O> {
    /// Starts the threads. Sources of up to `in_flight_bytes` are under way at once, or one. `new_worker` is called in each
    /// of them, and makes the function that works on segments.
    pub fn start<'env, F>(
        scope: &'scope Scope<'scope, 'env>,
        queue: &'scope Queue<W>,
        threads: usize,
        in_flight_bytes: usize,
        new_worker: impl Fn() -> F + Copy + Send + 'scope,
    ) -> Result<Self>
    where
        F: FnMut(&mut SegmentInput<'_>, W) -> Result<O>,
    {
        let (sender, events) = channel();
        // It closes the queue if a thread cannot be started.
        let workers = Workers {
            queue,
            events,
            early: HashMap::new(),
            submitted: 0,
            taken: 0,
            under_way_bytes: 0,
            waiting_bytes: 0,
            waiting: 0,
            in_flight_bytes,
            threads,
        };
        for number in 0..threads {
            let sender = sender.clone();
            std::thread::Builder::new()
                .name(format!("compress-{number}"))
                .spawn_scoped(scope, move || work(queue, &sender, new_worker()))
                .map_err(BuildError::Threads)?;
        }
        Ok(workers)
    }

    /// Whether a segment of this length may be submitted before one is taken.
    pub fn has_capacity(&self, src_bytes: usize) -> bool {
        let segments = self.submitted - self.taken;
        segments == 0
            || self.under_way_bytes + src_bytes <= self.in_flight_bytes
                && segments < SEGMENTS_PER_THREAD_MAX * self.threads as u64
    }

    /// Whether the segments that wait for a thread are enough for now.
    pub fn has_enough(&mut self) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.note(event);
        }
        self.waiting_bytes >= WAITING_BYTES_PER_THREAD * self.threads
    }

    /// The number of segments that no thread has begun, as far as the events tell that were noted.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether the result of a segment has come, and is not taken.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.early.contains_key(&ticket)
    }

    /// Waits until a thread begins or finishes a segment. `while_waiting` is called now and then, and may end it.
    pub fn wait(&mut self, mut while_waiting: impl FnMut() -> Result<()>) -> Result<()> {
        loop {
            match self.events.recv_timeout(SIGNAL_LATENCY) {
                Ok(event) => {
                    self.note(event);
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => while_waiting()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(BuildError::Threads(std::io::Error::other("a thread that compresses ended")));
                }
            }
        }
    }

    fn note(&mut self, event: Event<O>) {
        match event {
            Event::Begun(src_bytes) => {
                self.waiting_bytes -= waiting_bytes(src_bytes);
                self.waiting -= 1;
            }
            Event::Finished(ticket, result) => drop(self.early.insert(ticket, result)),
        }
    }

    /// Submits a segment.
    pub fn submit(&mut self, src: Src, what: W, turn: Turn) -> Ticket {
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.under_way_bytes += src.len();
        self.waiting_bytes += waiting_bytes(src.len());
        self.waiting += 1;
        self.queue.push(Job { ticket, src, what }, turn);
        ticket
    }

    /// Waits for the result of a segment, which is taken once. `while_waiting` is called now and then, and may end it.
    pub fn take(&mut self, ticket: Ticket, mut while_waiting: impl FnMut() -> Result<()>) -> Result<Done<O>> {
        self.taken += 1;
        loop {
            if let Some((result, src_bytes)) = self.early.remove(&ticket) {
                self.under_way_bytes -= src_bytes;
                return result;
            }
            self.wait(&mut while_waiting)?;
        }
    }
}

/// Returns as how many bytes a segment counts while it waits.
fn waiting_bytes(src_bytes: usize) -> usize {
    src_bytes.min(WAITING_BYTES_PER_THREAD)
}

/// Works on segments until the builder is done.
fn work<W, O>(
    queue: &Queue<W>,
    sender: &Sender<Event<O>>,
    mut worker: impl FnMut(&mut SegmentInput<'_>, W) -> Result<O>,
) {
    let mut memory = Buffer::default();
    while let Some(Job { ticket, mut src, what }) = queue.jobs.next() {
        let src_bytes = src.len();
        if sender.send(Event::Begun(src_bytes)).is_err() {
            return;
        }
        // The builder waits for each segment, so it must hear of a panic too, whose message was printed.
        let worked = catch_unwind(AssertUnwindSafe(|| {
            let (mut input, begun) = (src.input(&mut memory), Instant::now());
            let output = worker(&mut input, what)?;
            // Waiting for a disk is no part of it.
            Ok((output, begun.elapsed().saturating_sub(input.reading())))
        }));
        let worked =
            worked.unwrap_or_else(|_| Err(BuildError::Threads(std::io::Error::other("it panicked"))));
        let result = worked.map(|(output, elapsed)| Done { output, elapsed, src: src.into_memory() });
        if sender.send(Event::Finished(ticket, (result, src_bytes))).is_err() {
            return;
        }
    }
}

/// Makes the function with which a thread compresses segments of this queue, in memory of `blocks_memory`. It keeps an encoder for each
/// compression.
pub fn compressor(
    options: &Options,
    queue: &Queue<ToCompress>,
    blocks_memory: &SharedBuffers,
) -> impl FnMut(&mut SegmentInput<'_>, ToCompress) -> Result<Segment> {
    let (mut encoders, is_stopped) = (BTreeMap::new(), &queue.is_stopped);
    move |input, ToCompress { cut, compression }| {
        // Blocks that do not compress take as much as the source.
        let room = blocks_memory.take(input.len());
        let Some(compression) = compression else { return Ok(segment::plain(input.all()?, room)) };
        let encoder = match encoders.entry(compression) {
            std::collections::btree_map::Entry::Occupied(made) => made.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(Encoder::new(&config(compression, options))?)
            }
        };
        cut.compress_input(input, room, encoder, is_stopped)
    }
}

/// The encoder's configuration for a compression.
pub fn config(compression: Compression, options: &Options) -> EncoderConfig {
    let level = compression.level;
    let window_bytes = compression.window_bytes(options.cluster_bytes).unwrap_or(options.lz4_window_bytes);
    match compression.method {
        Method::Lz4 => EncoderConfig::Lz4 { window_bytes },
        Method::Lz4Hc => EncoderConfig::Lz4Hc { window_bytes, level },
        Method::Zstd => EncoderConfig::Zstd { max_window_bytes: window_bytes, level },
        Method::Deflate => EncoderConfig::Deflate { level },
        Method::Lzma => EncoderConfig::MicroLzma { dict_bytes: window_bytes, level, extreme: false },
    }
}

/// The format of a compression's clusters, with the limits that the image declares.
pub fn format(compression: Compression, options: &Options) -> Format {
    config(compression, options).format()
}
