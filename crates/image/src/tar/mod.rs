//! Writes an image as a POSIX tar archive (pax interchange format, POSIX.1-2001) while walking over it.
//!
//! The archive contains devices, set-id bits and all attributes; the program that extracts it decides what to do with
//! them. Files with holes are written in GNU's sparse format 1.0: pax records, and a map before the data. Where a file
//! cannot be read, the archive has zeroes, and there is a finding: a member's length precedes its contents, so the
//! member cannot be shortened.
//!
//! [`TarOptions`] limits the archive, because an image can claim to hold more than any disk. A member that would exceed
//! a limit is not begun. The archive then ends without an end mark, and [`write()`] fails.
//!
//! The calling thread walks, reads and writes; it takes no locks. The image may read ahead in its threads.

mod header;
mod sparse;

use crate::read::{Cursor, FileKind};
use crate::walk::{self, Limits, Link, Visit, Visitor};
use crate::work::WorkLimit;
use crate::{Finding, Findings, Image, ImageError, Node, pieces};
use header::{BLOCK_BYTES, Header};
use pagefold_page::size::Human;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// The most bytes read and written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// The end mark of an archive: two blocks of zeroes. It also serves as padding.
const END_MARK: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

/// Result of writing an archive.
#[derive(Debug, Clone, Default)]
pub struct TarReport {
    /// Members written.
    pub members: u64,
    /// Faults of the image.
    pub findings: Findings,
}

/// Limits of an archive. The default is the walk's limit of members, and no limit of bytes.
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

/// Why an archive could not be written completely.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The output cannot be written.
    #[error("writing the archive")]
    Write(#[source] io::Error),
    /// The image holds more than a limit allows.
    #[error("{what}; the archive is not complete")]
    Limit {
        /// The limit, and the option that raises it.
        what: String,
    },
}

impl From<io::Error> for TarError {
    fn from(error: io::Error) -> Self {
        TarError::Write(error)
    }
}

/// Writes `paths` (the whole image if there are none) to `out`. Symbolic links in the paths are followed; a member's
/// name is the file's real path.
pub fn write(
    image: &Image,
    paths: &[Vec<u8>],
    options: &TarOptions,
    out: impl Write,
) -> Result<TarReport, TarError> {
    let paths = image.locate_all(paths)?;
    let report = TarReport::default();
    // The limit includes the end mark.
    let bytes_left = options.max_bytes.saturating_sub(END_MARK.len() as u64);
    let buffer = vec![0; BUFFER_BYTES];
    let work = &WorkLimit::of_image(image.stored_bytes());
    let mut tar = Writer { out, options, work, bytes_left, paths: &paths, buffer, report, failed: None };
    // One inode more lets this module report the limit of members, instead of the walk.
    let limits = Limits { inodes: options.max_members.saturating_add(1), ..Limits::default() };
    walk::walk_within(&image.root()?, b"/", &limits, work, &mut tar)?;
    if let Some(error) = tar.failed.or(work.step().err().map(TarError::Image)) {
        // The part that was written may be of use, and `error` is more important than a second one.
        let _ = tar.out.flush();
        return Err(error);
    }
    tar.out.write_all(&END_MARK)?;
    tar.out.flush()?;
    tar.report.findings.sort();
    Ok(tar.report)
}

struct Writer<'a, W> {
    out: W,
    options: &'a TarOptions,
    work: &'a WorkLimit,
    /// Bytes left of the limit.
    bytes_left: u64,
    paths: &'a [Vec<u8>],
    buffer: Vec<u8>,
    report: TarReport,
    failed: Option<TarError>,
}

