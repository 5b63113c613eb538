//! Statistics of a tree: numbers and bytes of inodes by kind and layout, of extents, and of clusters, shared ones
//! apart.
//!
//! The statistics read metadata, names of attributes and the indexes of files, but no contents. They are a [`Visitor`] of a [`walk`], in the
//! calling thread.
//!
//! Two extents share a cluster or plain data if they name the same stored bytes. [`usage`](crate::usage) finds that, and
//! has the uses of all stored bytes. Its table is charged to the image's budget. When it is full, stored bytes that are
//! met again are counted once more, so `shared` is too low, and there is no usage.

use crate::account::Account;
use crate::read::{Algorithm, Extent, FileKind, Layout, Mapping};
use crate::usage::{Collector, Owner, Usage};
use crate::walk::{self, Limits, Link, Visit, Visitor};
use crate::work::WorkLimit;
use crate::{Finding, Findings, Image, Node, Result};
use std::ops::ControlFlow;

/// A count of items and their total bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of items.
    pub count: u64,
    /// Their total bytes; for extents, the decoded length.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The statistics of a tree.
#[derive(Debug, Clone, Default)]
pub struct TreeStats {
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Inodes by kind, in the order of [`KINDS`].
    pub kinds: [Amount; 7],
    /// Inodes with contents by layout, in the order of [`LAYOUTS`].
    pub layouts: [Amount; 5],
    /// Extents by the kind of their mapping, in the order of [`MAPPINGS`].
    pub mappings: [Amount; 5],
    /// Extents in clusters, indexed by the number of their algorithm.
    pub algorithms: [Amount; 4],
    /// Clusters, each counted once, and their bytes as stored.
    pub clusters: Amount,
    /// Extents beyond the first one of a cluster or of plain data, and their decoded bytes that are stored there.
    pub shared: Amount,
    /// Bytes of contents that are stored uncompressed, shared ones counted once.
    pub plain_bytes: u64,
    /// Inodes with extended attributes.
    pub with_xattrs: u64,
    /// Inodes with attributes `security.*`.
    pub with_security: u64,
    /// Inodes with access lists.
    pub with_access_lists: u64,
    /// The uses of the stored bytes; only of a whole image, and only if there was enough memory.
    pub usage: Option<Usage>,
    /// Faults that the walk or the indexes showed.
    pub findings: Findings,
}

/// Collects the statistics during a walk.
struct StatsVisitor<'a> {
    work: &'a WorkLimit,
    stats: TreeStats,
    usage: Collector,
}

/// The kinds of inodes, and their names in JSON.
pub const KINDS: [(FileKind, &str); 7] = [
    (FileKind::Regular, "regular"),
    (FileKind::Directory, "directory"),
    (FileKind::Symlink, "symlink"),
    (FileKind::CharDevice, "char_device"),
    (FileKind::BlockDevice, "block_device"),
    (FileKind::Fifo, "fifo"),
    (FileKind::Socket, "socket"),
];

/// The names of the layouts in JSON.
pub const LAYOUTS: [&str; 5] = ["plain", "inline", "compressed_full", "compressed_compact", "chunks"];

/// The names of the mappings of extents in JSON.
pub const MAPPINGS: [&str; 5] = ["hole", "plain", "interlaced", "compressed", "fragment"];

/// The name of a layout in [`LAYOUTS`].
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

/// The name of an extent's mapping in [`MAPPINGS`].
pub fn mapping_name(mapping: &Mapping) -> &'static str {
    MAPPINGS[mapping_index(mapping)]
}

fn mapping_index(mapping: &Mapping) -> usize {
    match mapping {
        Mapping::Hole => 0,
        Mapping::Plain(_) => 1,
        Mapping::Interlaced { .. } => 2,
        Mapping::Compressed(_) => 3,
        Mapping::Fragment { .. } => 4,
    }
}

/// The name of an algorithm.
pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Lz4 => "lz4",
        Algorithm::MicroLzma => "lzma",
        Algorithm::Deflate => "deflate",
        Algorithm::Zstd => "zstd",
    }
}

