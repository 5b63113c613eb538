//! An image as a POSIX tar archive (pax interchange format, POSIX.1-2001), written as it is walked.
//!
//! Everything goes in: devices, set-id bits, all attributes. What becomes of it is for whoever extracts the archive to decide. Files with
//! holes are written in GNU's sparse format 1.0, which is pax records and a map before the data. A file that cannot be read
//! has zeroes where it cannot, and a finding: its length is written before its contents.
//!
//! An image can say that it holds more than anybody has room for, so an archive has a limit. A member that would exceed it is
//! not begun, and the archive ends there without an end mark, as an error.
//!
//! Reading ahead is the image's; writing is one thread's.

mod acl;
mod header;
mod sparse;

use crate::finding::with_causes;
use crate::read::FileKind;
use crate::walk::{self, Limits, Link, Visit, Visitor};
use crate::{Finding, Findings, Image, ImageError, Node, pieces};
use header::{BLOCK_BYTES, Header};
use pagefold_page::size::Human;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// Bytes read and written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Zeroes at the end of an archive.
const END: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

/// What was written.
#[derive(Debug, Clone, Default)]
pub struct TarReport {
    /// Members.
    pub members: u64,
    /// What is wrong.
    pub findings: Findings,
}

/// How much is written at most. By default as many members as a walk goes over, of any length.
#[derive(Debug, Clone, Copy)]
pub struct TarOptions {
    /// Bytes of the archive.
    pub max_bytes: u64,
    /// Members.
    pub max_members: u64,
}

impl Default for TarOptions {
    fn default() -> Self {
        TarOptions { max_bytes: u64::MAX, max_members: Limits::default().inodes }
    }
}

/// Why there is no archive, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It cannot be written.
    #[error("writing the archive")]
    Write(#[source] io::Error),
    /// More than the limit.
    #[error("{what}; the archive is not complete")]
    Limit {
        /// Which limit, and what to do.
        what: String,
    },
}

impl From<io::Error> for TarError {
    fn from(error: io::Error) -> Self {
        TarError::Write(error)
    }
}

/// Writes `paths` (all of the image if there are none) to `out`. Links on the way to them are followed, and what is found
/// gets the name that it has without them.
pub fn write(
    image: &Image,
    paths: &[Vec<u8>],
    options: &TarOptions,
    out: impl Write,
) -> Result<TarReport, TarError> {
    let paths = image.locate_all(paths)?;
    let report = TarReport::default();
    // The end mark belongs to the archive.
    let left_bytes = options.max_bytes.saturating_sub(END.len() as u64);
    let buffer = vec![0; BUFFER_BYTES];
    let mut tar = Tar { out, options, left_bytes, paths: &paths, buffer, report, failed: None };
    // One more than may be written: the limit of members is to say what is exceeded.
    let limits = Limits { inodes: options.max_members.saturating_add(1), ..Limits::default() };
    walk::walk(image, &limits, &mut tar)?;
    if let Some(error) = tar.failed {
        // What was written is of use, and the caller will end.
        let _ = tar.out.flush();
        return Err(error);
    }
    tar.out.write_all(&END)?;
    tar.out.flush()?;
    tar.report.findings.sort();
    Ok(tar.report)
}

struct Tar<'a, W> {
    out: W,
    options: &'a TarOptions,
    /// Bytes that may still be written.
    left_bytes: u64,
    paths: &'a [Vec<u8>],
    buffer: Vec<u8>,
    report: TarReport,
    failed: Option<TarError>,
}

