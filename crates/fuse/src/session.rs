//! [`start`]: negotiates with the kernel and starts the threads that serve a mount.

use crate::FuseError;
use crate::abi::{self, InitOut};
use crate::answer::{Access, Answer};
use crate::channel::{Channel, ReceiveBuffer, ReplyBuffer};
use crate::ending::{DISCONNECTED, Ending};
use crate::filesystem::{FileSystem, Unsupported};
use crate::interrupt::Interrupts;
use crate::negotiate::{Agreement, Features, Offer, Settings, accept};
use crate::request::{self, Init, Malformed, Operation, Request};
use crate::ring::{PreparedRings, Rings, StopAll};
use crate::state::{Received, Session};
use crate::types::Errno;
use pagefold_sys::{SysError, fusering};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};
use zerocopy::IntoBytes;

/// The threads that serve a mount. They end when it is unmounted; dropping this neither ends them nor waits for them.
#[derive(Debug)]
pub struct SessionThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    transport: Transport,
    kept: Option<Result<(), String>>,
    ending: Arc<Ending>,
}

/// The end of a thread that serves a mount, or of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEnd {
    /// Why the first thread ended, as a clause.
    pub reason: String,
    /// Whether it failed, and was not unmounted or aborted, or too many requests have panicked.
    pub is_failure: bool,
    /// Whether all of them have ended, so that every request fails.
    pub is_complete: bool,
}

impl SessionThreads {
    /// Whether all of them have ended.
    pub fn are_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// The end of the first of them, or of all; `None` while all serve.
    pub fn end(&self) -> Option<SessionEnd> {
        let reason = self.ending.reason()?.to_string();
        let is_failure = reason != DISCONNECTED;
        Some(SessionEnd { reason, is_failure, is_complete: self.are_finished() })
    }

    /// A descriptor that is readable from the end of the first of them on, for `poll`.
    pub fn first_end(&self) -> BorrowedFd<'_> {
        self.ending.first()
    }

    /// The counter of requests that panicked and failed with EIO.
    pub fn panics(&self) -> Arc<AtomicU64> {
        self.ending.panics()
    }

    /// How requests reach them.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Whether the mount outlives the process, or why it does not. `None` if nobody asked for that.
    pub fn kept(&self) -> Option<&Result<(), String>> {
        self.kept.as_ref()
    }

    /// Waits for all of them, and returns the first error.
    pub fn join(self) -> Result<(), FuseError> {
        let results = self.threads.into_iter().map(JoinHandle::join).collect::<Vec<_>>();
        results.into_iter().try_for_each(|result| match result {
            Ok(Ok(())) => Ok(()),
            // A thread that was reading when the connection was aborted gets ECONNABORTED.
            Ok(Err(e)) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            Ok(Err(e)) => Err(FuseError::Session(e.to_string())),
            Err(_) => Err(FuseError::Session("a FUSE thread panicked".into())),
        })
    }
}

#[cfg(test)]
impl From<JoinHandle<io::Result<()>>> for SessionThreads {
    fn from(thread: JoinHandle<io::Result<()>>) -> Self {
        let ending = Ending::new().unwrap_or_else(|e| panic!("{e}")).into();
        let transport = Transport::Device { without_rings: None };
        SessionThreads { threads: vec![thread], transport, kept: None, ending }
    }
}

/// How many threads serve a mount, and how requests reach them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serving {
    /// Threads that read requests from `/dev/fuse`; one with rings.
    pub threads: usize,
    /// The rings, if they are wanted. Where the kernel does not offer them, or they cannot be made, `/dev/fuse` serves.
    pub rings: Option<Rings>,
}

impl From<usize> for Serving {
    fn from(threads: usize) -> Self {
        Serving { threads, rings: None }
    }
}

/// How the requests of a mount reach its threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Through `/dev/fuse`.
    Device {
        /// The reason that rings do not serve, if they were wanted.
        without_rings: Option<String>,
    },
    /// Through io_uring.
    Rings {
        /// Threads with a ring.
        threads: usize,
        /// Bytes of the rings' buffers.
        buffer_bytes: usize,
        /// The longest read, bytes, for which a buffer has room.
        request_bytes: usize,
    },
}

