//! The transport over io_uring: threads with rings, to which the kernel sends the requests of their CPU.
//!
//! Requests are answered in the entries of the rings: the file system puts the data of a read where the kernel takes
//! them from. The kernel sends requests to forget through `/dev/fuse` nevertheless, so one thread reads from there.
//!
//! All rings are made before the kernel is asked to use them, and it is asked whether it takes their commands at all: once
//! rings are negotiated, it sends no request until every queue has an entry, and it does not return to `/dev/fuse`.
//! `affinity` says on which CPUs the threads run.

mod affinity;
mod unsent;

use crate::abi::{InHeader, OutHeader};
use crate::answer::Answer;
use crate::filesystem::FileSystem;
use crate::request::{self, Arguments, Malformed};
use crate::state::{Received, Session};
use crate::types::{Errno, error_in_reply};
use affinity::{QueueAffinity, ThreadAffinity};
use pagefold_sys::SysError;
use pagefold_sys::fusering::{self, Event, Exchange, FuseRing, StopEvent};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
pub(crate) use unsent::is_long;
use unsent::{LONG_BYTES, Unsent};
use zerocopy::{FromBytes, IntoBytes};

/// Room for the replies to requests that come with names or data: all of them are short.
const SHORT_REPLY_BYTES: usize = 256;

/// How many rings there are. The kernel has one queue for each CPU that there may ever be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings {
    /// Threads for each queue, each with a ring. Several serve requests of one CPU beside each other.
    pub threads_per_queue: usize,
    /// Entries of each ring, which have a buffer of the longest request each.
    pub entries: usize,
    /// The longest request, bytes, if that of the file system is longer. Without rings it has no effect.
    pub request_bytes: usize,
}

/// Threads that have made their rings, and wait for [`register`](Self::register).
pub(crate) struct PreparedRings {
    pub(crate) threads: Vec<JoinHandle<io::Result<()>>>,
    pub(crate) stop: Arc<StopEvent>,
    proceed: Vec<Sender<()>>,
    reports: Receiver<Result<(), SysError>>,
}

/// Ends all threads of a mount when the first of them ends, whatever the reason: the requests of its CPU would wait
/// forever. When no thread has a channel any more, the kernel fails all requests.
pub(crate) struct StopAll(pub(crate) Arc<StopEvent>);

impl Drop for StopAll {
    fn drop(&mut self) {
        self.0.signal();
    }
}

impl PreparedRings {
    /// Starts the threads. Each entry has `payload_bytes` bytes for a request's data and its reply. After a failure they
    /// end.
    pub(crate) fn new<F: FileSystem>(
        session: &Arc<Session<F>>,
        mount: &File,
        rings: Rings,
        payload_bytes: usize,
    ) -> Result<Self, SysError> {
        let queues = fusering::queues()?;
        check_commands(mount)?;
        let stop = Arc::new(StopEvent::new()?);
        let (report, reports) = channel();
        let mut prepared = PreparedRings { threads: Vec::new(), stop, proceed: Vec::new(), reports };
        for queue in 0..queues {
            let queue_affinity = Arc::new(QueueAffinity::default());
            for number in 0..rings.threads_per_queue.max(1) {
                let failed = |e: io::Error| SysError::io("starting a thread for FUSE requests", &e);
                let thread = RingThread {
                    session: session.clone(),
                    mount: mount.try_clone().map_err(failed)?,
                    queue,
                    number,
                    queue_affinity: queue_affinity.clone(),
                    entries: rings.entries.max(1),
                    payload_bytes,
                    stop: prepared.stop.clone(),
                    report: report.clone(),
                };
                let (proceed, proceeds) = channel();
                let name = format!("fuse-ring-{queue}.{number}");
                let started = Builder::new().name(name).spawn(move || thread.run(&proceeds));
                prepared.threads.push(started.map_err(failed)?);
                prepared.proceed.push(proceed);
            }
        }
        prepared.wait_for_reports()?;
        Ok(prepared)
    }

    /// Gives all entries to the kernel, after the mount was negotiated.
    pub(crate) fn register(&mut self) -> Result<(), SysError> {
        for proceed in &self.proceed {
            // A thread that has ended has reported why.
            let _ = proceed.send(());
        }
        self.wait_for_reports()
    }

    fn wait_for_reports(&self) -> Result<(), SysError> {
        let gone = || SysError::new("starting the threads for FUSE requests", libc::EIO);
        self.threads.iter().try_for_each(|_| self.reports.recv().map_err(|_| gone())?)
    }
}

/// Checks that the kernel takes commands of rings, on a thread that ends at once: the kernel may start a worker for it.
fn check_commands(mount: &File) -> Result<(), SysError> {
    const WHAT: &str = "checking the rings for FUSE requests";
    std::thread::scope(|scope| {
        let check = Builder::new().name("fuse-ring-check".into());
        let checking = check.spawn_scoped(scope, || fusering::check_commands(mount));
        let checked = checking.map_err(|e| SysError::io(WHAT, &e))?.join();
        checked.unwrap_or_else(|_| Err(SysError::new(WHAT, libc::EIO)))
    })
}

