//! Invariant: for any image, opening it, walking its tree and reading its files ends soon, without a panic and within
//! the memory budget, and no read returns more bytes than requested.
//!
//! The input is a seed (`fuzz/seeds`), options, and changes to fields of the seed; then the superblock's checksum is
//! corrected. Random bytes would almost always be refused because of the superblock.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_backing::ByteSource;
use pagefold_fuzz::image::{check_budget, check_extent, repair_checksum};
use pagefold_fuzz::media::memory;
use pagefold_image::read::{FileKind, Mapping};
use pagefold_image::{Address, Image, ImageError, Node, Options, ReadAhead, Space};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

macro_rules! seeds {
    ($($name:literal)*) => { [$(include_bytes!(concat!("../seeds/", $name, ".erofs")).as_slice()),*] };
}

/// Inputs refer to the seeds by their index.
const SEEDS: [&[u8]; 15] = seeds!(
    "plain" "chunks" "blob" "lz4" "lz4k" "zstd" "deflate" "lzma" "fragments" "allfragments" "records4" "records8"
    "records16" "metabox" "metaplain"
);
const BLOB: &[u8] = include_bytes!("../seeds/blob.erofs.device");

/// Largest budget that is tried; a hostile image may need any budget.
const MEMORY_BYTES_MAX: u64 = 24 << 20;
const NODES_MAX: usize = 120;
const ENTRIES_MAX: usize = 400;
/// Directories of which all entries are read.
const WHOLE_DIRECTORIES: u32 = 4;
/// Errors of listing directories, and of the inodes that they name. An image is no larger than the seeds, and the library
/// looks at so many entries.
const ERRORS_MAX: u64 = 8 << 20;
/// Bytes that are read from one file, and from all.
const FILE_BYTES_MAX: u64 = 96 << 10;
const ALL_BYTES_MAX: u64 = 1 << 20;
/// Time limit of one input. It is generous because of sanitizers and busy machines; an endless loop takes longer.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Offsets of a seed's structures: superblock, inodes, attributes, tails, directory blocks, beginnings and ends of
/// clusters.
type Offsets = [Vec<u64>; 7];

static OFFSETS: LazyLock<Vec<Offsets>> = LazyLock::new(|| SEEDS.iter().map(|seed| offsets(seed)).collect());

/// Opens an image, with the further device if the image needs it.
fn open(medium: Arc<dyn ByteSource>, options: &Options) -> Result<Image, ImageError> {
    match Image::open(medium.clone(), options.clone()) {
        Err(ImageError::MissingDevices { .. }) => {
            Image::open(medium, Options { devices: vec![memory(BLOB)], ..options.clone() })
        }
        opened => opened,
    }
}

fn offsets(seed: &[u8]) -> Offsets {
    let image = open(memory(seed), &Options::default()).expect("a seed");
    let sb = image.superblock();
    let mut offsets = Offsets::default();
    offsets[0] = vec![1024, 1024 + 64, 1024 + 128, 1024 + 192];
    let internal = [sb.metabox_nid, sb.packed_nid].into_iter().flatten();
    let mut stack: Vec<Node> =
        internal.map(|nid| image.node(nid).expect("an internal file of the image")).collect();
    let metabox = sb.metabox_nid.and_then(|_| match stack[0].extent_at(0) {
        Ok(Some(extent)) => match extent.mapping {
            Mapping::Plain(at) => Some(at.offset),
            _ => None,
        },
        _ => None,
    });
    let offset_of = |at: Address| match at.space {
        Space::Device(0) => Some(at.offset),
        Space::Device(_) => None,
        Space::Metabox => Some(metabox? + at.offset),
    };
    stack.push(image.root().expect("a root"));
    while let Some(node) = stack.pop() {
        let inode = node.inode();
        offsets[1].extend(offset_of(inode.address));
        offsets[2].extend(inode.xattr_address().and_then(offset_of));
        offsets[3].extend(offset_of(inode.tail));
        let mut offset = 0;
        while let Some(extent) = node.extent_at(offset).expect("an extent of a seed") {
            offset = extent.end();
            match extent.mapping {
                Mapping::Plain(at) if inode.kind == FileKind::Directory => offsets[4].extend(offset_of(at)),
                Mapping::Compressed(cluster) => {
                    offsets[5].extend(offset_of(cluster.at));
                    offsets[6].extend(offset_of(cluster.at).map(|at| at + u64::from(cluster.len_bytes) - 64));
                }
                _ => {}
            }
        }
        if inode.kind == FileKind::Directory {
            let entries = node.entries().expect("a directory");
            stack.extend(entries.map(|entry| image.node(entry.expect("an entry").nid).expect("a node")));
        }
    }
    offsets
}

/// Values at limits of fields.
const SPECIAL: [u64; 16] =
    [0, 1, 2, 3, 4, 0x1f, 0x20, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, !0 >> 1, !0];