impl<W: Write> Tar<'_, W> {
    fn member(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        match self.write_member(visit) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn write_member(&mut self, visit: &Visit<'_>) -> Result<(), TarError> {
        let node = visit.node;
        let first = match visit.link {
            Link::Again(first) => first,
            Link::First => None,
        };
        let target = match (first, node.kind()) {
            (Some(first), _) => Some(header::member_name(first, false)),
            (None, FileKind::Symlink) => match node.read_link() {
                Ok(target) => Some(target),
                Err(error) => {
                    self.wrong(visit.path, with_causes(&error));
                    return Ok(());
                }
            },
            _ => None,
        };
        let name = header::member_name(visit.path, node.kind() == FileKind::Directory);
        let mut header = Header::of(node, &name, target.as_deref(), first.is_some());
        if first.is_none() {
            let visited = node.visit_xattrs(|xattr, _| header.xattr(&xattr));
            if let Err(error) = visited {
                self.wrong(visit.path, with_causes(&error));
            }
        }
        if node.kind() != FileKind::Regular || first.is_some() {
            return self.begin(visit, header, 0);
        }
        let findings = &mut self.report.findings;
        match sparse::map(node, visit.path, &mut |finding| findings.push(finding)) {
            Some(map) => self.sparse(visit, header, &name, &map),
            None => {
                let len = node.len_bytes();
                self.begin(visit, header, len)?;
                self.data(node, visit.path, 0..len)?;
                Ok(self.pad(len)?)
            }
        }
    }

    /// Writes the header of a member with so many bytes of data, if there is room for both.
    fn begin(&mut self, visit: &Visit<'_>, header: Header, len: u64) -> Result<(), TarError> {
        let header = header.into_bytes(len);
        let needed = len.saturating_add(BLOCK_BYTES as u64 - 1).saturating_add(header.len() as u64);
        let path = visit.path.escape_ascii();
        let Some(left) = self.left_bytes.checked_sub(needed) else {
            let max = Human(self.options.max_bytes);
            let what = format!("with '{path}' it is larger than {max}, the limit; raise it with --max-bytes");
            return Err(TarError::Limit { what });
        };
        if self.report.members >= self.options.max_members {
            let max = self.options.max_members;
            let what = format!("'{path}' is more than {max} files, the limit; raise it with --max-inodes");
            return Err(TarError::Limit { what });
        }
        self.left_bytes = left;
        self.report.members += 1;
        Ok(self.out.write_all(&header)?)
    }

    fn sparse(
        &mut self,
        visit: &Visit<'_>,
        mut header: Header,
        name: &[u8],
        map: &[std::ops::Range<u64>],
    ) -> Result<(), TarError> {
        let text = sparse::text(map);
        let len = text.len() as u64 + map.iter().map(|range| range.end - range.start).sum::<u64>();
        header.sparse(name, visit.node.len_bytes());
        self.begin(visit, header, len)?;
        self.out.write_all(&text)?;
        for range in map {
            self.data(visit.node, visit.path, range.clone())?;
        }
        Ok(self.pad(len)?)
    }

    /// Contents; zeroes where they cannot be read.
    fn data(&mut self, node: &Node, path: &[u8], range: std::ops::Range<u64>) -> io::Result<()> {
        let (mut at, mut told) = (range.start, false);
        while at < range.end {
            let most = self.buffer.len() as u64;
            let end = match pieces::next(node, at, range.end, most) {
                Ok(piece) => piece.end.min(at + most),
                Err(_) => range.end.min(at + most),
            };
            let buffer = &mut self.buffer[..(end - at) as usize];
            if let Err(error) = node.read_at(at, buffer) {
                buffer.fill(0);
                if !std::mem::replace(&mut told, true) {
                    let what = format!("bytes {at} to {end}, zeroes instead: {}", with_causes(&error));
                    self.report.findings.push(Finding::error(path, error.address(), what).starting_at(at));
                }
            }
            self.out.write_all(&self.buffer[..(end - at) as usize])?;
            at = end;
        }
        Ok(())
    }

    fn pad(&mut self, len: u64) -> io::Result<()> {
        let behind = len % BLOCK_BYTES as u64;
        let missing = if behind == 0 { 0 } else { BLOCK_BYTES - behind as usize };
        self.out.write_all(&END[..missing])
    }

    fn wrong(&mut self, path: &[u8], what: String) {
        self.report.findings.push(Finding::error(path, None, what));
    }
}

impl<W: Write> Visitor for Tar<'_, W> {
    fn wants(&mut self, path: &[u8]) -> bool {
        walk::is_among(path, self.paths)
    }

    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        match self.member(visit) {
            ControlFlow::Continue(()) => ControlFlow::Continue(true),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        }
    }

    fn leave(&mut self, _visit: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        // Tar has no form for sockets.
        if visit.node.kind() == FileKind::Socket {
            self.report.findings.push(Finding::warning(visit.path, None, "a socket, which tar cannot hold"));
            return ControlFlow::Continue(());
        }
        self.member(visit)
    }

    fn finding(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }
}
