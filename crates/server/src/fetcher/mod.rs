//! The fetcher: a process that asks servers, for a process that decodes and is confined.
//!
//! A process forks it while it has one thread, before it is confined and before it parses the first foreign byte. The fetcher
//! resolves names, speaks TLS and HTTP, runs the programs that users name for logins, renews tokens, and has the caches in
//! memory and on disk. Its objects are those of the configuration that it was forked with: a request names one by its number.
//! So a peer that an attacker has taken over has no network, and can let the fetcher read only what the image is made of.
//!
//! | module | contents |
//! |---|---|
//! | `wire` | the messages between both |
//! | `process` | the fetcher's process |
//! | `objects` | its objects, and what requests do with them |
//! | `source` | an object as a source of bytes, for the peer |
//!
//! The bytes of reads pass through shared memory. Each connection has a slot in it, and one read under way: the fetcher copies
//! blocks there, and the reader copies as many bytes as it wants into its buffer before anything looks at them. So whatever
//! the other side does meanwhile only changes bytes, which are foreign anyway: Merkle trees are compared by the peer.
//!
//! The fetcher ends when its peer does. If it dies, reads fail; a server that is kept ends, and the next one has another.

mod objects;
mod process;
mod source;
#[cfg(test)]
mod tests;
mod wire;

use crate::mount::shares::{CacheShares, SLOTS};
use pagefold_backing::{BackingError, DeadlineScope};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::MediaConfig;
use pagefold_control::report::mount::RemoteReport;
use pagefold_image::verity::{Digest, Salt};
use pagefold_sys::forkshared::ForkShared;
use pagefold_sys::ready;
use pagefold_sys::respawn::Started;
use pagefold_sys::signal::Termination;
use process::Ends;
pub use source::FetchedSource;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
pub(crate) use wire::ObjectId;
use wire::{Answer, Failure, ObjectInfo, Request};
pub use wire::{LayerInfo, LayersInfo};

/// The time that a fetcher has for a read beyond its deadline, on a machine that is busy.
const GRACE: Duration = Duration::from_secs(30);
/// The time that a fetcher has to end.
const END_LIMIT: Duration = Duration::from_secs(1);
/// How long readers of a server wait for its end before they fail.
const SERVER_END_LIMIT: Duration = Duration::from_secs(5);

/// The connections to a fetcher.
pub struct Fetcher {
    control: Mutex<UnixStream>,
    slots: Slots,
    memory: Arc<ForkShared>,
    slot_bytes: usize,
    life: UnixStream,
    /// `None` in tests.
    child: Option<Started>,
    timeout: Duration,
    /// The part of the memory of the image that the fetcher and the slots take, bytes.
    memory_bytes: u64,
    without_cache: Option<String>,
    ends_with_fetcher: AtomicBool,
    /// The signals that end the waiting for servers.
    signals: OnceLock<OwnedFd>,
}

/// A connection, and the place of its bytes.
struct Slot {
    stream: UnixStream,
    offset: usize,
}

/// The slots that no thread uses.
struct Slots {
    free: Mutex<Vec<Slot>>,
    returned: Condvar,
}

impl Slots {
    /// Takes a slot, for one thread at a time; waits until one is free.
    fn take(&self) -> Slot {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match free.pop() {
                Some(slot) => return slot,
                None => free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Returns a slot. The next reader takes it: few slots have memory.
    fn give_back(&self, slot: Slot) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        self.returned.notify_one();
    }
}

impl Fetcher {
    /// Forks a fetcher for the objects of this configuration; `None` if it has none on servers. The calling process has one
    /// thread. A part of `memory_bytes` is for the ranges that servers sent. `report` gets a sentence when the cache on disk
    /// begins to fail.
    pub fn start(config: &MediaConfig, memory_bytes: u64, report: fn(&str)) -> Result<Option<Arc<Self>>> {
        let shares = CacheShares::of_media(config, memory_bytes);
        if shares.total_bytes == 0 {
            return Ok(None);
        }
        let (mut fetcher, ends) = Self::connected(shares, Duration::from_millis(config.remote.timeout_ms))?;
        fetcher.child = Some(process::start(ends, config.clone(), shares, report)?);
        // It has closed its copies of the descriptors of this process then, such as the lock of an instance.
        fetcher.without_cache = match fetcher.request(&Request::Hello)? {
            Answer::Hello { without_cache } => without_cache,
            answer => return Err(unexpected(&answer)),
        };
        Ok(Some(Arc::new(fetcher)))
    }