impl TreeStats {
    /// Computes the statistics of `node`, whose path is `path`, and everything below it. For the root, the packed file
    /// is counted too.
    pub fn of(node: &Node, path: &[u8], limits: &Limits) -> Result<Self> {
        let (image, is_whole) = (node.image(), path == b"/");
        let usage = Collector::new(image, &Account::new(image.budget()));
        let work = WorkLimit::of_image(image.stored_bytes());
        let mut visitor = StatsVisitor { work: &work, stats: TreeStats::default(), usage };
        if is_whole {
            visitor.hidden_files(image);
        }
        let summary = walk::walk_within(node, path, limits, &work, &mut visitor)?;
        let StatsVisitor { mut stats, usage, .. } = visitor;
        stats.names = summary.names;
        stats.usage = if is_whole { usage.finish() } else { None };
        stats.findings.sort();
        Ok(stats)
    }

    /// Whether a file with contents has a compressed layout.
    pub fn has_compressed_files(&self) -> bool {
        let compressed = [Layout::CompressedFull, Layout::CompressedCompact];
        compressed.iter().any(|layout| self.layouts[layout_index(layout)].count > 0)
    }

    /// Computes the statistics of a whole image.
    pub fn of_image(image: &Image, limits: &Limits) -> Result<Self> {
        Self::of(&image.root()?, b"/", limits)
    }
}

impl StatsVisitor<'_> {
    /// Counts what no directory names: the metabox (its use of stored bytes only) and the packed file. The files of the
    /// tree refer to them, so they come first.
    fn hidden_files(&mut self, image: &Image) {
        for short in image.short_devices() {
            self.finding(Finding::error(b"", None, short.to_string()));
        }
        if let Err(error) = self.usage.metabox(self.work) {
            self.finding(Finding::of(b"(metabox)", &error));
        }
        let Some(nid) = image.superblock().packed_nid else { return };
        match image.node(nid) {
            Ok(packed) => self.extents(&packed, Owner::Packed, b"(packed file)"),
            Err(error) => self.finding(Finding::of(b"(packed file)", &error)),
        }
    }

    fn inode(&mut self, visit: &Visit<'_>) {
        if visit.link != Link::First {
            return;
        }
        let (node, inode) = (visit.node, visit.node.inode());
        let kind = KINDS.iter().position(|(kind, _)| *kind == node.kind()).unwrap_or_default();
        let len = if node.kind().has_contents() { node.len_bytes() } else { 0 };
        self.stats.kinds[kind].add(len);
        if inode.xattr_bytes > 0 {
            self.attributes(visit);
        }
        if node.kind().has_contents() {
            self.stats.layouts[layout_index(&inode.layout)].add(len);
        }
        self.extents(node, Owner::Tree(node.kind()), visit.path);
    }

    fn attributes(&mut self, visit: &Visit<'_>) {
        self.stats.with_xattrs += 1;
        match visit.node.xattr_names_within(self.work) {
            Ok(names) => {
                let any = |prefix: &[u8]| u64::from(names.iter().any(|name| name.starts_with(prefix)));
                self.stats.with_security += any(b"security.");
                self.stats.with_access_lists += any(b"system.posix_acl_");
            }
            Err(error) => self.finding(Finding::of(visit.path, &error)),
        }
    }

    fn extents(&mut self, node: &Node, owner: Owner, path: &[u8]) {
        self.usage.begin(node, owner, self.work);
        for extent in node.extents_within(self.work) {
            match extent {
                Ok(extent) => self.extent(node, &extent),
                Err(error) => self.finding(Finding::of(path, &error)),
            }
        }
        self.usage.end(node, path);
    }

    fn extent(&mut self, node: &Node, extent: &Extent) {
        self.stats.mappings[mapping_index(&extent.mapping)].add(extent.len_bytes);
        let claim = self.usage.extent(node, extent);
        match extent.mapping {
            Mapping::Plain(_) | Mapping::Interlaced { .. } => {
                let shared_bytes = claim.shared_bytes().min(extent.len_bytes);
                if shared_bytes > 0 {
                    self.stats.shared.add(shared_bytes);
                }
                self.stats.plain_bytes =
                    self.stats.plain_bytes.saturating_add(extent.len_bytes - shared_bytes);
            }
            Mapping::Compressed(cluster) => {
                self.stats.algorithms[cluster.algorithm as usize].add(extent.len_bytes);
                match claim.is_shared_whole() {
                    true => self.stats.shared.add(extent.len_bytes),
                    false => self.stats.clusters.add(u64::from(cluster.len_bytes)),
                }
            }
            Mapping::Hole | Mapping::Fragment { .. } => {}
        }
    }
}

impl Visitor for StatsVisitor<'_> {
    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.inode(visit);
        ControlFlow::Continue(())
    }

    fn finding(&mut self, finding: Finding) {
        self.stats.findings.push(finding);
    }
}