/// A [`Keep`](crate::Keep), called with the channels of all threads and the result of the negotiation.
pub(crate) type KeepChannels<'a> = Box<dyn FnOnce(&[BorrowedFd<'_>], &Agreement) -> Result<(), String> + 'a>;

/// Why no mount outlives its server on this kernel.
const NO_RESEND: &str =
    "the kernel cannot give the requests of a dead server to another; that needs Linux 6.9";

/// Negotiates the FUSE protocol with the kernel over `channel`, which is mounted already, and starts threads that serve
/// requests; `open` opens further channels. All of them have begun when it returns. After a failure, those that run end with the mount.
///
/// With `keep`, requests come through `/dev/fuse`. If it fails, the mount is served nevertheless.
pub(crate) fn start<F: FileSystem>(
    mut file_system: F,
    channel: File,
    open: &dyn Fn() -> Result<File, SysError>,
    access: Access,
    serving: Serving,
    keep: Option<KeepChannels<'_>>,
) -> Result<SessionThreads, FuseError> {
    let channel = Channel::new(channel);
    let (id, init) = receive_offer(&channel)?;
    let can_be_kept = keep.is_some() && Features(init.flags).contains(Features::HAS_RESEND);
    let settings = match settings(&mut file_system, &init) {
        Ok(settings) if can_be_kept => {
            Settings { features: settings.features | Features::HAS_RESEND, ..settings }
        }
        Ok(settings) => settings,
        Err(e) => {
            channel.reply(id, &Err(Errno(libc::EPROTO)), &mut ReplyBuffer::new(0));
            return Err(e);
        }
    };
    let ending = Arc::new(Ending::new()?);
    let interrupts = Interrupts::new();
    let is_kept = can_be_kept;
    let session =
        Arc::new(Session { file_system, access, settings, is_kept, ending: ending.clone(), interrupts });
    let over_rings = settings.over_rings(serving.rings.map_or(0, |rings| rings.request_bytes));
    let (rings, without_rings) = prepare_rings(&session, &channel, &init, serving.rings, &over_rings);
    let settings = if rings.is_some() { over_rings } else { settings };
    let mut reply = ReplyBuffer::new(size_of::<InitOut>());
    send(&channel, id, accept(&init, &settings).as_bytes(), &mut reply);
    match rings {
        None => {
            let channels = channel.with_clones(serving.threads, open)?;
            let kept = keep.map(|keep| match can_be_kept {
                true => keep(
                    &channels.iter().map(|channel| channel.file().as_fd()).collect::<Vec<_>>(),
                    &Agreement { offer: Offer { features: Features(init.flags) }, settings },
                ),
                false => Err(NO_RESEND.into()),
            });
            let threads = session.start_readers(channels, settings)?;
            Ok(SessionThreads { threads, transport: Transport::Device { without_rings }, kept, ending })
        }
        Some(mut rings) => {
            rings.register()?;
            let ring_threads = rings.threads.len();
            let mut threads = session.start_readers(vec![channel.until(rings.stop.clone())], settings)?;
            threads.append(&mut rings.threads);
            let buffers = serving.rings.map_or(0, |rings| ring_threads * rings.entries.max(1));
            let buffer_bytes = buffers * settings.ring_payload_bytes();
            let request_bytes = settings.read_bytes;
            let transport = Transport::Rings { threads: ring_threads, buffer_bytes, request_bytes };
            Ok(SessionThreads { threads, transport, kept: None, ending })
        }
    }
}

