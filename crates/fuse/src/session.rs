//! [`start`]: negotiates with the kernel and starts the threads that serve a mount.

use crate::FuseError;
use crate::abi::{self, InitOut};
use crate::answer::{Access, Answer, answer};
use crate::channel::{Channel, ReceiveBuffer, ReplyBuffer};
use crate::filesystem::{FileSystem, Unsupported};
use crate::negotiate::{Features, Offer, Settings, accept};
use crate::request::{self, Init, Malformed, Operation, Request};
use crate::types::Errno;
use pagefold_sys::SysError;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use zerocopy::IntoBytes;

/// The threads that serve a mount. They end when it is unmounted; dropping this neither ends them nor waits for them.
#[derive(Debug)]
pub struct SessionThreads(Vec<JoinHandle<io::Result<()>>>);

impl SessionThreads {
    /// Whether all of them have ended.
    pub fn are_finished(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }

    /// Waits for all of them, and returns the first error.
    pub fn join(self) -> Result<(), FuseError> {
        let results = self.0.into_iter().map(JoinHandle::join).collect::<Vec<_>>();
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
        SessionThreads(vec![thread])
    }
}

/// The state that all threads of a mount share.
struct Session<F> {
    file_system: F,
    access: Access,
    settings: Settings,
}

/// Negotiates the FUSE protocol with the kernel over `channel`, which is mounted already, and starts `threads` threads
/// that serve requests. After a failure, those that run end with the mount.
pub(crate) fn start<F: FileSystem>(
    mut file_system: F,
    channel: File,
    access: Access,
    threads: usize,
) -> Result<SessionThreads, FuseError> {
    let first = Channel::new(channel);
    let settings = negotiate(&mut file_system, &first)?;
    let session = Arc::new(Session { file_system, access, settings });
    let further = (1..threads).map(|_| first.another()).collect::<Result<Vec<_>, _>>()?;
    let channels = std::iter::once(first).chain(further);
    let started = channels.enumerate().map(|(i, channel)| {
        let (session, channel) = (session.clone(), Arc::new(channel));
        Builder::new().name(format!("fuse-{i}")).spawn(move || session.serve(&channel))
    });
    let started = started.collect::<io::Result<Vec<_>>>();
    started.map(SessionThreads).map_err(|e| SysError::io("starting the FUSE threads", &e).into())
}

impl<F: FileSystem> Session<F> {
    /// Serves requests until the file system is unmounted.
    fn serve(self: &Arc<Self>, channel: &Arc<Channel>) -> io::Result<()> {
        let mut receive = ReceiveBuffer::new(self.settings.longest_write());
        let mut reply = ReplyBuffer::new(self.settings.reply_bytes());
        while let Some(bytes) = channel.receive(&mut receive)? {
            let (header, arguments) = request::split(bytes).map_err(invalid)?;
            let decoded = request::decode(&header, arguments);
            if decoded.is_ok_and(|request| self.file_system.waits(&request.operation)) {
                self.answer_apart(channel, header.unique, bytes);
            } else {
                self.answer(channel, header.unique, decoded, &mut reply);
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

fn invalid(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

/// Receives the kernel's offer, and replies with the settings that the file system chooses.
fn negotiate(file_system: &mut impl FileSystem, channel: &Channel) -> Result<Settings, FuseError> {
    let failed = |e: &io::Error| SysError::io("negotiating the FUSE protocol with the kernel", e);
    let mut buffer = ReceiveBuffer::new(0);
    let mut reply = ReplyBuffer::new(size_of::<InitOut>());
    loop {
        let received = channel.receive(&mut buffer).map_err(|e| failed(&e))?;
        let bytes = received.ok_or_else(|| failed(&io::ErrorKind::NotConnected.into()))?;
        let (header, arguments) = request::split(bytes).map_err(|e| failed(&invalid(e)))?;
        let decoded = request::decode(&header, arguments).map_err(|e| failed(&invalid(e)))?;
        let mut refuse = |errno| channel.reply(header.unique, &Err(Errno(errno)), &mut reply);
        let Operation::Init(init) = decoded.operation else {
            refuse(libc::EIO);
            return Err(failed(&invalid(Malformed)).into());
        };
        if init.major > abi::MAJOR {
            // The kernel then offers the version of this reply.
            send(channel, header.unique, [abi::MAJOR, abi::MINOR].as_bytes(), &mut reply);
            continue;
        }
        return match settings(file_system, &init) {
            Ok(settings) => {
                send(channel, header.unique, accept(&init, &settings).as_bytes(), &mut reply);
                Ok(settings)
            }
            Err(e) => {
                refuse(libc::EPROTO);
                Err(e)
            }
        };
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
