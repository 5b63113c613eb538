//! An image as a POSIX tar archive (pax interchange format, POSIX.1-2001), written as it is walked.
//!
//! Everything goes in: devices, set-id bits, all attributes. What becomes of it is for whoever extracts the archive to decide. Files with
//! holes are written in GNU's sparse format 1.0, which is pax records and a map before the data. A file that cannot be read
//! has zeroes where it cannot, and a finding: its length is written before its contents.
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

/// Why there is no archive, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It cannot be written.
    #[error("writing the archive")]
    Write(#[source] io::Error),
}

/// Writes `paths` (all of the image if there are none) to `out`. Links on the way to them are followed, and what is found
/// gets the name that it has without them.
pub fn write(image: &Image, paths: &[Vec<u8>], out: impl Write) -> Result<TarReport, TarError> {
    let paths = image.locate_all(paths)?;
    let report = TarReport::default();
    let mut tar = Tar { out, paths: &paths, buffer: vec![0; BUFFER_BYTES], report, failed: None };
    walk::walk(image, &Limits::default(), &mut tar)?;
    if let Some(error) = tar.failed {
        return Err(TarError::Write(error));
    }
    tar.out.write_all(&END).and_then(|()| tar.out.flush()).map_err(TarError::Write)?;
    tar.report.findings.sort();
    Ok(tar.report)
}

struct Tar<'a, W> {
    out: W,
    paths: &'a [Vec<u8>],
    buffer: Vec<u8>,
    report: TarReport,
    failed: Option<io::Error>,
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

    fn write_member(&mut self, visit: &Visit<'_>) -> io::Result<()> {
        let node = visit.node;
        let first = match visit.link {
            Link::Again(first) => first,
            Link::First => None,
        };
        let target = match (first, node.kind()) {
            (Some(first), _) => Some(header::member_name(first, false)),
            (None, FileKind::Symlink) => match node.read_link() {
                Ok(target) => Some(target),
                Err(error) => return self.wrong(visit.path, with_causes(&error)),
            },
            _ => None,
        };
        let name = header::member_name(visit.path, node.kind() == FileKind::Directory);
        let mut header = Header::of(node, &name, target.as_deref(), first.is_some());
        if first.is_none() {
            match node.xattrs() {
                Ok(all) => all.iter().for_each(|xattr| header.xattr(xattr)),
                Err(error) => self.wrong(visit.path, with_causes(&error))?,
            }
        }
        self.report.members += 1;
        if node.kind() != FileKind::Regular || first.is_some() {
            return header.write(&mut self.out, 0);
        }
        match sparse::map(node) {
            Some(map) => self.sparse(visit, header, &name, &map),
            None => {
                let len = node.len_bytes();
                header.write(&mut self.out, len)?;
                self.data(node, visit.path, 0..len)?;
                self.pad(len)
            }
        }
    }

    fn sparse(
        &mut self,
        visit: &Visit<'_>,
        mut header: Header,
        name: &[u8],
        map: &[std::ops::Range<u64>],
    ) -> io::Result<()> {
        let text = sparse::text(map);
        let len = text.len() as u64 + map.iter().map(|range| range.end - range.start).sum::<u64>();
        header.sparse(name, visit.node.len_bytes());
        header.write(&mut self.out, len)?;
        self.out.write_all(&text)?;
        for range in map {
            self.data(visit.node, visit.path, range.clone())?;
        }
        self.pad(len)
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

    fn wrong(&mut self, path: &[u8], what: String) -> io::Result<()> {
        self.report.findings.push(Finding::error(path, None, what));
        Ok(())
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