/// Starts threads that serve a mount whose server is dead, or is killed before this is called. `channels` are those of
/// the former server, which it has given to its [`KeepChannels`]. Requests that it has received and not answered come again.
pub(crate) fn take_over<F: FileSystem>(
    mut file_system: F,
    channels: Vec<File>,
    access: Access,
    agreement: &Agreement,
) -> Result<SessionThreads, FuseError> {
    // It learns what the kernel can do; the settings are those of the first server.
    let Agreement { offer, settings } = *agreement;
    file_system.init(&offer).map_err(|Unsupported(what)| unsupported(what.into()))?;
    let ending = Arc::new(Ending::new()?);
    let interrupts = Interrupts::new();
    let session =
        Session { file_system, access, settings, is_kept: true, ending: ending.clone(), interrupts };
    let channels: Vec<_> = channels.into_iter().map(Channel::new).collect();
    if let Some(first) = channels.first() {
        let failed = |e| SysError::io("asking the kernel for the requests of the former server", &e);
        first.resend().map_err(failed)?;
    }
    let threads = Arc::new(session).start_readers(channels, settings)?;
    let transport = Transport::Device { without_rings: None };
    Ok(SessionThreads { threads, transport, kept: Some(Ok(())), ending })
}

/// Makes the rings, if they are wanted. Otherwise returns why there are none.
fn prepare_rings<F: FileSystem>(
    session: &Arc<Session<F>>,
    channel: &Channel,
    init: &Init,
    wanted: Option<Rings>,
    settings: &Settings,
) -> (Option<PreparedRings>, Option<String>) {
    let Some(wanted) = wanted else { return (None, None) };
    if !Features(init.flags).contains(Features::OVER_IO_URING) {
        return (None, Some(rings_not_offered()));
    }
    match PreparedRings::new(session, channel.file(), wanted, settings.ring_payload_bytes()) {
        Ok(rings) => (Some(rings), None),
        Err(e) => (None, Some(e.to_string())),
    }
}

/// Returns why the kernel does not offer rings to new mounts, and what an administrator can do about it.
pub fn rings_not_offered() -> String {
    match fusering::is_known() {
        true => format!(
            "the kernel does not offer FUSE over io_uring to new mounts; root can allow it: echo Y > {}",
            fusering::ENABLED
        ),
        false => {
            "this kernel has no FUSE over io_uring: it needs Linux 6.14 with CONFIG_FUSE_IO_URING, and the \
                  module fuse loaded"
                .into()
        }
    }
}

impl<F: FileSystem> Session<F> {
    /// Starts a thread for each channel that reads requests from it, with buffers for `settings`, and waits until they have
    /// begun.
    fn start_readers(
        self: &Arc<Self>,
        channels: Vec<Channel>,
        settings: Settings,
    ) -> Result<Vec<JoinHandle<io::Result<()>>>, FuseError> {
        let (begin, begun) = std::sync::mpsc::channel();
        let started = channels.into_iter().enumerate().map(|(i, channel)| {
            let (session, channel, begin) = (self.clone(), Arc::new(channel), begin.clone());
            Builder::new().name(format!("fuse-{i}")).spawn(move || session.serve(&channel, settings, begin))
        });
        let started = started.collect::<io::Result<Vec<_>>>();
        let started = started.map_err(|e| SysError::io("starting the FUSE threads", &e))?;
        for _ in &started {
            // A thread that has ended without a message has panicked: `join` reports that.
            let _ = begun.recv();
        }
        Ok(started)
    }

    /// Serves requests until the file system is unmounted.
    fn serve(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        settings: Settings,
        begin: Sender<()>,
    ) -> io::Result<()> {
        // Without this thread, requests to forget would pile up in the kernel.
        let _stop = channel.stop().cloned().map(StopAll);
        // Inside of `_stop`: the reason is noted before the other threads end because of this one.
        self.ending.watch(|| self.serve_requests(channel, settings, begin))
    }

    fn serve_requests(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        settings: Settings,
        begin: Sender<()>,
    ) -> io::Result<()> {
        let mut receive = ReceiveBuffer::new(settings.longest_write());
        let mut reply = ReplyBuffer::new(settings.reply_bytes());
        if self.is_kept {
            receive.lock();
            reply.lock();
        }
        self.file_system.begin_thread();
        let _ = begin.send(());
        drop(begin);
        loop {
            let Some(bytes) = channel.receive(&mut receive).map_err(unreadable)? else { return Ok(()) };
            let received = Received::now::<F>();
            let (header, arguments) = request::split(bytes).map_err(invalid)?;
            let decoded = request::decode(&header, arguments);
            if decoded.is_ok_and(|request| self.file_system.waits(&request.operation)) {
                self.answer_apart(channel, header.unique, bytes);
            } else {
                self.answer(channel, header.unique, decoded, &mut reply);
                received.replied(&self.file_system, header.opcode);
            }
        }
    }

