//! The messages between a server and its broker, over a pair of stream sockets.
//!
//! Both are processes of the same program, so the messages have no version: a header of eight bytes with a letter and the
//! length of the payload (`u32`, little-endian), then the payload. A descriptor is attached to the header (SCM_RIGHTS). The
//! server waits for the answer to each request. The broker takes the server for hostile, and answers with JSON.

use pagefold_block::loop_export::{ExportError, Unavailable};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_fuse::FuseError;
use pagefold_image::startup::list::LIST_BYTES_MAX;
use pagefold_sys::blockuse::BlockUse;
use pagefold_sys::fusermount::HelperError;
use pagefold_sys::handover::{self, HEADER_BYTES};
use pagefold_sys::{SysError, ready};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Longest payload, bytes: a start-up list.
const PAYLOAD_BYTES_MAX: usize = LIST_BYTES_MAX + 1;

/// A request: its letter, and the payload and descriptor that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Mount. Payload: the longest read, bytes, `u64`. Answer: the channel, and JSON `[major, minor, is_by_helper]`.
    Mount = b'M',
    /// Open an unconnected channel of FUSE, which is the answer.
    OpenChannel = b'C',
    /// Set the read-ahead of the mount. Payload: KiB, `u64`.
    SetReadAhead = b'A',
    /// Unmount.
    Unmount = b'U',
    /// End the former server, whose descriptor is attached if it lives, and which the state file names; record this one there.
    TakeTurn = b'T',
    /// Start a keeper, with the attached socket as its standard input.
    StartKeeper = b'K',
    /// Check that the start-up list can be written.
    CheckList = b'c',
    /// Write the start-up list, the payload.
    WriteList = b'L',
    /// Remove the files of the instance.
    RemoveFiles = b'R',
    /// Attach a loop device to the file of the mount. Payload: [`AttachRequest`]; answer: [`Attached`].
    Attach = b'l',
    /// The state of the loop device. Answer: [`LoopStatus`].
    LoopStatus = b'i',
    /// Begin a change of the size of the loop device. Payload: whether to refuse one that is in use, `u64`.
    BeginResize = b'b',
    /// End that change. Payload: the size, bytes, `u64`.
    FinishResize = b'f',
    /// Detach the loop device. Payload: whether only one that is not in use, `u64`.
    Detach = b'd',
    /// Open the attached file anew, which is the answer.
    Reopen = b'o',
    /// Record the size of the disk in the state file. Payload: bytes, `u64`.
    RecordSize = b's',
    /// Record that the device was closed in an orderly way.
    MarkEnded = b'e',
}

/// The properties of a loop device to attach.
#[derive(Debug, Serialize, Deserialize)]
pub struct AttachRequest {
    pub read_ahead_kib: u64,
    pub io_kib: u64,
}

/// A loop device that was attached.
#[derive(Debug, Serialize, Deserialize)]
pub struct Attached {
    pub path: PathBuf,
    /// The device and inode number of its file.
    pub identity: (u64, u64),
}

/// The state of a loop device.
#[derive(Debug, Serialize, Deserialize)]
pub struct LoopStatus {
    pub is_attached: bool,
    /// Absent if it cannot be read.
    pub len_bytes: Option<u64>,
    pub claims: Vec<Claim>,
}

/// A [`BlockUse`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Claim {
    Mounted(#[serde(with = "pagefold_control::path")] PathBuf),
    Swap(u64),
    Holder(String),
    Claimed,
    Open(u32, String),
}

impl From<BlockUse> for Claim {
    fn from(of: BlockUse) -> Self {
        match of {
            BlockUse::Mounted { mount_point } => Claim::Mounted(mount_point),
            BlockUse::Swap { used_bytes } => Claim::Swap(used_bytes),
            BlockUse::Holder { name } => Claim::Holder(name),
            BlockUse::Claimed => Claim::Claimed,
            BlockUse::Open { pid, command } => Claim::Open(pid, command),
        }
    }
}

impl From<Claim> for BlockUse {
    fn from(claim: Claim) -> Self {
        match claim {
            Claim::Mounted(mount_point) => BlockUse::Mounted { mount_point },
            Claim::Swap(used_bytes) => BlockUse::Swap { used_bytes },
            Claim::Holder(name) => BlockUse::Holder { name },
            Claim::Claimed => BlockUse::Claimed,
            Claim::Open(pid, command) => BlockUse::Open { pid, command },
        }
    }
}

