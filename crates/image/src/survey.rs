//! What a tree holds, in numbers: kinds, layouts, bytes, clusters and who shares them.
//!
//! It reads metadata and the indexes of files, and no contents. Clusters that several extents use are told by their address;
//! the set of those that were seen has a limit and is counted in the image's budget, and beyond that sharing is counted low.

use crate::account::{Account, TableRoom};
use crate::read::{Algorithm, Extent, FileKind, Layout, Place};
use crate::walk::{self, Limits, Link, Visit, Visitor};
use crate::{Address, Finding, Findings, Image, ImageError, Node};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Clusters that are remembered at most, to tell which are shared: 16 bytes each, and what the table needs.
const MAX_REMEMBERED: usize = 4 << 20;
/// Extents of one file that are looked at.
const MAX_EXTENTS: usize = 1 << 24;

/// A number of things and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Their bytes; of extents, as they are in the file.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// What a tree holds.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Inodes by kind, in the order of [`KINDS`].
    pub kinds: [Amount; 7],
    /// Inodes with contents by layout, in the order of [`LAYOUTS`].
    pub layouts: [Amount; 5],
    /// Extents by place, in the order of [`PLACES`].
    pub places: [Amount; 5],
    /// Extents of clusters by algorithm, by its number.
    pub algorithms: [Amount; 4],
    /// Clusters, each counted once, and their bytes as stored.
    pub clusters: Amount,
    /// Further extents that use a cluster that was counted, and their bytes in the files.
    pub shared: Amount,
    /// Bytes of contents that are stored as they are.
    pub plain_bytes: u64,
    /// Inodes with extended attributes.
    pub with_xattrs: u64,
    /// What is wrong.
    pub findings: Findings,
}

/// A survey in the making.
struct Surveyor {
    survey: Survey,
    /// Clusters that were counted.
    seen: HashSet<Address>,
    room: TableRoom,
}

/// Names of the kinds.
pub const KINDS: [(FileKind, &str); 7] = [
    (FileKind::Regular, "regular"),
    (FileKind::Directory, "directory"),
    (FileKind::Symlink, "symlink"),
    (FileKind::CharDevice, "char_device"),
    (FileKind::BlockDevice, "block_device"),
    (FileKind::Fifo, "fifo"),
    (FileKind::Socket, "socket"),
];

/// Names of the layouts.
pub const LAYOUTS: [&str; 5] = ["plain", "inline", "compressed_full", "compressed_compact", "chunks"];

/// Names of the places of extents.
pub const PLACES: [&str; 5] = ["hole", "plain", "interlaced", "compressed", "fragment"];

/// Which of [`LAYOUTS`] it is.
pub fn layout_name(layout: &Layout) -> &'static str {
    LAYOUTS[layout_index(layout)]
}

fn layout_index(layout: &Layout) -> usize {
    match layout {
        Layout::Plain { .. } => 0,
        Layout::Inline { .. } => 1,
        Layout::CompressedFull => 2,
        Layout::CompressedCompact => 3,
        Layout::Chunks { .. } => 4,
    }
}

/// Which of [`PLACES`] it is.
pub fn place_name(place: &Place) -> &'static str {
    PLACES[place_index(place)]
}

fn place_index(place: &Place) -> usize {
    match place {
        Place::Hole => 0,
        Place::Plain(_) => 1,
        Place::Interlaced { .. } => 2,
        Place::Compressed(_) => 3,
        Place::Fragment { .. } => 4,
    }
}

/// What an algorithm is called.
pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Lz4 => "lz4",
        Algorithm::MicroLzma => "lzma",
        Algorithm::Deflate => "deflate",
        Algorithm::Zstd => "zstd",
    }
}

impl Survey {
    /// Looks at all of an image, or at `node`, whose path is `path`, and what is below.
    pub fn of(node: &Node, path: &[u8], limits: &Limits) -> Result<Self, ImageError> {
        let account = Account::new(node.image().budget());
        let (seen, room) = (HashSet::new(), TableRoom::of::<Address>(&account));
        let mut surveyor = Surveyor { survey: Survey::default(), seen, room };
        let walked = walk::walk_from(node, path, limits, &mut surveyor)?;
        surveyor.survey.names = walked.names;
        if path == b"/"
            && let Some(nid) = node.image().superblock().packed_nid
        {
            match node.image().node(nid) {
                Ok(packed) => surveyor.extents(&packed, b"(packed file)"),
                Err(error) => surveyor.finding(Finding::of(b"(packed file)", &error)),
            }
        }
        surveyor.survey.findings.sort();
        Ok(surveyor.survey)
    }

    /// The same for all of an image.
    pub fn of_image(image: &Image, limits: &Limits) -> Result<Self, ImageError> {
        Self::of(&image.root()?, b"/", limits)
    }
}

impl Surveyor {
    fn inode(&mut self, visit: &Visit<'_>) {
        if visit.link != Link::First {
            return;
        }
        let (node, inode) = (visit.node, visit.node.inode());
        let kind = KINDS.iter().position(|(kind, _)| *kind == node.kind()).unwrap_or_default();
        let len = if node.kind().has_contents() { node.len_bytes() } else { 0 };
        self.survey.kinds[kind].add(len);
        self.survey.with_xattrs += u64::from(inode.xattr_bytes > 0);
        if node.kind().has_contents() {
            self.survey.layouts[layout_index(&inode.layout)].add(len);
            self.extents(node, visit.path);
        }
    }

    fn extents(&mut self, node: &Node, path: &[u8]) {
        let mut extents = node.extents();
        for extent in extents.by_ref().take(MAX_EXTENTS) {
            match extent {
                Ok(extent) => self.extent(&extent),
                Err(error) => self.finding(Finding::of(path, &error)),
            }
        }
        if extents.next().is_some() {
            let what = format!("more than {MAX_EXTENTS} extents; the rest was not looked at");
            self.finding(Finding::warning(path, Some(node.inode().address), what));
        }
    }

    fn extent(&mut self, extent: &Extent) {
        self.survey.places[place_index(&extent.place)].add(extent.len_bytes);
        match extent.place {
            Place::Plain(_) | Place::Interlaced { .. } => {
                self.survey.plain_bytes = self.survey.plain_bytes.saturating_add(extent.len_bytes);
            }
            Place::Compressed(cluster) => {
                self.survey.algorithms[cluster.algorithm as usize].add(extent.len_bytes);
                match self.is_new(cluster.at) {
                    true => self.survey.clusters.add(u64::from(cluster.len_bytes)),
                    false => self.survey.shared.add(extent.len_bytes),
                }
            }
            Place::Hole | Place::Fragment { .. } => {}
        }
    }

    /// Whether the cluster there was not counted before, as far as is remembered.
    fn is_new(&mut self, cluster: Address) -> bool {
        if self.seen.contains(&cluster) {
            return false;
        }
        let (len, capacity) = (self.seen.len(), self.seen.capacity());
        if len < MAX_REMEMBERED && self.room.for_one_more(len, capacity) {
            self.seen.insert(cluster);
        }
        true
    }
}

impl Visitor for Surveyor {
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        self.inode(visit);
        ControlFlow::Continue(true)
    }

    fn leave(&mut self, _visit: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.inode(visit);
        ControlFlow::Continue(())
    }

    fn finding(&mut self, finding: Finding) {
        self.survey.findings.push(finding);
    }
}
