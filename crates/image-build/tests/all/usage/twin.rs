//! The slow twin of the usage report: a map with an entry for each byte of each device.
//!
//! It reads the ends of indexes and the places of shared attributes from the raw bytes. Only extents, the superblock and
//! the inodes' fields are the library's.

use pagefold_image::format::zmap::{MapHeader, advise};
use pagefold_image::read::superblock::PrefixPlace;
use pagefold_image::read::{Algorithm, FileKind, Layout, Mapping};
use pagefold_image::usage::{FileUsage, LISTED_FILES, UsagePart, WORST_LEN_BYTES};
use pagefold_image::walk::{Limits, Link, Visit, Visitor, walk};
use pagefold_image::{Address, Finding, Image, Node, Space};
use std::cmp::Reverse;
use std::ops::ControlFlow;

/// The uses of an image's bytes.
pub struct Twin {
    /// The bytes of each device.
    devices: Vec<Vec<u8>>,
    /// The use of each of them.
    pub parts: Vec<Vec<UsagePart>>,
    /// First byte, length and device of ranges of the address space of the image.
    mapped: Vec<(u64, u64, usize)>,
    image: Image,
    packed: (u64, u64),
    metabox: (u64, u64),
    pub fragment_bytes: u64,
    directory_fragment_bytes: u64,
    pub saved_bytes: u64,
    pub files: Vec<FileUsage>,
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Twin {
    /// Attributes all bytes of an image, whose devices have these contents.
    pub fn of(image: &Image, devices: Vec<Vec<u8>>) -> Self {
        let superblock = image.superblock();
        let block_bytes = u64::from(superblock.block_bytes());
        let ranges = superblock.devices.iter().enumerate().filter_map(|(n, device)| {
            Some((device.unified_start? * block_bytes, device.blocks * block_bytes, n + 1))
        });
        let mut twin = Twin {
            parts: devices.iter().map(|bytes| vec![UsagePart::Unused; bytes.len()]).collect(),
            devices,
            mapped: ranges.collect(),
            image: image.clone(),
            packed: (1, 0),
            metabox: (1, 0),
            fragment_bytes: 0,
            directory_fragment_bytes: 0,
            saved_bytes: 0,
            files: Vec::new(),
        };
        twin.head();
        if let Some(nid) = superblock.metabox_nid {
            let node = image.node(nid).unwrap();
            twin.metabox = (node.len_bytes(), twin.node(&node, Some(UsagePart::Metabox)));
        }
        if let Some(nid) = superblock.packed_nid {
            let node = image.node(nid).unwrap();
            twin.packed = (node.len_bytes(), twin.node(&node, Some(UsagePart::Fragments)));
        }
        walk(image, &Limits::default(), &mut twin).unwrap();
        let fragments = twin.fragment_bytes.saturating_sub(twin.packed.0);
        twin.saved_bytes += fragments * twin.packed.1 / twin.packed.0;
        twin
    }

    /// Bytes of all devices with a use. Directories have a part of the packed file by their length.
    pub fn part_bytes(&self, part: UsagePart) -> u64 {
        let bytes = self.parts.iter().flatten().filter(|found| **found == part).count() as u64;
        let packed = self.directory_fragment_bytes * self.packed.1 / self.packed.0;
        match part {
            UsagePart::Directories => bytes + packed,
            UsagePart::Fragments => bytes - packed,
            _ => bytes,
        }
    }

    /// The superblock with its records, which a zero or an inode follows, the device table and the prefixes.
    fn head(&mut self) {
        let raw = &self.devices[0][1024..];
        let mut end = 128 + 16 * usize::from(raw[0x0d]);
        if le(&raw[0x50..0x54]) & 2 != 0 {
            for _ in 0..le(&raw[0x54..0x56]).count_ones() {
                end = end.next_multiple_of(4);
                end += 2 + le(&raw[end..end + 2]) as usize;
            }
        }
        let (table, count) = (128 * le(&raw[0x58..0x5a]), le(&raw[0x56..0x58]));
        self.mark(UsagePart::Superblock, Address::image(0), 1024 + end as u64);
        if !self.image.superblock().devices.is_empty() {
            self.mark(UsagePart::Superblock, Address::image(table), 128 * count);
        }
        let prefixes = self.image.superblock().prefixes;
        if let PrefixPlace::Space(space @ Space::Device(_)) = prefixes.place {
            let mut at = prefixes.offset;
            for _ in 0..prefixes.count {
                let len = 2 + le(&self.devices[0][at as usize..][..2]);
                self.mark(UsagePart::Xattrs, Address { space, offset: at }, len.next_multiple_of(4));
                at += len.next_multiple_of(4);
            }
        }
    }

    /// Attributes the bytes of a range that are not attributed yet, and returns their number.
    fn mark(&mut self, part: UsagePart, at: Address, len_bytes: u64) -> u64 {
        // Metadata in the metabox is stored with the metabox.
        let Space::Device(device) = at.space else { return 0 };
        let parts = &mut self.parts[usize::from(device)];
        let end = (at.offset + len_bytes).min(parts.len() as u64);
        let mut new = 0;
        for place in &mut parts[at.offset as usize..end as usize] {
            if *place == UsagePart::Unused {
                (*place, new) = (part, new + 1);
            }
        }
        self.saved_bytes += match part {
            UsagePart::Inodes | UsagePart::Indexes | UsagePart::Xattrs | UsagePart::Superblock => 0,
            _ => end - at.offset - new,
        };
        new
    }

    /// Attributes an inode and its contents; `part` is that of hidden files. Returns the stored bytes of the contents.
    fn node(&mut self, node: &Node, part: Option<UsagePart>) -> u64 {
        let inline_bytes = self.inode(node);
        let mut stored = 0;
        for extent in node.extents().map(Result::unwrap) {
            let is_inline = extent.end() == node.len_bytes() && inline_bytes > 0;
            let has_records = self.index_end(node).is_some_and(|(_, has_records)| has_records);
            let block_bytes = u64::from(self.image.superblock().block_bytes());
            let (at, len, found) = match extent.mapping {
                Mapping::Hole => continue,
                Mapping::Fragment { .. } => {
                    self.fragment_bytes += extent.len_bytes;
                    if node.kind() == FileKind::Directory {
                        self.directory_fragment_bytes += extent.len_bytes;
                    }
                    stored += extent.len_bytes * self.packed.1 / self.packed.0;
                    continue;
                }
                Mapping::Plain(at) if has_records || is_inline => (at, extent.len_bytes, UsagePart::Plain),
                Mapping::Plain(at) if at.offset % block_bytes != 0 => {
                    (at, extent.len_bytes, UsagePart::Plain)
                }
                Mapping::Plain(at) => (at, extent.len_bytes.next_multiple_of(block_bytes), UsagePart::Plain),
                Mapping::Interlaced { at, len_bytes } => (at, len_bytes.into(), UsagePart::Plain),
                Mapping::Compressed(c) => (c.at, c.len_bytes.into(), algorithm(c.algorithm)),
            };
            if at.space == Space::Metabox {
                stored += len * self.metabox.1 / self.metabox.0;
                continue;
            }
            let found = part.unwrap_or(match node.kind() {
                FileKind::Directory => UsagePart::Directories,
                _ if is_inline => UsagePart::Inline,
                _ => found,
            });
            let own = self.mapped.iter().find(|(start, len, _)| {
                at.space == Space::Device(0) && (*start..start + len).contains(&at.offset)
            });
            let at = own.map_or(at, |(start, _, device)| Address {
                space: Space::Device(*device as u16),
                offset: at.offset - start,
            });
            stored += self.mark(found, at, len);
        }
        stored
    }

    /// Attributes an inode and what is behind it, except inline contents, whose length is returned.
    fn inode(&mut self, node: &Node) -> u64 {
        let inode = node.inode().clone();
        let (start, tail) = (inode.address, inode.tail);
        self.mark(UsagePart::Inodes, start, if inode.extended { 64 } else { 32 });
        let xattrs = u64::from(inode.xattr_bytes);
        let area = Address { offset: tail.offset - xattrs, ..tail };
        self.mark(UsagePart::Xattrs, area, xattrs);
        if xattrs > 0 {
            self.shared_xattrs(area);
        }
        let (end, _) = self.index_end(node).unwrap_or((tail.offset, false));
        self.mark(UsagePart::Indexes, tail, end - tail.offset);
        let inline = match inode.layout {
            Layout::Inline { tail_bytes, .. } => tail_bytes.into(),
            _ => self.index_header(node).map_or(0, |header| {
                let is_inline = header.whole_fragment().is_none() && header.advises(advise::INLINE);
                if is_inline { header.inline_bytes().into() } else { 0 }
            }),
        };
        let end = Address { offset: end + inline, ..tail };
        self.mark(UsagePart::Inodes, end, end.offset.next_multiple_of(32) - end.offset);
        inline
    }

    fn shared_xattrs(&mut self, area: Address) {
        let superblock = self.image.superblock().clone();
        if superblock.shared_xattrs_in_metabox {
            return;
        }
        let at = |within| Address { offset: area.offset + within, ..area };
        let count = self.bytes::<1>(at(4))[0];
        for id in (0..u64::from(count)).map(|n| le(&self.bytes::<4>(at(12 + 4 * n)))).collect::<Vec<_>>() {
            let at = Address::image((u64::from(superblock.xattr_blkaddr) << superblock.block_bits) + 4 * id);
            let entry = self.bytes::<4>(at);
            let len = 4 + u64::from(entry[0]) + le(&entry[2..4]);
            self.mark(UsagePart::Xattrs, at, len.next_multiple_of(4));
        }
    }

    /// Bytes of metadata.
    fn bytes<const N: usize>(&self, at: Address) -> [u8; N] {
        let mut bytes = [0; N];
        match (at.space, self.image.superblock().metabox_nid) {
            (Space::Metabox, Some(nid)) => {
                _ = self.image.node(nid).unwrap().read_at(at.offset, &mut bytes).unwrap();
            }
            _ => bytes.copy_from_slice(&self.devices[0][at.offset as usize..][..N]),
        }
        bytes
    }

    /// The header of an index.
    fn index_header(&self, node: &Node) -> Option<MapHeader> {
        let inode = node.inode();
        let is_compressed = matches!(inode.layout, Layout::CompressedFull | Layout::CompressedCompact);
        if !is_compressed || inode.size == 0 {
            return None;
        }
        let at = Address { offset: inode.tail.offset.next_multiple_of(8), ..inode.tail };
        Some(MapHeader::parse(self.bytes(at)))
    }

    /// The end of an index or of an array of chunks, and whether the index has records.
    fn index_end(&self, node: &Node) -> Option<(u64, bool)> {
        let inode = node.inode();
        if let Layout::Chunks { chunk_bits, indexed, .. } = inode.layout {
            let entry = if indexed { 8 } else { 4 };
            let chunks = inode.size.div_ceil(1 << chunk_bits);
            return Some((inode.tail.offset.next_multiple_of(entry) + chunks * entry, false));
        }
        let header = self.index_header(node)?;
        let begin = inode.tail.offset.next_multiple_of(8) + 8;
        let superblock = self.image.superblock();
        let entries = inode.size.div_ceil(1 << (superblock.block_bits + header.lcluster_shift()));
        if header.whole_fragment().is_some() {
            return Some((begin, false));
        }
        let is_full = inode.layout == Layout::CompressedFull;
        if is_full && superblock.wide_addresses && header.advises(advise::EXTENTS) {
            let len = 1 << header.record_bits();
            let count = if len >= 16 { header.record_count() } else { entries };
            let first = begin.next_multiple_of(len) + if len == 4 { 8 } else { 0 };
            return Some((first + count * len, true));
        }
        if is_full {
            return Some((begin + 8 + 8 * entries, false));
        }
        // Packs of two entries up to a multiple of 32 bytes, packs of sixteen, packs of two.
        let mut at = begin;
        let mut left = entries;
        while left > 0 {
            let short = header.advises(advise::COMPACTED_2B)
                && at.is_multiple_of(32)
                && left >= 16
                && entries > (32 - begin % 32) / 4 % 8;
            (at, left) = if short { (at + 32, left - 16) } else { (at + 8, left.saturating_sub(2)) };
        }
        Some((at, false))
    }

    /// The first files by a key, the largest key first.
    pub fn first<K: Ord>(&self, key: impl Fn(&FileUsage) -> K, least_bytes: u64) -> Vec<FileUsage> {
        let mut files: Vec<_> =
            self.files.iter().filter(|file| file.len_bytes >= least_bytes).cloned().collect();
        files.sort_by_key(|file| (Reverse(key(file)), file.path.clone()));
        files.truncate(LISTED_FILES);
        files
    }

    /// The files with most stored bytes, and those with most for each byte of contents.
    pub fn lists(&self) -> [Vec<FileUsage>; 2] {
        // Lengths in tests are below 2^32, so fractions that differ do so by more than the rounding.
        let fraction = |file: &FileUsage| {
            ((u128::from(file.stored_bytes) << 64) / u128::from(file.len_bytes), file.stored_bytes)
        };
        [self.first(|file| file.stored_bytes, 0), self.first(fraction, WORST_LEN_BYTES)]
    }
}

fn algorithm(algorithm: Algorithm) -> UsagePart {
    [UsagePart::Lz4, UsagePart::Lzma, UsagePart::Deflate, UsagePart::Zstd][algorithm as usize]
}

impl Visitor for Twin {
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        self.node(visit.node, None);
        ControlFlow::Continue(true)
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        if visit.link == Link::First {
            let stored_bytes = self.node(visit.node, None);
            if visit.node.kind() == FileKind::Regular {
                let (path, len_bytes) = (visit.path.to_vec(), visit.node.len_bytes());
                self.files.push(FileUsage { path, len_bytes, stored_bytes });
            }
        }
        ControlFlow::Continue(())
    }

    fn finding(&mut self, finding: Finding) {
        panic!("{finding}");
    }
}
