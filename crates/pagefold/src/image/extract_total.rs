//! How much an extraction will create: the total of its progress.

use pagefold_image::walk::{Limits, Link, Visit, Visitor, is_among, walk};
use pagefold_image::{Finding, Image, ImageError};
use std::ops::ControlFlow;

/// Counts inodes and bytes of contents.
struct Total {
    /// The paths that are wanted; all if there are none.
    paths: Vec<Vec<u8>>,
    inodes: u64,
    bytes: u64,
}

/// The inodes at and below these paths, or of the whole image, and the bytes of their contents. Reads the metadata that the
/// extraction reads too; faults show there. `None` if the image cannot be read.
pub fn total(image: &Image, paths: &[Vec<u8>], max_inodes: u64) -> Option<(u64, u64)> {
    let located = paths.iter().map(|path| image.locate(path).map(|located| located.path));
    let paths = located.collect::<Result<_, ImageError>>().ok()?;
    let mut total = Total { paths, inodes: 0, bytes: 0 };
    walk(image, &Limits { inodes: max_inodes, ..Limits::default() }, &mut total).ok()?;
    Some((total.inodes, total.bytes))
}

impl Visitor for Total {
    fn wants(&mut self, path: &[u8]) -> bool {
        is_among(path, &self.paths)
    }

    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        // The root is there already.
        self.inodes += u64::from(visit.depth > 0);
        ControlFlow::Continue(true)
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        if visit.link == Link::First {
            self.inodes += 1;
            if visit.node.kind().has_contents() {
                self.bytes = self.bytes.saturating_add(visit.node.len_bytes());
            }
        }
        ControlFlow::Continue(())
    }

    fn finding(&mut self, _: Finding) {}
}
