//! [`start`]: negotiates with the kernel and starts the threads that serve a mount.

use crate::FuseError;
use crate::abi::{self, InitOut};
use crate::answer::{Access, Answer, answer};
use crate::channel::{Channel, ReceiveBuffer, ReplyBuffer};
use crate::filesystem::{FileSystem, Unsupported};
use crate::negotiate::{Features, Offer, Settings, accept};
use crate::request::{self, Init, Malformed, Operation, Request};
use crate::ring::{PreparedRings, Rings, StopAll};
use crate::types::{Errno, Transfer};
use pagefold_sys::SysError;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;
use zerocopy::IntoBytes;

/// The threads that serve a mount. They end when it is unmounted; dropping this neither ends them nor waits for them.
#[derive(Debug)]
pub struct SessionThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    transport: Transport,
}

impl SessionThreads {
    /// Whether all of them have ended.
    pub fn are_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// How requests reach them.
    pub fn transport(&self) -> &Transport {
        &self.transport
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
        SessionThreads { threads: vec![thread], transport: Transport::Device { without_rings: None } }
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

/// The state that all threads of a mount share.
pub(crate) struct Session<F> {
    pub(crate) file_system: F,
    pub(crate) access: Access,
    pub(crate) settings: Settings,
}

/// Negotiates the FUSE protocol with the kernel over `channel`, which is mounted already, and starts threads that serve
/// requests. All of them have begun when it returns. After a failure, those that run end with the mount.
pub(crate) fn start<F: FileSystem>(
    mut file_system: F,
    channel: File,
    access: Access,
    serving: Serving,
) -> Result<SessionThreads, FuseError> {
    let channel = Channel::new(channel);
    let (id, init) = receive_offer(&channel)?;
    let settings = match settings(&mut file_system, &init) {
        Ok(settings) => settings,
        Err(e) => {
            channel.reply(id, &Err(Errno(libc::EPROTO)), &mut ReplyBuffer::new(0));
            return Err(e);
        }
    };
    let session = Arc::new(Session { file_system, access, settings });
    let (rings, without_rings) = prepare_rings(&session, &channel, &init, serving.rings);
    let settings = settings.with_rings(rings.is_some());
    let mut reply = ReplyBuffer::new(size_of::<InitOut>());
    send(&channel, id, accept(&init, &settings).as_bytes(), &mut reply);
    match rings {
        None => {
            let threads = session.start_readers(channel, serving.threads)?;
            Ok(SessionThreads { threads, transport: Transport::Device { without_rings } })
        }
        Some(mut rings) => {
            rings.register()?;
            let ring_threads = rings.threads.len();
            let mut threads = session.start_readers(channel.until(rings.stop.clone()), 1)?;
            threads.append(&mut rings.threads);
            let buffers = serving.rings.map_or(0, |rings| ring_threads * rings.entries.max(1));
            let buffer_bytes = buffers * session.settings.ring_payload_bytes();
            let request_bytes = session.settings.read_bytes;
            let transport = Transport::Rings { threads: ring_threads, buffer_bytes, request_bytes };
            Ok(SessionThreads { threads, transport })
        }
    }
}

/// Makes the rings, if they are wanted. Otherwise returns why there are none.
fn prepare_rings<F: FileSystem>(
    session: &Arc<Session<F>>,
    channel: &Channel,
    init: &Init,
    wanted: Option<Rings>,
) -> (Option<PreparedRings>, Option<String>) {
    let Some(wanted) = wanted else { return (None, None) };
    if !Features(init.flags).contains(Features::OVER_IO_URING) {
        let reason =
            "the kernel does not offer FUSE over io_uring (its parameter is enable_uring of the module fuse)";
        return (None, Some(reason.into()));
    }
    match PreparedRings::new(session, channel.file(), wanted) {
        Ok(rings) => (Some(rings), None),
        Err(e) => (None, Some(e.to_string())),
    }
}

impl<F: FileSystem> Session<F> {
    /// Starts threads that read requests from `channel` and others like it, and waits until they have begun.
    fn start_readers(
        self: &Arc<Self>,
        first: Channel,
        threads: usize,
    ) -> Result<Vec<JoinHandle<io::Result<()>>>, FuseError> {
        let further = (1..threads).map(|_| first.another()).collect::<Result<Vec<_>, _>>()?;
        let (begin, begun) = std::sync::mpsc::channel();
        let channels = std::iter::once(first).chain(further);
        let started = channels.enumerate().map(|(i, channel)| {
            let (session, channel, begin) = (self.clone(), Arc::new(channel), begin.clone());
            Builder::new().name(format!("fuse-{i}")).spawn(move || session.serve(&channel, begin))
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
    fn serve(self: &Arc<Self>, channel: &Arc<Channel>, begin: Sender<()>) -> io::Result<()> {
        // Without this thread, requests to forget would pile up in the kernel.
        let _stop = channel.stop().cloned().map(StopAll);
        let mut receive = ReceiveBuffer::new(self.settings.longest_write());
        let mut reply = ReplyBuffer::new(self.settings.reply_bytes());
        self.file_system.begin_thread();
        let _ = begin.send(());
        drop(begin);
        while let Some(bytes) = channel.receive(&mut receive)? {
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
        Ok(())
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
            .and_then(|request| answer(&self.file_system, self.access, &request, reply.data()));
        channel.reply(id, &result, reply);
    }

    /// Answers a request on a separate thread; with EIO if none can be started.
    fn answer_apart(self: &Arc<Self>, channel: &Arc<Channel>, id: u64, bytes: &[u8]) {
        let (session, own, copied) = (self.clone(), channel.clone(), bytes.to_vec());
        let started = Builder::new().name("fuse-request".into()).spawn(move || {
            let mut reply = ReplyBuffer::new(session.settings.reply_bytes());
            let split = request::split(&copied);
            let decoded = split.and_then(|(header, arguments)| request::decode(&header, arguments));
            session.answer(&own, id, decoded, &mut reply);
        });
        if started.is_err() {
            channel.reply(id, &Err(Errno(libc::EIO)), &mut ReplyBuffer::new(0));
        }
    }
}

/// When a thread received a request, if the file system wants to know how long replies take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received(Option<Instant>);

impl Received {
    pub(crate) fn now<F: FileSystem>() -> Self {
        Received(F::TIMES_REPLIES.then(Instant::now))
    }

    /// Tells the file system that the request with this opcode was answered.
    pub(crate) fn replied<F: FileSystem>(self, file_system: &F, opcode: u32) {
        if let (Some(at), Some(transfer)) = (self.0, Transfer::of(opcode)) {
            file_system.replied(transfer, at.elapsed());
        }
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

fn settings(file_system: &mut impl FileSystem, init: &Init) -> Result<Settings, FuseError> {
    let unsupported = |what: String| FuseError::Unsupported(SysError::new(what, libc::EOPNOTSUPP));
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