struct RingThread<F> {
    session: Arc<Session<F>>,
    mount: File,
    queue: usize,
    /// The number among the threads of the queue.
    number: usize,
    queue_affinity: Arc<QueueAffinity>,
    entries: usize,
    payload_bytes: usize,
    stop: Arc<StopEvent>,
    report: Sender<Result<(), SysError>>,
}

impl<F: FileSystem> RingThread<F> {
    fn run(self, proceeds: &Receiver<()>) -> io::Result<()> {
        let _stop = StopAll(self.stop.clone());
        let queue_affinity = self.queue_affinity.clone();
        let mut affinity = ThreadAffinity::new(&queue_affinity, self.number, self.queue);
        let made = FuseRing::new(&self.mount, self.queue, self.entries, self.payload_bytes, &self.stop);
        let RingThread { session, mount, report, .. } = self;
        drop(mount);
        session.file_system.begin_thread();
        let mut ring = match made {
            Ok(ring) => ring,
            Err(e) => {
                let _ = report.send(Err(e));
                return Ok(());
            }
        };
        let _ = report.send(Ok(()));
        if proceeds.recv().is_err() {
            return Ok(());
        }
        let registered = ring.register();
        let is_registered = registered.is_ok();
        let _ = report.send(registered);
        drop(report);
        if !is_registered {
            return Ok(());
        }
        // Inside of `_stop`: the reason is noted before the other threads end because of this one.
        session.ending.watch(|| session.serve_ring(&mut ring, &mut affinity))
    }
}

impl<F: FileSystem> Session<F> {
    /// Serves the requests of a ring until the file system is unmounted, or another thread has ended.
    fn serve_ring(&self, ring: &mut FuseRing, affinity: &mut ThreadAffinity<'_>) -> io::Result<()> {
        let failed = |e: SysError| io::Error::other(e);
        let mut unsent = Unsent::new(ring.entries());
        loop {
            ring.wait().map_err(failed)?;
            affinity.begin();
            let mut received = Received::now::<F>();
            while let Some(event) = ring.next_event() {
                match event {
                    Event::Ended => return Ok(()),
                    Event::Refused(errno) => {
                        return Err(failed(SysError::new(
                            "giving a FUSE reply to the kernel through io_uring",
                            errno,
                        )));
                    }
                    Event::Request(number) => {
                        let exchange = ring.exchange(number).ok_or(io::ErrorKind::InvalidData)?;
                        if !unsent.is_empty() && is_long(&exchange) {
                            // The replies before must not wait for this one.
                            ring.submit().map_err(failed)?;
                            unsent.sent(received, &self.file_system);
                        }
                        let exchange = ring.exchange(number).ok_or(io::ErrorKind::InvalidData)?;
                        let data_bytes = exchange.payload_bytes;
                        let (opcode, len) = self.answer_in(exchange);
                        ring.commit(number, len).map_err(failed)?;
                        unsent.add(opcode);
                        if data_bytes.max(len) >= LONG_BYTES {
                            ring.submit().map_err(failed)?;
                            unsent.sent(received, &self.file_system);
                            // The kernel has put further requests into the entries.
                            received = Received::now::<F>();
                        }
                    }
                }
            }
            unsent.sent(received, &self.file_system);
            affinity.end();
        }
    }

    /// Answers the request in an entry with a reply in the entry. Returns the request's opcode and the length of the data.
    pub(crate) fn answer_in(&self, exchange: Exchange<'_>) -> (u32, usize) {
        let Exchange { header, structure, payload, payload_bytes } = exchange;
        let request = InHeader::read_from_prefix(header).map(|(request, _)| request).unwrap_or_default();
        let (error, len) = match self.answer_with(&request, structure, payload, payload_bytes) {
            Ok(len) => (0, len),
            Err(e) => (error_in_reply(e), 0),
        };
        let reply = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique: request.unique };
        // There is room: the header's area is longer.
        let _ = reply.write_to_prefix(header);
        (request.opcode, len)
    }

    /// Puts the data of the reply at the beginning of `payload`, where names or data of the request may be.
    fn answer_with(
        &self,
        header: &InHeader,
        structure: &[u8],
        payload: &mut [u8],
        payload_bytes: usize,
    ) -> Result<usize, Errno> {
        let malformed = |Malformed| Errno(libc::EIO);
        if payload_bytes == 0 {
            let arguments = Arguments::Apart { structure, rest: &[] };
            let request = request::decode(header, arguments).map_err(malformed)?;
            let answer = self.answer_request(&request, payload)?;
            return match answer {
                Answer::Owned(data) => put(payload, &data),
                Answer::Buffer(len) => Ok(len),
                Answer::Nothing => Ok(0),
            };
        }
        let rest = payload.get(..payload_bytes).unwrap_or_default();
        let request = request::decode(header, Arguments::Apart { structure, rest }).map_err(malformed)?;
        let mut short = [0; SHORT_REPLY_BYTES];
        match self.answer_request(&request, &mut short)? {
            Answer::Owned(data) => put(payload, &data),
            Answer::Buffer(len) => put(payload, short.get(..len).unwrap_or_default()),
            Answer::Nothing => Ok(0),
        }
    }
}

fn put(payload: &mut [u8], data: &[u8]) -> Result<usize, Errno> {
    payload.get_mut(..data.len()).ok_or(Errno(libc::EIO))?.copy_from_slice(data);
    Ok(data.len())
}
