//! Digests of fs-verity against another implementation and a naive one, and sources that are verified.

use crate::support::features::memory;
use pagefold_backing::{Backing, BackingError, ByteSource, MemoryBacking, Prefetched};
use pagefold_image::verity::{Descriptor, Digest, Salt, VerifiedSource, VerityError, measure};
use pagefold_testkit::skipped;
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

const MIB: usize = 1 << 20;

/// The beginning of the contents that `fixtures/README.md` defines.
fn contents(len: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..(64 * MIB as u64 + 8192) / 32).flat_map(|n| Sha256::digest(n.to_le_bytes())).collect()
    });
    &ALL[..len]
}

/// The tree and the descriptor that `measure` computes.
fn measured(data: &[u8], salt: &Salt, threads: usize) -> (Vec<u8>, Descriptor) {
    let tree = Mutex::new(Vec::new());
    let write = |at: u64, node: &[u8; 4096]| {
        let (mut tree, end) = (tree.lock().unwrap(), at as usize + 4096);
        let len = tree.len().max(end);
        tree.resize(len, 0xee);
        tree[at as usize..end].copy_from_slice(node);
        Ok(())
    };
    let descriptor =
        measure(&*memory(data), salt, threads, &write, &mut |_| ControlFlow::Continue(())).unwrap();
    (tree.into_inner().unwrap(), descriptor)
}