impl Operation {
    fn of(letter: u8) -> Option<Self> {
        use Operation::*;
        let all = [
            Mount,
            OpenChannel,
            SetReadAhead,
            Unmount,
            TakeTurn,
            StartKeeper,
            CheckList,
            WriteList,
            RemoveFiles,
            Attach,
            LoopStatus,
            BeginResize,
            FinishResize,
            Detach,
            Reopen,
            RecordSize,
            MarkEnded,
        ];
        all.into_iter().find(|operation| *operation as u8 == letter)
    }
}

/// The letters of answers.
const DONE: u8 = b'=';
const FAILED: u8 = b'!';

/// The answer to a request that was carried out.
#[derive(Debug, Default)]
pub struct Answer {
    /// JSON.
    pub payload: Vec<u8>,
    /// A descriptor.
    pub fd: Option<OwnedFd>,
}

/// The number that is the payload of a request.
pub fn number(payload: &[u8]) -> Result<u64> {
    let bytes = payload.try_into().map(u64::from_le_bytes);
    bytes.map_err(|_| CliError::failed("a request without its number"))
}

/// Why a request was not carried out.
#[derive(Debug, Serialize, Deserialize)]
pub enum Failure {
    /// Something else is mounted there.
    Taken {
        #[serde(with = "pagefold_control::path")]
        path: PathBuf,
    },
    /// `/dev/fuse` cannot be opened.
    Open { what: String, errno: i32 },
    /// mount(2) failed.
    Mount { what: String, errno: i32 },
    /// `fusermount3` cannot be started.
    Missing { what: String, errno: i32 },
    /// `fusermount3` failed.
    Refused { reason: String },
    /// A loop device is in use.
    InUse {
        #[serde(with = "pagefold_control::path")]
        device: PathBuf,
        claims: Vec<Claim>,
    },
    /// There is no loop device, or this process may not use one.
    NoLoop { what: String, errno: i32 },
    /// The loop driver does no direct I/O.
    NoDirectIo,
    /// Another system call failed.
    System { what: String, errno: i32 },
    /// Something else failed.
    Other(CliError),
}

/// Sends a message with at most one descriptor.
pub fn send(stream: &UnixStream, letter: u8, fds: &[BorrowedFd<'_>], payload: &[u8]) -> Result<()> {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let [a, b, c, d] = len.to_le_bytes();
    handover::send_message(stream, [letter, 0, 0, 0, a, b, c, d], fds)?;
    let mut stream = stream;
    stream.write_all(payload).map_err(|e| broken(&e))
}

/// Receives a message: its letter, payload and descriptor. `None` if the peer has ended.
fn receive(stream: &UnixStream) -> Result<Option<(u8, Answer)>> {
    ready::wait([stream.as_fd()], None)?;
    let mut fds = Vec::new();
    let Some(header) = handover::recv_message(stream, &mut fds)? else { return Ok(None) };
    let [letter, _, _, _, len @ ..]: [u8; HEADER_BYTES] = header;
    let len = u32::from_le_bytes(len) as usize;
    if len > PAYLOAD_BYTES_MAX || fds.len() > 1 {
        return Err(CliError::failed("a malformed message between a server and its broker"));
    }
    let mut payload = vec![0; len];
    let mut stream = stream;
    stream.read_exact(&mut payload).map_err(|e| broken(&e))?;
    Ok(Some((letter, Answer { payload, fd: fds.pop() })))
}

/// Receives the answer to a request.
pub fn receive_answer(stream: &UnixStream) -> Result<std::result::Result<Answer, Failure>> {
    let gone = || CliError::failed("the broker of this server has died");
    match receive(stream)?.ok_or_else(gone)? {
        (DONE, answer) => Ok(Ok(answer)),
        (_, answer) => {
            let failure = serde_json::from_slice(&answer.payload);
            Ok(Err(failure.map_err(|e| CliError::failed(format!("the broker answered nonsense: {e}")))?))
        }
    }
}

/// Receives a request: the operation, its payload and descriptor. `None` if the server has ended.
pub fn receive_request(stream: &UnixStream) -> Result<Option<(Operation, Answer)>> {
    let Some((letter, rest)) = receive(stream)? else { return Ok(None) };
    let operation =
        Operation::of(letter).ok_or_else(|| CliError::failed("an unknown request to a broker"))?;
    Ok(Some((operation, rest)))
}

/// Answers a request.
pub fn answer(stream: &UnixStream, result: std::result::Result<Answer, Failure>) -> Result<()> {
    match result {
        Ok(answer) => send(stream, DONE, answer.fd.as_ref().map(AsFd::as_fd).as_slice(), &answer.payload),
        Err(failure) => {
            // An answer that cannot be encoded must not end the broker.
            let text = serde_json::to_vec(&failure).or_else(|e| {
                serde_json::to_vec(&Failure::Other(CliError::failed(format!("answering: {e}"))))
            });
            send(stream, FAILED, &[], &text.map_err(|e| CliError::failed(e.to_string()))?)
        }
    }
}

fn broken(e: &std::io::Error) -> CliError {
    CliError::io("the connection between a server and its broker", e)
}

impl From<SysError> for Failure {
    fn from(SysError { what, errno }: SysError) -> Self {
        Failure::System { what, errno }
    }
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Failure::Other(error)
    }
}

