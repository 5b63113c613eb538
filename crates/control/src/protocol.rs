//! The messages of the control socket: one JSON object per line in each direction.
//!
//! A request is at most [`MAX_REQUEST`] bytes long, a response at most [`MAX_RESPONSE`]. The protocol is internal and
//! has no versions: both ends are normally the same program, and a server refuses a request that it does not
//! understand. The descriptors of the files that a request names are attached to its first byte (SCM_RIGHTS).

use super::report::disk::{ClassReport, Report};
use super::report::mount::MountReport;
use super::report::recompress::RecompressPassReport;
use super::report::saved::SaveReport;
use super::report::writeback::{PassProgress, PassReport};
use crate::error::{CliError, Result};
use crate::named_files::NamedFile;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest request line, bytes.
pub const MAX_REQUEST: u64 = 16 << 10;
/// Longest response line, bytes.
pub const MAX_RESPONSE: u64 = 1 << 20;
/// Time that a server grants a connection: for each request, and for sending each response.
pub const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A request of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Return the report.
    Show {},
    /// Return the value of one attribute, without the last newline that its file in the attribute tree has.
    Get {
        /// Its name.
        attribute: String,
    },
    /// Set attributes, `ATTRIBUTE=VALUE` each. The server parses all of them before it sets the first.
    Set {
        /// The changes.
        changes: Vec<String>,
        /// The files that they name.
        files: Vec<NamedFile>,
    },
    /// Set one attribute as a write to the file of that name in the attribute tree does: with the syntax of the kernel. The
    /// server sends progress while that writes back or compresses pages.
    Write {
        /// Its name.
        attribute: String,
        /// The text that was written; a newline may end it.
        text: String,
        /// The file that it names.
        files: Vec<NamedFile>,
    },
    /// Write back pages. The server sends progress until the pass has ended.
    Writeback {
        /// Which pages.
        pages: Pages,
    },
    /// Compress pages again with another codec. The server sends progress until the pass has ended.
    Recompress {
        /// The pages and the codec.
        pass: RecompressPass,
    },
    /// Write the contents of the disk at this moment to the file whose descriptor is passed. The server sends progress
    /// until the save has ended.
    Save {
        /// The file, open for writing.
        files: Vec<NamedFile>,
        /// How it is saved.
        options: SaveOptions,
    },
    /// Return the states of pages as text, in pieces: the response says where the next request goes on. So the server
    /// keeps nothing for a command that prints slowly.
    BlockState {
        /// The first page.
        first: u64,
        /// The last page, included; the last page of the disk if absent.
        last: Option<u64>,
    },
    /// Return the size classes of the pool.
    Classes {},
    /// Close the device and exit; refused while the device is in use.
    Remove {
        /// Disconnect NBD clients first.
        force: bool,
    },
}

/// How a disk is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaveOptions {
    /// Note what changes from now on, and write only what has changed since a save, if that was the last one.
    pub incremental: Option<IncrementalSave>,
    /// Most bytes per second that are written, but for pages that change meanwhile; 0: no limit.
    pub rate_bytes_per_s: u64,
}

/// An incremental save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncrementalSave {
    /// The save that it goes on from; absent: it has all pages.
    pub parent: Option<ParentSave>,
}

/// The save that an incremental one goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentSave {
    /// Its identity.
    pub id: [u8; 16],
    /// Its digest.
    pub digest: [u8; 32],
    /// The number of files before it in its chain.
    pub depth: u32,
    /// The name that its file has beside the new one.
    #[serde(with = "crate::path")]
    pub name: PathBuf,
}

/// The pages that `disk writeback` selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pages {
    /// Pages not accessed for an age.
    Idle {
        /// The age, seconds.
        age_s: u64,
    },
    /// Pages stored raw.
    Huge,
    /// Pages stored raw and marked idle.
    HugeIdle,
    /// Pages that no codec of the disk compresses.
    Incompressible,
    /// Pages in these ranges, both ends included.
    Ranges(Vec<(u64, u64)>),
    /// All pages in memory.
    All,
}

/// A pass of recompression, as `disk recompress` requests it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecompressPass {
    /// Which pages; ranges are refused.
    pub pages: Pages,
    /// Only objects of at least this length, and only results that are shorter, bytes.
    pub threshold_bytes: Option<u16>,
    /// The most pages to try.
    pub pages_max: Option<u64>,
    /// The codec, by its name.
    pub codec: Option<String>,
    /// The codec, by its priority.
    pub priority: Option<u8>,
    /// Threads; the number of CPUs if absent.
    pub threads: Option<u16>,
}