    /// A fetcher that nobody is connected to yet, and its ends.
    fn connected(shares: CacheShares, timeout: Duration) -> Result<(Self, Ends)> {
        let failed = |e| CliError::io("connecting a fetcher", &e);
        let slot_bytes = shares.slot_bytes;
        let memory = Arc::new(ForkShared::new(SLOTS * slot_bytes)?);
        let (life, their_life) = UnixStream::pair().map_err(failed)?;
        let (control, their_control) = UnixStream::pair().map_err(failed)?;
        let (mut free, mut theirs) = (Vec::new(), Vec::new());
        for n in 0..SLOTS {
            let (stream, their_stream) = UnixStream::pair().map_err(failed)?;
            stream.set_read_timeout(Some(timeout.saturating_add(GRACE))).map_err(failed)?;
            free.push(Slot { stream, offset: n * slot_bytes });
            theirs.push(their_stream);
        }
        let ends = Ends { life: their_life, control: their_control, slots: theirs, memory: memory.clone() };
        let fetcher = Fetcher {
            control: Mutex::new(control),
            slots: Slots { free: Mutex::new(free), returned: Condvar::new() },
            memory,
            slot_bytes,
            life,
            child: None,
            timeout,
            memory_bytes: shares.total_bytes,
            without_cache: None,
            ends_with_fetcher: AtomicBool::new(false),
            signals: OnceLock::new(),
        };
        Ok((fetcher, ends))
    }

    /// Ends the fetcher when a signal arrives while a request waits for its answer, which fails. The signals are blocked, and
    /// stay for the caller to take: a download of a whole object takes as long as its server does.
    pub fn end_on(&self, signals: &Termination) -> Result<()> {
        let signals = signals.as_fd().try_clone_to_owned();
        let signals = signals.map_err(|e| CliError::io("listening for signals beside a fetcher", &e))?;
        self.signals.get_or_init(|| signals);
        Ok(())
    }

    /// The part of the memory of the image that the fetcher and the slots take, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The reason that there is no cache on disk, for users.
    pub fn without_cache(&self) -> Option<&str> {
        self.without_cache.as_deref()
    }

    /// The digest and salt that the manifest of a medium in a registry names; adds notes for users.
    pub(crate) fn verity_of(&self, medium: usize, notes: &mut Vec<String>) -> Result<Option<(Digest, Salt)>> {
        let (found, further) = match self.request(&Request::Verity { medium })? {
            Answer::Verity { found, notes } => (found, notes),
            answer => return Err(unexpected(&answer)),
        };
        notes.extend(further);
        let Some((digest, salt)) = found else { return Ok(None) };
        match (digest.parse(), salt.parse()) {
            (Ok(digest), Ok(salt)) => Ok(Some((digest, salt))),
            _ => Err(CliError::failed("the fetcher of this process answered nonsense")),
        }
    }

    /// Opens a medium that is one object, as it is: nothing of it is verified.
    pub fn open_medium(self: &Arc<Self>, medium: usize) -> Result<FetchedSource> {
        FetchedSource::open(self, ObjectId { medium, is_tree: false, layer: None })
    }

    /// The layers of a medium that is an image in a registry.
    pub fn layers(&self, medium: usize) -> Result<LayersInfo> {
        match self.request(&Request::Layers { medium })? {
            Answer::Layers(layers) => Ok(layers),
            answer => Err(unexpected(&answer)),
        }
    }

    /// Opens a layer of a medium that is an image in a registry. The caller closes it, so that the next one has its memory.
    pub fn open_layer(self: &Arc<Self>, medium: usize, layer: usize) -> Result<FetchedSource> {
        FetchedSource::open(self, ObjectId { medium, is_tree: false, layer: Some(layer) })
    }

    /// Closes the objects of a medium, and removes them from the cache, which may be wrong.
    pub(crate) fn forget(&self, medium: usize) -> Result<()> {
        Ok(self.request(&Request::Forget { medium }).map(drop)?)
    }

    fn open(&self, id: ObjectId) -> Result<ObjectInfo> {
        match self.request(&Request::Open(id))? {
            Answer::Opened(info) => Ok(info),
            answer => Err(unexpected(&answer)),
        }
    }

