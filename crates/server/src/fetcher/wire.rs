//! The messages between a process that decodes and its fetcher, over pairs of stream sockets.
//!
//! Both are processes of the same program, so the messages have no version: the length of the text (`u32`, little-endian),
//! then JSON. Each connection has one request under way, and its answer follows. The bytes of objects are not in messages: the
//! fetcher writes them to the slot of the connection in shared memory, and the reader copies them from there.
//!
//! Each side takes the other for hostile: lengths are bounded, and a malformed message ends the connection.

use pagefold_backing::BackingError;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::report::mount::RemoteReport;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The longest request, bytes.
const REQUEST_BYTES_MAX: usize = 1 << 10;
/// The longest answer, bytes: of a report, with the longest text that an answer has.
const ANSWER_BYTES_MAX: usize = 128 << 10;
/// The longest text in an answer, bytes: JSON takes up to six for one.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// An object on a server that the configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectId {
    /// The number of the medium: the image is 0, its devices follow.
    pub medium: usize,
    /// Whether it is the Merkle tree of the medium.
    pub is_tree: bool,
    /// The number of a layer of the medium, if it is one: an image in a registry that is read as its layers.
    #[serde(default)]
    pub layer: Option<usize>,
}

/// A layer of an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInfo {
    /// The digest of the blob, which may be compressed, `sha256:HEX`.
    pub digest: String,
    /// Its length, bytes.
    pub len_bytes: u64,
    /// Whether the blob is an EROFS image that can be read in parts.
    pub is_image: bool,
    /// The digest of the bytes that the blob decompresses to, if the configuration of the image names it.
    pub diff_id: Option<String>,
}

/// The layers of an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayersInfo {
    /// The layers, the lowest first.
    pub layers: Vec<LayerInfo>,
    /// The digest of the manifest, `sha256:HEX`.
    pub manifest_digest: String,
}

/// A request to a fetcher.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Request {
    /// Whether it works. The first request.
    Hello,
    /// The digest and salt that the manifest of a medium in a registry names.
    Verity { medium: usize },
    /// The layers of a medium in a registry.
    Layers { medium: usize },
    /// Open an object.
    Open(ObjectId),
    /// Close an object.
    Close(ObjectId),
    /// Close the objects of a medium, and remove them from the cache, which may be wrong.
    Forget { medium: usize },
    /// Remember the hash of each block of an object.
    Remember(ObjectId),
    /// Whether a block came again with other bytes.
    HasOtherBytes(ObjectId),
    /// Copy a range to the slot of the connection.
    Read {
        /// The object.
        object: ObjectId,
        /// The first byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// The end of the range that the reader reads by this request and the next ones.
        wanted_end: u64,
        /// The age of the request of a program that this read belongs to, nanoseconds.
        age_ns: Option<u64>,
    },
    /// Drop cached copies of a range.
    Discard { object: ObjectId, offset: u64, len_bytes: u64 },
    /// Fetch a range into memory.
    Prefetch { object: ObjectId, offset: u64, len_bytes: u64 },
    /// The report.
    Report,
}

/// The answer to a request that was carried out.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing further is known.
    Done,
    /// Of `Hello`: the reason that there is no cache on disk, for users.
    Hello { without_cache: Option<String> },
    /// Of `Verity`: the digest and salt, and notes for users.
    Verity { found: Option<(String, String)>, notes: Vec<String> },
    /// Of `Layers`.
    Layers(LayersInfo),
    /// Of `Open`.
    Opened(ObjectInfo),
    /// Of `HasOtherBytes` and `Discard`.
    Flag(bool),
    /// Of `Prefetch`: the memory is full of ranges that nobody has read yet.
    NoRoom,
    /// Of `Report`.
    Report(Box<RemoteReport>),
}

/// An object that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Its length.
    pub len_bytes: u64,
    /// The name of its version.
    pub version_name: Option<String>,
    /// The digest of all bytes that is its name.
    pub content_digest: Option<String>,
    /// Whether it was opened by what the cache says, without asking the server.
    pub is_from_cache: bool,
    /// Whether ranges that were read stay on this machine.
    pub is_kept: bool,
    /// Its description for people.
    pub description: String,
}

/// Why a request was not carried out.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The bytes are not the right ones.
    Mismatch(String),
    /// The server does not serve the request.
    Unreachable(String),
    /// A failure with an exit code.
    Other(CliError),
}

/// Sends a message.
fn send(mut stream: &UnixStream, message: &impl Serialize) -> Result<()> {
    // One call of the system: the header is completed when the length is known.
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(|e| CliError::failed(e.to_string()))?;
    let len = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    stream.write_all(&bytes).map_err(|e| broken(&e))
}

/// Receives a message of `max_bytes` at most; `None` if the peer has ended.
fn receive<M: DeserializeOwned>(stream: &UnixStream, max_bytes: usize) -> Result<Option<M>> {
    let mut header = [0; 4];
    match read_exact(stream, &mut header) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(broken(&e)),
    }
    let len = u32::from_le_bytes(header) as usize;
    if len > max_bytes {
        return Err(CliError::failed("a malformed message between a process and its fetcher"));
    }
    let mut text = vec![0; len];
    read_exact(stream, &mut text).map_err(|e| broken(&e))?;
    let message = serde_json::from_slice(&text);
    message.map(Some).map_err(|e| CliError::failed(format!("a malformed message of or to a fetcher: {e}")))
}

fn read_exact(mut stream: &UnixStream, bytes: &mut [u8]) -> io::Result<()> {
    stream.read_exact(bytes)
}

/// Sends a request.
pub fn send_request(stream: &UnixStream, request: &Request) -> Result<()> {
    send(stream, request)
}

/// Waits for the answer to a request. Fails if the connection does; the inner result is that of the request.
pub fn receive_answer(stream: &UnixStream) -> Result<std::result::Result<Answer, Failure>> {
    receive(stream, ANSWER_BYTES_MAX)?.ok_or_else(|| CliError::failed("the fetcher of this process has died"))
}

/// Receives a request; `None` if the peer has ended.
pub fn receive_request(stream: &UnixStream) -> Result<Option<Request>> {
    receive(stream, REQUEST_BYTES_MAX)
}

/// Answers a request.
pub fn answer(stream: &UnixStream, result: &std::result::Result<Answer, Failure>) -> Result<()> {
    send(stream, result)
}

/// Cuts a text to a length that fits into an answer.
pub fn bounded(mut text: String) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text.truncate(end);
    text
}

fn broken(e: &io::Error) -> CliError {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            CliError::failed("the fetcher of this process does not answer")
        }
        _ => CliError::io("the connection between a process and its fetcher", e),
    }
}

impl From<BackingError> for Failure {
    fn from(error: BackingError) -> Self {
        match error {
            BackingError::Mismatch { what } => Failure::Mismatch(bounded(what)),
            e => Failure::Unreachable(bounded(e.to_string())),
        }
    }
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Failure::Other(CliError { message: bounded(error.message), ..error })
    }
}

impl From<Failure> for BackingError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Mismatch(what) => BackingError::Mismatch { what },
            Failure::Unreachable(what) | Failure::Other(CliError { message: what, .. }) => {
                BackingError::Unreachable { what }
            }
        }
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Mismatch(what) => CliError::new(Exit::Damaged, what),
            Failure::Unreachable(what) => CliError::failed(what),
            Failure::Other(e) => e,
        }
    }
}