/// A response of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To `Show`, by the server of a disk.
    Report(Box<Report>),
    /// To `Show`, by the server of a mounted image.
    Mount(Box<MountReport>),
    /// To `Get`.
    Value(String),
    /// To `Set`, `Write` and `Remove`.
    Done,
    /// To `Writeback`, `Recompress`, `Save`, and a `Set` that does either: sent a few times a second, also as a sign that the server is
    /// alive.
    Progress(PassProgress),
    /// To `Writeback`, when the pass has ended.
    WroteBack(PassReport),
    /// To `Recompress`, when the pass has ended.
    Recompressed(RecompressPassReport),
    /// To `Save`, when the file is written.
    Saved(SaveReport),
    /// To `BlockState`.
    BlockState {
        /// The states, a line for each page with contents. May be empty before the end, too.
        lines: String,
        /// The page to go on with; absent at the end.
        next: Option<u64>,
    },
    /// To `Classes`.
    Classes(Vec<ClassReport>),
    /// To any request: the error.
    Refused(CliError),
}

/// Reads one line of at most `most` bytes, and returns it without the newline; `None` at the end of the stream.
pub fn read_line(reader: &mut impl BufRead, most: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.by_ref().take(most + 1).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => {
            line.pop();
            Ok(Some(line))
        }
        Some(_) if line.len() as u64 > most => Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("a line of more than {most} bytes"),
        )),
        Some(_) => Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the line was cut off")),
    }
}

/// The time until `deadline`; the error [`std::io::ErrorKind::TimedOut`] if it has passed.
pub fn time_left(deadline: Instant) -> std::io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(std::io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// A stream whose reads time out at one deadline, however slowly the bytes of a message arrive.
pub struct DeadlineReader<'s> {
    /// The connected socket.
    pub stream: &'s UnixStream,
    /// The deadline of the message that is being read.
    pub deadline: Instant,
}

impl<'s> DeadlineReader<'s> {
    /// A buffered reader of `stream` until `deadline`.
    pub fn buffered(stream: &'s UnixStream, deadline: Instant) -> BufReader<Self> {
        BufReader::new(DeadlineReader { stream, deadline })
    }
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.deadline)?))?;
        self.stream.read(buf)
    }
}

/// Encodes a message as one line.
pub fn line(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut line =
        serde_json::to_vec(message).map_err(|e| CliError::failed(format!("writing a message: {e}")))?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_truncated_lines_are_errors() {
        let read = |bytes: &[u8], most| read_line(&mut &bytes[..], most);
        assert_eq!(read(b"", 4).unwrap(), None);
        assert_eq!(read(b"\n", 4).unwrap(), Some(vec![]));
        assert_eq!(read(b"abc\nd", 4).unwrap(), Some(b"abc".to_vec()));
        assert_eq!(read(b"abcd\n", 4).unwrap(), Some(b"abcd".to_vec()));
        assert!(read(b"abcde\n", 4).is_err());
        assert!(read(b"abc", 4).is_err());
    }

    #[test]
    fn requests_round_trip_and_unknown_ones_are_errors() {
        for request in [
            Request::Show {},
            Request::Get { attribute: "size".into() },
            Request::Set { changes: vec!["mem_limit=1G".into()], files: Vec::new() },
            Request::Write { attribute: "disksize".into(), text: "1G\n".into(), files: Vec::new() },
            Request::Writeback { pages: Pages::Idle { age_s: 600 } },
            Request::Writeback { pages: Pages::Ranges(vec![(1, 25000), (7, 7)]) },
            Request::Save { files: Vec::new(), options: SaveOptions::default() },
            Request::BlockState { first: 7, last: None },
            Request::Classes {},
            Request::Remove { force: true },
            Request::Recompress {
                pass: RecompressPass {
                    pages: Pages::Idle { age_s: 600 },
                    threshold_bytes: Some(3000),
                    pages_max: None,
                    codec: Some("zstd".into()),
                    priority: None,
                    threads: Some(2),
                },
            },
        ] {
            let text = line(&request).unwrap();
            assert_eq!(serde_json::from_slice::<Request>(&text).unwrap(), request);
        }
        for bad in [
            "{}",
            "[]",
            r#"{"ask":"format"}"#,
            r#"{"ask":"remove"}"#,
            r#"{"ask":"show","x":1}"#,
            r#"{"ask":"writeback"}"#,
            r#"{"ask":"writeback","pages":{"idle":{"age_s":-1}}}"#,
        ] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }
}
