//! The control socket's language: one JSON object per line, each way.
//!
//! A line is at most [`MAX_REQUEST`] bytes towards the server and [`MAX_RESPONSE`] from it.
//! Internal: both ends are of one version, and a request that is not understood is refused.

use super::images::MountReport;
use super::parked::{AGE_MAX_S, PassProgress, PassReport};
use super::report::Report;
use crate::failure::{Failure, Outcome};
use pagefold_page::PageIndex;
use pagefold_store::parking::{Selection, SelectionError, Which};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read};
use std::time::Duration;

/// Longest request line, bytes.
pub const MAX_REQUEST: u64 = 16 << 10;
/// Longest response line, bytes.
pub const MAX_RESPONSE: u64 = 1 << 20;
/// How long a connection may last on the server's side, but for passes.
pub const SERVER_PATIENCE: Duration = Duration::from_secs(10);

/// What a command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything that is known.
    Show {},
    /// The value of one attribute.
    Get {
        /// Its name.
        attribute: String,
    },
    /// Changes, `ATTRIBUTE=VALUE` each. All are understood before the first is made.
    Set {
        /// The changes.
        changes: Vec<String>,
    },
    /// Park pages. Answered with progress until the pass has ended.
    Park {
        /// Which.
        pages: Pages,
    },
    /// Give the device up and end; refused while in use.
    Remove {
        /// Disconnect NBD clients first.
        force: bool,
    },
}

/// Which pages `disk park` is to park.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pages {
    /// Those not accessed for so long.
    Idle {
        /// How long, seconds.
        age_s: u64,
    },
    /// Those held raw.
    Huge,
    /// Those held raw and marked idle.
    HugeIdle,
    /// Those that no codec of the disk compresses.
    Incompressible,
    /// Those in these ranges, both ends included.
    Ranges(Vec<(u64, u64)>),
    /// Those in memory.
    All,
}

impl Pages {
    /// The same in the engine's words.
    pub fn selection(&self) -> Result<Selection, SelectionError> {
        let which = match self {
            Pages::Idle { age_s } => Which::NotAccessedFor { age_s: (*age_s).min(AGE_MAX_S) },
            Pages::Huge => Which::Huge,
            Pages::HugeIdle => Which::HugeIdle,
            Pages::Incompressible => Which::Incompressible,
            Pages::All => Which::All,
            Pages::Ranges(ranges) => return Pages::of_ranges(ranges),
        };
        Ok(Selection::of(which))
    }

    fn of_ranges(ranges: &[(u64, u64)]) -> Result<Selection, SelectionError> {
        let mut parts = ranges.iter().map(|&(a, b)| Selection::pages(PageIndex(a), PageIndex(b)));
        let first = parts.next().unwrap_or(Err(SelectionError::Nothing))?;
        parts.try_fold(first, |all, part| Ok(all.and(part?)))
    }
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To `Show`.
    Report(Box<Report>),
    /// To `Show`, by the server of a mounted image.
    Mount(Box<MountReport>),
    /// To `Get`.
    Value(String),
    /// To `Set` and `Remove`.
    Done,
    /// To `Park`, and to a `Set` that parks, a few times a second: also tells that the server is alive.
    Progress(PassProgress),
    /// To `Park`, in the end.
    Parked(PassReport),
    /// To anything.
    Refused(Failure),
}

/// Reads one line of at most `most` bytes without its end; `None` at the end of the stream.
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

/// One message as a line.
pub fn line(message: &impl Serialize) -> Outcome<Vec<u8>> {
    let mut line =
        serde_json::to_vec(message).map_err(|e| Failure::failed(format!("writing a message: {e}")))?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_whole() {
        let read = |bytes: &[u8], most| read_line(&mut &bytes[..], most);
        assert_eq!(read(b"", 4).unwrap(), None);
        assert_eq!(read(b"\n", 4).unwrap(), Some(vec![]));
        assert_eq!(read(b"abc\nd", 4).unwrap(), Some(b"abc".to_vec()));
        assert_eq!(read(b"abcd\n", 4).unwrap(), Some(b"abcd".to_vec()));
        assert!(read(b"abcde\n", 4).is_err());
        assert!(read(b"abc", 4).is_err());
    }

    #[test]
    fn requests_survive_the_wire_and_unknown_ones_do_not() {
        for request in [
            Request::Show {},
            Request::Get { attribute: "size".into() },
            Request::Set { changes: vec!["mem_limit=1G".into()] },
            Request::Park { pages: Pages::Idle { age_s: 600 } },
            Request::Park { pages: Pages::Ranges(vec![(1, 25000), (7, 7)]) },
            Request::Remove { force: true },
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
            r#"{"ask":"park"}"#,
            r#"{"ask":"park","pages":{"idle":{"age_s":-1}}}"#,
        ] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_are_zrams_where_zram_has_a_word() {
        for (pages, words) in [
            (Pages::Huge, "huge"),
            (Pages::HugeIdle, "huge_idle"),
            (Pages::Incompressible, "incompressible"),
            (Pages::Ranges(vec![(4, 9), (1, 1)]), "page_index=1 page_indexes=4-9"),
        ] {
            assert_eq!(pages.selection().unwrap(), words.parse().unwrap());
        }
        let old = Pages::Idle { age_s: 86400 }.selection().unwrap();
        assert_eq!(old, Selection::of(Which::NotAccessedFor { age_s: 8192 }));
        assert_eq!(Pages::Ranges(vec![]).selection().unwrap_err(), SelectionError::Nothing);
        Pages::Ranges(vec![(1, 2), (5, 4)]).selection().unwrap_err();
    }
}