    /// Answers one request.
    fn answer(
        &self,
        channel: &Channel,
        id: u64,
        decoded: Result<Request<'_>, Malformed>,
        reply: &mut ReplyBuffer,
    ) {
        let result = decoded
            .map_err(|Malformed| Errno(libc::EIO))
            .and_then(|request| self.answer_request(&request, reply.data()));
        channel.reply(id, &result, reply);
    }

    /// Answers a request on a separate thread; with EIO if none can be started, or if it panics: nobody else would answer.
    fn answer_apart(self: &Arc<Self>, channel: &Arc<Channel>, id: u64, bytes: &[u8]) {
        let (session, own, copied) = (self.clone(), channel.clone(), bytes.to_vec());
        let started = Builder::new().name("fuse-request".into()).spawn(move || {
            // The buffers are dropped, and the file system knows nothing of this thread.
            let answered = catch_unwind(AssertUnwindSafe(|| {
                let mut reply = ReplyBuffer::new(session.settings.reply_bytes());
                let split = request::split(&copied);
                let decoded = split.and_then(|(header, arguments)| request::decode(&header, arguments));
                session.answer(&own, id, decoded, &mut reply);
            }));
            if answered.is_err() {
                own.reply(id, &Err(Errno(libc::EIO)), &mut ReplyBuffer::new(0));
            }
        });
        if started.is_err() {
            channel.reply(id, &Err(Errno(libc::EIO)), &mut ReplyBuffer::new(0));
        }
    }
}

/// The error of a thread that cannot read requests. An aborted connection stays recognisable: it is no failure.
fn unreadable(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ECONNABORTED) => error,
        _ => io::Error::other(SysError::io("reading FUSE requests", &error)),
    }
}

fn invalid(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

/// Receives the kernel's offer. Returns which request it is, and what it offers.
fn receive_offer(channel: &Channel) -> Result<(u64, Init), FuseError> {
    let failed = |e: &io::Error| SysError::io("negotiating the FUSE protocol with the kernel", e);
    let mut buffer = ReceiveBuffer::new(0);
    let mut reply = ReplyBuffer::new(size_of::<InitOut>());
    loop {
        let received = channel.receive(&mut buffer).map_err(|e| failed(&e))?;
        let bytes = received.ok_or_else(|| failed(&io::ErrorKind::NotConnected.into()))?;
        let (header, arguments) = request::split(bytes).map_err(|e| failed(&invalid(e)))?;
        let decoded = request::decode(&header, arguments).map_err(|e| failed(&invalid(e)))?;
        let Operation::Init(init) = decoded.operation else {
            channel.reply(header.unique, &Err(Errno(libc::EIO)), &mut reply);
            return Err(failed(&invalid(Malformed)).into());
        };
        if init.major <= abi::MAJOR {
            return Ok((header.unique, init));
        }
        // The kernel then offers the version of this reply.
        send(channel, header.unique, [abi::MAJOR, abi::MINOR].as_bytes(), &mut reply);
    }
}

fn unsupported(what: String) -> FuseError {
    FuseError::Unsupported(SysError::new(what, libc::EOPNOTSUPP))
}

fn settings(file_system: &mut impl FileSystem, init: &Init) -> Result<Settings, FuseError> {
    if (init.major, init.minor) < (abi::MAJOR, abi::MINOR_MIN) {
        return Err(unsupported(format!(
            "the kernel's FUSE has version {}.{} of the protocol",
            init.major, init.minor
        )));
    }
    let offer = Offer { features: Features(init.flags) };
    file_system.init(&offer).map_err(|Unsupported(what)| unsupported(what.into()))
}

fn send(channel: &Channel, id: u64, data: &[u8], reply: &mut ReplyBuffer) {
    if let Some(target) = reply.data().get_mut(..data.len()) {
        target.copy_from_slice(data);
        channel.reply(id, &Ok(Answer::Buffer(data.len())), reply);
    }
}

#[cfg(test)]
mod tests;