/// Changes a field. Byte 0 is the kind of structure, the operation and the width; 1 and 2 the index of the structure;
/// 3 the offset from its beginning; 4 to 6 the value.
fn change(image: &mut [u8], offsets: &Offsets, change: &[u8; 7]) {
    let which = usize::from(u16::from_le_bytes([change[1], change[2]]));
    let start = match offsets.get(usize::from(change[0] & 7)) {
        Some(of_kind) if !of_kind.is_empty() => of_kind[which % of_kind.len()] as usize,
        _ => which * 16,
    };
    let width = 1 << (change[0] >> 5 & 3);
    let Some(field) = start.checked_add(change[3].into()).and_then(|at| image.get_mut(at..at + width)) else {
        return;
    };
    let mut old = [0; 8];
    old[..width].copy_from_slice(field);
    let (old, value) =
        (u64::from_le_bytes(old), u64::from(u32::from_le_bytes([change[4], change[5], change[6], 0])));
    let new = match change[0] >> 3 & 3 {
        0 => value,
        1 => old.wrapping_add(value).wrapping_sub(1 << 12),
        2 => old ^ value,
        _ => SPECIAL[usize::from(change[4]) % SPECIAL.len()],
    };
    field.copy_from_slice(&new.to_le_bytes()[..width]);
}

/// Walks the tree and reads files and attributes, within bounds. Returns the number of errors.
fn explore(image: &Image) -> Result<u64, ImageError> {
    let mut stack = vec![image.root()?];
    let (mut nodes, mut left_bytes, mut errors, mut listed) = (0, ALL_BYTES_MAX, 0, 0);
    while let Some(node) = stack.pop() {
        nodes += 1;
        if nodes > NODES_MAX {
            break;
        }
        if let Ok(xattrs) = node.xattrs() {
            for xattr in xattrs.iter().take(8) {
                let _ = node.xattr(&xattr.name);
            }
        }
        let _ = node.xattr(b"user.none");
        match node.kind() {
            FileKind::Directory => {
                let mut names = Vec::new();
                listed += 1;
                // The first directories are listed to their end: the library ends what does not.
                let most = if listed <= WHOLE_DIRECTORIES { usize::MAX } else { ENTRIES_MAX };
                for entry in node.entries()?.take(most) {
                    match entry {
                        Ok(entry) if names.len() < ENTRIES_MAX => {
                            match image.node(entry.nid) {
                                Ok(node) if stack.len() < NODES_MAX => stack.push(node),
                                Ok(_) => {}
                                Err(_) => errors += 1,
                            }
                            names.push(entry.name);
                        }
                        Ok(_) => {}
                        Err(_) => errors += 1,
                    }
                }
                for name in names.iter().take(4).map(Vec::as_slice).chain([&b"none"[..], b"..", b"."]) {
                    let _ = node.lookup(name);
                }
            }
            FileKind::Symlink => _ = node.read_link(),
            _ => left_bytes = left_bytes.saturating_sub(read(&node, left_bytes)),
        }
    }
    Ok(errors)
}

/// Reads a file: sequentially up to a limit, and at some other offsets. Returns an amount to subtract from the limit.
fn read(node: &Node, allowed_bytes: u64) -> u64 {
    let mut buf = vec![0x5a; 20_000];
    let (size, step) = (node.len_bytes(), 16_384);
    let mut at = 0;
    while at < size.min(FILE_BYTES_MAX).min(allowed_bytes) {
        // The read must not write to the buffer after the requested part.
        let read = node.read_at(at, &mut buf[..step]);
        assert!(buf[step..].iter().all(|byte| *byte == 0x5a));
        match read {
            Ok(len) => assert_eq!(len as u64, (size - at).min(step as u64)),
            Err(_) => break,
        }
        at += step as u64;
    }
    for offset in [1, size / 2, size.saturating_sub(1), size, u64::MAX] {
        if let Ok(len) = node.read_at(offset, &mut buf[..100]) {
            assert_eq!(len as u64, size.saturating_sub(offset).min(100));
        }
        if let Ok(Some(extent)) = node.extent_at(offset) {
            check_extent(&extent, offset, size);
        }
    }
    at + 500
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, changes)) = input.split_first_chunk::<2>() else { return };
    let began = Instant::now();
    let seed = usize::from(choice[0]) % SEEDS.len();
    let mut bytes = SEEDS[seed].to_vec();
    for one in changes.as_chunks().0.iter().take(32) {
        change(&mut bytes, &OFFSETS[seed], one);
    }
    repair_checksum(&mut bytes);
    let medium = memory(&bytes);
    let mut options = Options {
        memory_bytes: 0,
        read_ahead: if choice[1] & 7 == 7 { ReadAhead::BestEffort } else { ReadAhead::Off },
        read_ahead_threads: 1,
        cache_full_reads: choice[1] & 8 != 0,
        devices: Vec::new(),
        caller_bytes: 0,
    };
    // The smallest budget with which the image opens, plus an amount that the input chooses.
    match open(medium.clone(), &options) {
        Err(ImageError::TooLittleMemory { needed_bytes, .. }) if needed_bytes <= MEMORY_BYTES_MAX => {
            options.memory_bytes = needed_bytes + (u64::from(choice[1] >> 4) << 16);
        }
        _ => return,
    }
    if let Ok(image) = open(medium, &options) {
        let errors = explore(&image).unwrap_or(0);
        assert!(errors <= ERRORS_MAX, "{errors} errors");
        check_budget(&image);
    }
    assert!(began.elapsed() < TIME_MAX, "it took {:?}", began.elapsed());
});