impl From<HelperError> for Failure {
    fn from(error: HelperError) -> Self {
        match error {
            HelperError::Missing(SysError { what, errno }) => Failure::Missing { what, errno },
            HelperError::Refused { reason } => Failure::Refused { reason },
            HelperError::System(e) => e.into(),
        }
    }
}

impl From<FuseError> for Failure {
    fn from(error: FuseError) -> Self {
        match error {
            FuseError::Taken { path } => Failure::Taken { path },
            FuseError::Open(SysError { what, errno }) => Failure::Open { what, errno },
            FuseError::Mount(SysError { what, errno }) => Failure::Mount { what, errno },
            FuseError::Helper { source, .. } => source.into(),
            FuseError::System(e) | FuseError::Unsupported(e) => e.into(),
            FuseError::Session(why) => Failure::Other(CliError::failed(why)),
        }
    }
}

impl From<Failure> for FuseError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Taken { path } => FuseError::Taken { path },
            Failure::Open { what, errno } => FuseError::Open(SysError { what, errno }),
            Failure::Mount { what, errno } => FuseError::Mount(SysError { what, errno }),
            Failure::System { what, errno } => FuseError::System(SysError { what, errno }),
            Failure::Other(e) => FuseError::Session(e.message),
            failure @ (Failure::InUse { .. } | Failure::NoLoop { .. } | Failure::NoDirectIo) => {
                FuseError::System(failure.into())
            }
            failure => FuseError::Helper { path: PathBuf::new(), source: failure.into() },
        }
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::InUse { device, uses } => {
                Failure::InUse { device, claims: uses.into_iter().map(Into::into).collect() }
            }
            ExportError::Unavailable(Unavailable::Loop(SysError { what, errno })) => {
                Failure::NoLoop { what, errno }
            }
            ExportError::Unavailable(Unavailable::DirectIo) => Failure::NoDirectIo,
            ExportError::System(e) => e.into(),
            other => Failure::Other(CliError::failed(other.to_string())),
        }
    }
}

impl From<Failure> for ExportError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::InUse { device, claims } => {
                ExportError::InUse { device, uses: claims.into_iter().map(Into::into).collect() }
            }
            Failure::NoLoop { what, errno } => Unavailable::Loop(SysError { what, errno }).into(),
            Failure::NoDirectIo => Unavailable::DirectIo.into(),
            Failure::Other(e) => ExportError::Session(e.message),
            failure => ExportError::System(failure.into()),
        }
    }
}

impl From<Failure> for HelperError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Missing { what, errno } => HelperError::Missing(SysError { what, errno }),
            Failure::Refused { reason } => HelperError::Refused { reason },
            failure => HelperError::System(failure.into()),
        }
    }
}

impl From<Failure> for SysError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Open { what, errno }
            | Failure::Mount { what, errno }
            | Failure::Missing { what, errno }
            | Failure::NoLoop { what, errno }
            | Failure::System { what, errno } => SysError { what, errno },
            Failure::InUse { device, .. } => SysError::new(device.display().to_string(), libc::EBUSY),
            Failure::NoDirectIo => SysError::new(Unavailable::DirectIo.to_string(), libc::EOPNOTSUPP),
            Failure::Taken { path } => SysError::new(path.display().to_string(), libc::EBUSY),
            Failure::Refused { reason } => SysError::new(reason, libc::EIO),
            Failure::Other(e) => SysError::new(e.message, libc::EIO),
        }
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Other(e) => e,
            Failure::Taken { path } => {
                CliError::new(Exit::Busy, format!("'{}' is a mount point already", path.display()))
            }
            failure @ Failure::InUse { .. } => ExportError::from(failure).into(),
            failure => SysError::from(failure).into(),
        }
    }
}