    /// The counters of all objects. `None` if the fetcher has died.
    pub fn report(&self) -> Option<RemoteReport> {
        match self.request(&Request::Report) {
            Ok(Answer::Report(report)) => Some(*report),
            _ => None,
        }
    }

    /// Lets readers wait when the fetcher has died: this process ends then, and another one answers what they read for.
    pub fn end_process_with_it(&self) {
        self.ends_with_fetcher.store(true, Ordering::Relaxed);
    }

    /// Fills `buf` from a range of an object, which is inside it.
    fn read(&self, object: ObjectId, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        let wanted_end = offset.saturating_add(buf.len() as u64);
        let slot = self.slots.take();
        let mut at = offset;
        let mut read = |piece: &mut [u8]| {
            let age_ns = DeadlineScope::begun().map(|begun| begun.elapsed().as_nanos() as u64);
            let len_bytes = piece.len() as u64;
            let request = Request::Read { object, offset: at, len_bytes, wanted_end, age_ns };
            self.exchange(&slot.stream, &request)?;
            at += len_bytes;
            match self.memory.read(slot.offset, piece) {
                true => Ok(()),
                false => Err(BackingError::Unreachable { what: "a slot is too short".into() }),
            }
        };
        let result = buf.chunks_mut(self.slot_bytes).try_for_each(&mut read);
        self.slots.give_back(slot);
        result
    }

    /// A request that may take time, beside others.
    fn request_by_slot(&self, request: &Request) -> Result<Answer, Failure> {
        let slot = self.slots.take();
        let is_long = matches!(request, Request::Prefetch { .. });
        let set_limit = |limit| {
            let limited = slot.stream.set_read_timeout(limit);
            limited.map_err(|e| CliError::io("setting the time of a fetcher", &e))
        };
        // A list names long ranges, each request for which has its time.
        let limited = if is_long { set_limit(None) } else { Ok(()) };
        let result = limited.map_err(Failure::from).and_then(|()| self.exchange(&slot.stream, request));
        let limited = if is_long { set_limit(Some(self.timeout.saturating_add(GRACE))) } else { Ok(()) };
        self.slots.give_back(slot);
        limited.map_err(Failure::from).and(result)
    }

    fn request(&self, request: &Request) -> Result<Answer, Failure> {
        let stream = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        self.exchange(&stream, request)
    }

    /// Sends a request and receives the answer. Ends the fetcher if it answers none, or nonsense.
    fn exchange(&self, stream: &UnixStream, request: &Request) -> Result<Answer, Failure> {
        self.ask(stream, request).unwrap_or_else(|e| {
            let _ = self.life.shutdown(Shutdown::Both);
            // A late answer must not be that to the next request.
            let _ = stream.shutdown(Shutdown::Both);
            if self.ends_with_fetcher.load(Ordering::Relaxed) {
                std::thread::sleep(SERVER_END_LIMIT);
            }
            Err(Failure::Other(e))
        })
    }

    /// Sends a request and receives the answer, unless a signal comes first.
    fn ask(&self, stream: &UnixStream, request: &Request) -> Result<Result<Answer, Failure>> {
        wire::send_request(stream, request)?;
        if let Some(signals) = self.signals.get() {
            // Reads have a limit; others take as long as servers do.
            let is_read = matches!(request, Request::Read { .. });
            let limit = is_read.then(|| self.timeout.saturating_add(GRACE));
            let [is_answered, is_signalled] = ready::wait([stream.as_fd(), signals.as_fd()], limit)?;
            if is_signalled && !is_answered {
                return Err(CliError::failed("interrupted"));
            }
            if !is_answered {
                return Err(CliError::failed("the fetcher of this process does not answer"));
            }
        }
        wire::receive_answer(stream)
    }

    /// Ends the fetcher.
    pub fn end(&self) {
        let _ = self.life.shutdown(Shutdown::Both);
        if let Some(child) = &self.child
            && child.process.wait(END_LIMIT) == Ok(true)
        {
            child.wait();
        }
    }
}

/// Readable when the fetcher has ended.
impl AsFd for Fetcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.end();
    }
}

fn unexpected(_: &Answer) -> CliError {
    CliError::failed("the fetcher of this process answered another request")
}