/// The tree and the root hash, computed from the definition: level by level, all in memory.
fn naive(data: &[u8], salt: &[u8]) -> (Vec<u8>, [u8; 32]) {
    let hash = |block: &[u8]| -> [u8; 32] {
        let mut bytes = salt.to_vec();
        bytes.resize(if salt.is_empty() { 0 } else { 64 }, 0);
        let len = bytes.len();
        bytes.extend(block);
        bytes.resize(len + 4096, 0);
        Sha256::digest(bytes).into()
    };
    let mut level: Vec<[u8; 32]> = data.chunks(4096).map(hash).collect();
    let mut tree = Vec::new();
    while level.len() > 1 {
        let mut bytes = level.concat();
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        level = bytes.chunks(4096).map(hash).collect();
        tree.splice(0..0, bytes);
    }
    (tree, level.first().copied().unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn digests_and_trees_are_those_of_fsverity() {
    let fixture = include_str!("../fixtures/verity.tsv");
    let mut count = 0;
    for line in fixture.lines().skip(1) {
        let [len, salt, digest, tree_sum] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let (tree, descriptor) = measured(contents(len.parse().unwrap()), &salt.parse().unwrap(), 3);
        assert_eq!(descriptor.digest().to_string(), format!("sha256:{digest}"), "{line}");
        assert_eq!(hex(&Sha256::digest(&tree)), tree_sum, "{line}");
        count += 1;
    }
    assert_eq!(count, 12);
}

/// Compares with the program itself where it is installed: other contents, and the bytes of the files.
#[test]
fn the_program_fsverity_writes_the_same_files() {
    if Command::new("fsverity").arg("--version").output().is_err() {
        skipped!("the_program_fsverity_writes_the_same_files: no program fsverity");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (len, salt) in [(0, ""), (5000, "a1b2"), (3 * MIB + 77, "")] {
        let data: Vec<u8> = contents(len).iter().map(|byte| byte ^ 0x55).collect();
        std::fs::write(path("data"), &data).unwrap();
        let mut command = Command::new("fsverity");
        command.args(["digest", "--compact", &path("data")]);
        command.args([format!("--out-merkle-tree={}", path("tree"))]);
        command.args([format!("--out-descriptor={}", path("descriptor"))]);
        if !salt.is_empty() {
            command.arg(format!("--salt={salt}"));
        }
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        let (tree, descriptor) = measured(&data, &salt.parse().unwrap(), 2);
        let printed = String::from_utf8(out.stdout).unwrap();
        assert_eq!(format!("sha256:{}", printed.trim()), descriptor.digest().to_string());
        assert_eq!(std::fs::read(path("tree")).unwrap(), tree);
        assert_eq!(std::fs::read(path("descriptor")).unwrap(), descriptor.to_bytes());
    }
}

#[test]
fn measuring_stops_at_the_first_error_and_when_it_is_cancelled() {
    let data = memory(contents(5 * MIB));
    let ours = std::thread::current().id();
    let (mut calls, (until_cancelled, cancellation)) = (0, std::sync::mpsc::channel::<()>());
    let (mut until_cancelled, cancellation) = (Some(until_cancelled), std::sync::Mutex::new(cancellation));
    // The other thread could hash all runs before this one has its turn: it waits until this one has cancelled.
    let ok = |_: u64, _: &[u8; 4096]| {
        if std::thread::current().id() != ours {
            cancellation.lock().unwrap().recv().unwrap_err();
        }
        Ok(())
    };
    let cancelled = measure(&*data, &Salt::default(), 2, &ok, &mut |done_bytes| {
        calls += 1;
        assert!(done_bytes >= calls << 19);
        until_cancelled.take();
        ControlFlow::Break(())
    });
    assert_eq!(calls, 1);
    assert_eq!(cancelled, Err(VerityError::Cancelled));
    let full = |_: u64, _: &[u8; 4096]| Err(std::io::Error::from_raw_os_error(libc::ENOSPC));
    let failed = measure(&*data, &Salt::default(), 2, &full, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(failed.to_string().contains("No space left"), "{failed}");
}

/// A medium and its tree, open for verified reading and for changes.
struct Pair {
    data: Arc<MemoryBacking>,
    tree: Arc<MemoryBacking>,
    digest: Digest,
    salt: Salt,
}

impl Pair {
    fn new(data: &[u8], salt: &str) -> Self {
        let salt = salt.parse().unwrap();
        let (tree, descriptor) = measured(data, &salt, 1);
        Pair { data: memory(data), tree: memory(&tree), digest: descriptor.digest(), salt }
    }

    fn open(&self) -> Result<VerifiedSource, VerityError> {
        VerifiedSource::open(self.data.clone(), self.tree.clone(), self.digest, &self.salt)
    }
}

/// Changes one bit of a byte.
fn flip(medium: &MemoryBacking, at: u64) {
    let mut byte = [0];
    medium.read_at(at, &mut byte).unwrap();
    medium.write_at(at, &[byte[0] ^ 4]).unwrap();
}

/// The blocks whose reads fail.
fn failing_blocks(source: &VerifiedSource) -> Vec<u64> {
    let blocks = source.len_bytes().div_ceil(4096);
    let read = |block: &u64| {
        let len = (source.len_bytes() - block * 4096).min(4096);
        let result = source.read_at(block * 4096, &mut vec![0; len as usize]);
        assert!(matches!(&result, Ok(()) | Err(BackingError::Mismatch { .. })), "{result:?}");
        result.is_err()
    };
    (0..blocks).filter(read).collect()
}

/// Each kind of byte: of data, of a leaf, of a node between, of the root. The reads of all blocks below the byte fail.
#[test]
fn a_changed_byte_fails_the_reads_of_the_blocks_that_depend_on_it_and_no_others() {
    let len = 65 * MIB / 2 + 100;
    let pair = Pair::new(contents(len), "07");
    let blocks = (len as u64).div_ceil(4096);
    // Above 8321 blocks are 66 nodes, and the root.
    assert_eq!((blocks, pair.tree.len_bytes()), (8321, 67 * 4096));
    assert!(failing_blocks(&pair.open().unwrap()).is_empty());

    let last = len as u64 - 1;
    for (at, block) in [(0, 0), (4095, 0), (4096, 1), (last, blocks - 1)] {
        flip(&pair.data, at);
        assert_eq!(failing_blocks(&pair.open().unwrap()), [block]);
        flip(&pair.data, at);
    }
    // The hash of block 5, of the last block, and the zeroes behind it: all in a node of 128 hashes or less.
    for (at, blocks) in [(4096 + 5 * 32, 0..128), (66 * 4096, 8320..8321), (66 * 4096 + 4095, 8320..8321)] {
        flip(&pair.tree, at);
        assert_eq!(failing_blocks(&pair.open().unwrap()), blocks.collect::<Vec<_>>());
        flip(&pair.tree, at);
    }
    for at in [0, 65 * 32, 4095] {
        flip(&pair.tree, at);
        assert!(matches!(pair.open(), Err(VerityError::WrongDigest { .. })));
        flip(&pair.tree, at);
    }
    assert!(failing_blocks(&pair.open().unwrap()).is_empty());
}

#[test]
fn a_node_that_was_verified_is_trusted_only_in_memory() {
    let pair = Pair::new(contents(3 * MIB), "");
    let source = pair.open().unwrap();
    let mut byte = [0];
    source.read_at(10, &mut byte).unwrap();
    // The root and the first node are in memory now; the second node is not.
    (0..pair.tree.len_bytes()).step_by(64).for_each(|at| flip(&pair.tree, at));
    assert_eq!(failing_blocks(&source), (128..768).collect::<Vec<_>>());
    let mut buf = [0; 4096];
    let error = source.read_at(200 * 4096, &mut buf).unwrap_err();
    let text = "block 2 of the Merkle tree (4096 bytes at 8192) differs from its digest";
    assert_eq!((error.to_string().as_str(), error.errno()), (text, libc::EIO));
    flip(&pair.data, 4096 * 3 + 1);
    let error = source.read_at(4096 * 2 + 50, &mut [0; 9000]).unwrap_err();
    assert_eq!(error.to_string(), "block 3 (4096 bytes at 12288) differs from its digest");
}

/// A medium with a cache of wrong bytes for some blocks, until they are discarded.
struct WronglyCached {
    medium: Arc<MemoryBacking>,
    wrong: Mutex<BTreeSet<u64>>,
    reads: AtomicU64,
}

impl ByteSource for WronglyCached {
    fn len_bytes(&self) -> u64 {
        self.medium.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.medium.read_at(offset, buf)?;
        let wrong = self.wrong.lock().unwrap();
        for (at, byte) in (offset..).zip(buf) {
            *byte ^= u8::from(wrong.contains(&(at / 4096)));
        }
        Ok(())
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        let mut wrong = self.wrong.lock().unwrap();
        let before = wrong.len();
        wrong.retain(|block| !(offset / 4096..(offset + len_bytes).div_ceil(4096)).contains(block));
        wrong.len() < before
    }

    fn describe(&self) -> String {
        "wrongly cached".into()
    }
}

#[test]
fn wrong_bytes_of_a_cache_are_discarded_and_read_once_more() {
    let pair = Pair::new(contents(3 * MIB), "");
    let cached = |medium: &Arc<MemoryBacking>, wrong: &[u64]| {
        let wrong = Mutex::new(wrong.iter().copied().collect());
        Arc::new(WronglyCached { medium: medium.clone(), wrong, reads: AtomicU64::new(0) })
    };
    // A data block that is read in part, two that are read at once, and a node of the tree.
    let (data, tree) = (cached(&pair.data, &[3, 10, 11]), cached(&pair.tree, &[2]));
    let source = VerifiedSource::open(data.clone(), tree.clone(), pair.digest, &pair.salt).unwrap();
    source.read_at(3 * 4096 + 5, &mut [0; 9]).unwrap();
    source.read_at(8 * 4096, &mut vec![0; 8 * 4096]).unwrap();
    source.read_at(200 * 4096, &mut [0; 4096]).unwrap();
    assert!(data.wrong.lock().unwrap().is_empty() && tree.wrong.lock().unwrap().is_empty());
    assert!(failing_blocks(&source).is_empty());
    // A medium that is wrong itself: one more read, and an error.
    flip(&pair.data, 50 * 4096);
    data.wrong.lock().unwrap().insert(50);
    data.reads.store(0, Ordering::Relaxed);
    assert!(source.read_at(50 * 4096, &mut [0; 4096]).is_err());
    assert_eq!(data.reads.swap(0, Ordering::Relaxed), 2);
    assert!(source.read_at(50 * 4096, &mut [0; 4096]).is_err());
    assert_eq!(data.reads.load(Ordering::Relaxed), 1);
}

#[test]
fn another_digest_salt_length_or_tree_is_refused() {
    let pair = Pair::new(contents(MIB), "aa");
    let open = |data: &[u8], tree: Vec<u8>, digest, salt: &str| {
        VerifiedSource::open(memory(data), memory(&tree), digest, &salt.parse().unwrap()).map(drop)
    };
    let (data, mut tree) = (contents(MIB), vec![0; pair.tree.len_bytes() as usize]);
    pair.tree.read_at(0, &mut tree).unwrap();
    assert_eq!(open(data, tree.clone(), pair.digest, "aa"), Ok(()));
    let is_wrong = |result| matches!(result, Err(VerityError::WrongDigest { .. }));
    assert!(is_wrong(open(data, tree.clone(), Digest([1; 32]), "aa")));
    assert!(is_wrong(open(data, tree.clone(), pair.digest, "")));
    assert!(is_wrong(open(data, tree.clone(), pair.digest, "aa00")));
    // The length is a part of the digest, even where the number of blocks is the same.
    assert!(is_wrong(open(&data[..MIB - 1], tree.clone(), pair.digest, "aa")));
    for tree in [vec![], tree[..tree.len() - 1].to_vec(), [&tree[..], &[0]].concat()] {
        assert!(matches!(open(data, tree, pair.digest, "aa"), Err(VerityError::TreeLength { .. })));
    }
    for len in [0, 1, 4096] {
        let small = Pair::new(contents(len), "");
        assert!(failing_blocks(&small.open().unwrap()).is_empty());
        let wrong = VerifiedSource::open(small.data, small.tree, pair.digest, &small.salt);
        assert!(is_wrong(wrong.map(drop)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn measuring_is_as_the_definition_says(
        len in prop_oneof![0..20_000_usize, 500_000..1_600_000_usize],
        salt in proptest::collection::vec(any::<u8>(), 0..=32),
        threads in 1..4_usize,
    ) {
        let data = contents(len);
        let (tree, descriptor) = measured(data, &hex(&salt).parse().unwrap(), threads);
        let (naive_tree, root_hash) = naive(data, &salt);
        prop_assert!(tree == naive_tree);
        prop_assert_eq!(descriptor.root_hash, root_hash);
    }

    #[test]
    fn verified_reads_return_the_bytes_of_the_source(
        len in 1..1_500_000_usize,
        reads in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..8),
    ) {
        let source = Pair::new(contents(len), "").open().unwrap();
        for (from, to) in reads {
            let (from, to) = (from as usize % len, to as usize % (len + 1));
            let (from, to) = (from.min(to), from.max(to));
            let mut buf = vec![0; to - from];
            source.read_at(from as u64, &mut buf).unwrap();
            prop_assert!(buf == contents(len)[from..to]);
        }
        let is_outside = matches!(source.read_at(1, &mut vec![0; len]), Err(BackingError::OutOfRange { .. }));
        prop_assert!(is_outside);
    }

    #[test]
    fn a_read_fails_if_and_only_if_a_block_that_it_touches_was_changed(
        len in 4096..1_200_000_usize,
        changed in any::<u64>(),
        from in any::<u64>(),
        read_len in 0..200_000_usize,
    ) {
        let pair = Pair::new(contents(len), "");
        let changed = changed % len as u64;
        flip(&pair.data, changed);
        let from = from as usize % len;
        let mut buf = vec![0; read_len.min(len - from)];
        let result = pair.open().unwrap().read_at(from as u64, &mut buf);
        let end = (from + buf.len()) as u64;
        let touches = !buf.is_empty() && changed / 4096 >= from as u64 / 4096 && changed / 4096 <= (end - 1) / 4096;
        prop_assert_eq!(result.is_err(), touches);
    }
}

/// A source that notes what is read and prefetched.
struct Noting {
    inner: Arc<MemoryBacking>,
    read: Mutex<Vec<std::ops::Range<u64>>>,
    prefetched: Mutex<Vec<std::ops::Range<u64>>>,
}

impl ByteSource for Noting {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.read.lock().unwrap().push(offset..offset + buf.len() as u64);
        self.inner.read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        self.prefetched.lock().unwrap().push(offset..offset + len_bytes);
        Prefetched::Done
    }

    fn describe(&self) -> String {
        "a test".to_string()
    }
}

/// The slow twin is reading: the hashes that it needs are those that were prefetched, and the root.
#[test]
fn a_prefetch_of_verified_bytes_fetches_their_hashes_too() {
    for len in [5000, 3 * MIB + 77, 64 * MIB + 8192] {
        let data = contents(len);
        let (tree, descriptor) = measured(data, &Salt::default(), 2);
        let noting = |bytes: &[u8]| {
            let (read, prefetched) = (Mutex::default(), Mutex::default());
            Arc::new(Noting { inner: memory(bytes), read, prefetched })
        };
        for (from, range_len) in [(0, 1), (4096, 904), (len / 3, len / 2), (len - 1, 1), (0, len)] {
            let (data, tree) = (noting(data), noting(&tree));
            let source =
                VerifiedSource::open(data.clone(), tree.clone(), descriptor.digest(), &Salt::default())
                    .unwrap();
            assert_eq!(source.prefetch(from as u64, range_len as u64), Prefetched::Done);
            let wanted = from as u64..(from + range_len) as u64;
            assert_eq!(data.prefetched.lock().unwrap().as_slice(), std::slice::from_ref(&wanted));
            tree.read.lock().unwrap().clear();
            source.read_at(from as u64, &mut vec![0; range_len]).unwrap();
            let prefetched = tree.prefetched.lock().unwrap().clone();
            let level_0 =
                tree.len_bytes() - (len.div_ceil(4096).div_ceil(128) * 4096) as u64 * u64::from(len > 4096);
            for read in tree.read.lock().unwrap().iter().filter(|read| read.start >= level_0) {
                let is_there =
                    prefetched.iter().any(|range| range.start <= read.start && read.end <= range.end);
                assert!(is_there, "{len} {from} {range_len}: {read:?} is not in {prefetched:?}");
            }
            assert!(prefetched.iter().all(|range| range.end <= tree.len_bytes()));
        }
        let source =
            VerifiedSource::open(noting(data), noting(&tree), descriptor.digest(), &Salt::default()).unwrap();
        assert_eq!(source.prefetch(len as u64, 1), Prefetched::Failed);
    }
}