impl<W: Write> Writer<'_, W> {
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
                    self.report_error(visit.path, &error);
                    return Ok(());
                }
            },
            _ => None,
        };
        let name = header::member_name(visit.path, node.kind() == FileKind::Directory);
        let mut header = Header::of(node, &name, target.as_deref(), first.is_some());
        if first.is_none() {
            let visited = node.visit_xattrs(self.work, |xattr, _| header.xattr(&xattr));
            if let Err(error) = visited {
                self.report_error(visit.path, &error);
            }
        }
        if node.kind() != FileKind::Regular || first.is_some() {
            return self.write_header(visit, header, 0);
        }
        let findings = &mut self.report.findings;
        let map = sparse::map(node, visit.path, self.work, &mut |finding| findings.push(finding));
        self.work.step()?;
        match map {
            Some(map) => self.write_sparse(visit, header, &name, &map),
            None => {
                let len = node.len_bytes();
                self.write_header(visit, header, len)?;
                self.write_data(node, visit.path, 0..len)?;
                Ok(self.write_padding(len)?)
            }
        }
    }

    /// Writes the header of a member with `len` bytes of data, if both fit the limits.
    fn write_header(&mut self, visit: &Visit<'_>, header: Header, len: u64) -> Result<(), TarError> {
        let header = header.into_bytes(len);
        let needed = len.saturating_add(BLOCK_BYTES as u64 - 1).saturating_add(header.len() as u64);
        let path = visit.path.escape_ascii();
        let Some(left) = self.bytes_left.checked_sub(needed) else {
            let max = Human(self.options.max_bytes);
            let what = format!("with '{path}' it is larger than {max}, the limit; raise it with --max-bytes");
            return Err(TarError::Limit { what });
        };
        if self.report.members >= self.options.max_members {
            let max = self.options.max_members;
            let what = format!("'{path}' is more than {max} files, the limit; raise it with --max-inodes");
            return Err(TarError::Limit { what });
        }
        self.bytes_left = left;
        self.report.members += 1;
        Ok(self.out.write_all(&header)?)
    }

    fn write_sparse(
        &mut self,
        visit: &Visit<'_>,
        mut header: Header,
        name: &[u8],
        map: &[std::ops::Range<u64>],
    ) -> Result<(), TarError> {
        let text = sparse::text(map);
        let len = text.len() as u64 + map.iter().map(|range| range.end - range.start).sum::<u64>();
        header.sparse(name, visit.node.len_bytes());
        self.write_header(visit, header, len)?;
        self.out.write_all(&text)?;
        for range in map {
            self.write_data(visit.node, visit.path, range.clone())?;
        }
        Ok(self.write_padding(len)?)
    }

    /// Writes a range of a file's contents, with zeroes for the extents that cannot be read. Reports the first of
    /// these.
    fn write_data(&mut self, node: &Node, path: &[u8], range: std::ops::Range<u64>) -> Result<(), TarError> {
        let (mut at, mut cursor) = (range.start, Cursor::default());
        let mut unreadable: Option<(std::ops::Range<u64>, ImageError)> = None;
        while at < range.end {
            // Zeroes instead of contents could be written for ever.
            self.work.step()?;
            let most = self.buffer.len() as u64;
            let end = match pieces::next(node, (at, range.end), most, &mut cursor, self.work) {
                Ok(piece) => piece.end.min(at + most),
                Err(_) => range.end.min(at + most),
            };
            let buffer = &mut self.buffer[..(end - at) as usize];
            let mut note = |bytes: std::ops::Range<u64>, error: &ImageError| match &mut unreadable {
                Some((known, _)) if known.end == bytes.start => known.end = bytes.end,
                Some(_) => {}
                none => *none = Some((bytes, error.clone())),
            };
            let read = node.read_readable_within(at, buffer, &mut note, self.work);
            // A file that ends early has been reported by then.
            buffer[read..].fill(0);
            self.out.write_all(&self.buffer[..(end - at) as usize])?;
            at = end;
        }
        if let Some((bytes, error)) = unreadable {
            let describe =
                |what: &str| format!("bytes {} to {}, zeroes instead: {what}", bytes.start, bytes.end);
            let finding = Finding::of(path, &error).described(describe);
            self.report.findings.push(finding.starting_at(bytes.start));
        }
        Ok(())
    }

    fn write_padding(&mut self, len: u64) -> io::Result<()> {
        let used = len % BLOCK_BYTES as u64;
        let missing = if used == 0 { 0 } else { BLOCK_BYTES - used as usize };
        self.out.write_all(&END_MARK[..missing])
    }

    fn report_error(&mut self, path: &[u8], error: &ImageError) {
        self.report.findings.push(Finding::of(path, error));
    }
}

impl<W: Write> Visitor for Writer<'_, W> {
    fn wants(&mut self, path: &[u8]) -> bool {
        walk::is_among(path, self.paths)
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        // The format has no type for sockets.
        if visit.node.kind() == FileKind::Socket {
            self.report.findings.push(Finding::warning(
                visit.path,
                None,
                "a socket, which a tar archive cannot contain",
            ));
            return ControlFlow::Continue(());
        }
        self.member(visit)
    }

    fn finding(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }
}
