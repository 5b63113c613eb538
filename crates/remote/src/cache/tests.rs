use super::folder::now_s;
use super::format::{GROUP_BLOCKS, Header, Layout, MAX_LEN_BYTES};
use super::*;
use crate::blocks::Loaded;
use crate::eviction::BLOCK_BYTES;
use proptest::prelude::*;
use rustix::fs::SeekFrom;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const KEY: Key = Key([9; 32]);
/// Three groups, and a part of a block.
const LEN: u64 = 40 * BLOCK_BYTES + 777;

fn open(dir: &TempDir, size_bytes: u64) -> Arc<Cache> {
    Cache::open(dir.path(), size_bytes, Box::new(|_| ())).unwrap()
}

/// A cache in a new folder, and an object in it.
fn object() -> (TempDir, Arc<Cache>, CachedObject) {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, MIN_SIZE_BYTES);
    let object = cache.object(&KEY, LEN).unwrap();
    (dir, cache, object)
}

/// The bytes of a block of object `n`.
fn bytes(n: u64, len_bytes: u64, block: u64) -> Vec<u8> {
    let start = block * BLOCK_BYTES;
    let end = (start + BLOCK_BYTES).min(len_bytes);
    (start..end).map(|at| ((at / 8 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn served(blocks: Range<u64>) -> Loaded {
    blocks.map(|block| bytes(0, LEN, block)).collect()
}

fn write(object: &CachedObject, blocks: Range<u64>) {
    object.write(blocks.start, &served(blocks.clone()));
}

/// Reads all of an object, a run at a time as readers do, and returns the blocks that are there. They are right.
fn present(object: &CachedObject) -> Vec<u64> {
    let all = 0..object.blocks();
    let there = all.filter(|block| match object.read(&(*block..block + 1)).as_slice() {
        [] => false,
        read => {
            assert!(read == served(*block..block + 1), "block {block} is wrong");
            true
        }
    });
    there.collect()
}

/// Evicts until the files take `target_bytes`.
fn evict_to(cache: &Cache, target_bytes: u64) {
    let files = evict::files(cache);
    evict::evict_files(cache, &files, files.iter().map(|file| file.used_bytes).sum(), target_bytes);
}

#[test]
fn blocks_survive_the_process_and_are_private() {
    let (dir, cache, object) = object();
    assert_eq!((object.len_bytes(), object.blocks(), present(&object)), (LEN, 41, vec![]));
    write(&object, 14..18);
    write(&object, 40..41);
    assert_eq!(object.read(&(15..20)), served(15..18));
    assert_eq!(object.read(&(13..20)), Loaded::new());
    assert_eq!((object.missing(&(10..20)), object.missing(&(14..20))), (10..14, 14..15));
    let stats = cache.stats();
    assert_eq!((stats.hit_blocks, stats.refused_blocks, stats.error), (3, 0, None));
    assert_eq!(stats.written_bytes, 4 * BLOCK_BYTES + 777);
    drop(object);
    let again = open(&dir, MIN_SIZE_BYTES).object(&KEY, LEN).unwrap();
    assert_eq!(present(&again), [14, 15, 16, 17, 40]);
    let path = dir.path().join(KEY.file_name());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let used = cache.used_bytes();
    assert!((4 * BLOCK_BYTES..6 * BLOCK_BYTES).contains(&used), "{used}");
}

#[test]
fn an_object_is_found_by_its_key_and_another_length_empties_it() {
    let (_dir, cache, object) = object();
    write(&object, 0..2);
    assert!(cache.find(&Key([8; 32])).is_none());
    assert_eq!(cache.find(&KEY).unwrap().len_bytes(), LEN);
    assert!(cache.object(&KEY, 0).is_none() && cache.object(&KEY, MAX_LEN_BYTES + 1).is_none());
    assert_eq!(present(&cache.object(&KEY, LEN).unwrap()), [0, 1]);
    assert_eq!(cache.object(&KEY, LEN + 1).unwrap().read(&(0..1)), Loaded::new());
    assert_eq!(cache.find(&KEY).unwrap().len_bytes(), LEN + 1);
    cache.remove(&KEY);
    assert!(cache.find(&KEY).is_none());
}

#[test]
fn forgotten_blocks_are_not_there_and_a_file_that_cannot_forget_is_not_read() {
    let (_dir, cache, object) = object();
    write(&object, 0..4);
    assert!(object.forget(&(1..3)) && !object.forget(&(1..3)));
    assert_eq!(present(&object), [0, 3]);
    let file = cache.dir.open_file(&KEY.file_name(), pagefold_sys::cachedir::Access::Read).unwrap();
    let read_only = object::Opened { file: Arc::new(file), read_only: None };
    let header = Header { key: KEY, len_bytes: LEN };
    let object = CachedObject::new(cache, header, Layout::of(LEN).unwrap(), read_only);
    assert_eq!(present(&object), [0, 3]);
    assert!(object.forget(&(3..4)));
    assert_eq!(present(&object), [0u64; 0]);
}

/// A file whose blocks `0..40` are there, with its path.
fn filled() -> (TempDir, Arc<Cache>, CachedObject, File) {
    let (dir, cache, object) = object();
    write(&object, 0..41);
    let file = File::options().read(true).write(true).open(dir.path().join(KEY.file_name())).unwrap();
    (dir, cache, object, file)
}

#[test]
fn a_damaged_block_is_not_there_until_it_is_written_again() {
    let (_dir, cache, object, file) = filled();
    let layout = Layout::of(LEN).unwrap();
    let mut byte = [0];
    let at = layout.data(&(7..8)).start + 4321;
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    assert_eq!(object.read(&(5..10)), served(5..7));
    assert_eq!(cache.stats().refused_blocks, 1);
    write(&object, 7..8);
    assert_eq!(present(&object).len(), 41);
    // Blocks that changed places.
    let (a, b) = (layout.checksum_at(3), layout.checksum_at(20));
    let mut checksum = [0; 16];
    file.read_exact_at(&mut checksum, a).unwrap();
    file.write_all_at(&checksum, b).unwrap();
    file.write_all_at(&served(3..4)[0], layout.data(&(20..21)).start).unwrap();
    assert_eq!(object.read(&(20..21)), Loaded::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Writes, reads and forgetting, compared with a map.
    #[test]
    fn a_cached_object_does_what_a_map_does(
        calls in proptest::collection::vec((0..3_u8, 0..41_u64, 1..20_u64), 1..30),
    ) {
        let (_dir, _cache, object) = object();
        let mut map = BTreeMap::new();
        for (call, first, count) in calls {
            let blocks = first..(first + count).min(41);
            match call {
                0 => {
                    write(&object, blocks.clone());
                    map.extend(blocks.clone().zip(served(blocks)));
                }
                1 => {
                    let had = blocks.clone().filter(|block| map.remove(block).is_some()).count() > 0;
                    prop_assert_eq!(object.forget(&blocks), had);
                }
                _ => {
                    let expected: Loaded = blocks.clone().map_while(|block| map.get(&block).cloned()).collect();
                    prop_assert!(object.read(&blocks) == expected);
                }
            }
        }
        prop_assert_eq!(present(&object), map.keys().copied().collect::<Vec<_>>());
    }

    /// Any damage to a file, while it is open and when it is opened again: blocks are right or not there.
    #[test]
    fn damage_costs_blocks_and_nothing_else(
        damages in proptest::collection::vec((any::<u64>(), 1..3000_usize, any::<u8>()), 1..12),
        in_front in any::<bool>(),
        cut in proptest::option::of(any::<u64>()),
    ) {
        let (dir, cache, object, file) = filled();
        let len = file.metadata().unwrap().len();
        for (at, count, byte) in damages {
            // Half of the runs damage the header and the records only.
            let at = at % if in_front { 8192 } else { len };
            file.write_all_at(&vec![byte; count], at).unwrap();
        }
        cut.into_iter().for_each(|cut| file.set_len(cut % len).unwrap());
        present(&object);
        evict_all(&cache);
        cache.find(&KEY).iter().filter(|found| found.len_bytes() == LEN).for_each(|found| _ = present(found));
        let again = open(&dir, MIN_SIZE_BYTES).object(&KEY, LEN).unwrap();
        present(&again);
        write(&again, 0..41);
        prop_assert_eq!(present(&again).len(), 41);
    }

    /// A file of any bytes.
    #[test]
    fn any_file_is_an_empty_object(contents in proptest::collection::vec(any::<u8>(), 0..9000)) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(KEY.file_name()), &contents).unwrap();
        let cache = open(&dir, MIN_SIZE_BYTES);
        prop_assert!(cache.find(&KEY).is_none());
        prop_assert_eq!(present(&cache.object(&KEY, LEN).unwrap()), [0u64; 0]);
    }
}

/// Evicts as if the cache were smaller than anything.
fn evict_all(cache: &Arc<Cache>) {
    evict_to(cache, 0);
}

#[test]
fn the_least_recently_used_groups_of_all_objects_leave() {
    let (dir, cache, first) = object();
    let second = cache.object(&Key([5; 32]), LEN).unwrap();
    write(&first, 0..41);
    second.write(0, &served(0..41));
    let layout = Layout::of(LEN).unwrap();
    let used = |key: Key, group: u64, before_s: u64| {
        let file = File::options().write(true).open(dir.path().join(key.file_name())).unwrap();
        file.write_all_at(&(now_s() - before_s).to_le_bytes(), layout.record_at(group)).unwrap();
    };
    for (key, group, before_s) in [(KEY, 1, 500), (Key([5; 32]), 0, 400), (KEY, 0, 300)] {
        used(key, group, before_s);
    }
    let before = cache.used_bytes();
    let group_bytes = GROUP_BLOCKS * BLOCK_BYTES;
    evict_to(&cache, before - 2 * group_bytes);
    assert_eq!(present(&first), (0..16).chain(32..41).collect::<Vec<_>>());
    assert_eq!(present(&second), (16..41).collect::<Vec<_>>());
    assert_eq!(before - cache.used_bytes(), 2 * group_bytes);
    // Reading the old group made it young. A time in the future is the oldest.
    used(Key([5; 32]), 2, 0);
    let file = File::options().write(true).open(dir.path().join(Key([5; 32]).file_name())).unwrap();
    file.write_all_at(&u64::MAX.to_le_bytes(), layout.record_at(2)).unwrap();
    evict_to(&cache, cache.used_bytes() - 1);
    assert_eq!(present(&second), (16..32).collect::<Vec<_>>());
    assert_eq!(present(&first).len(), 25);
}

#[test]
fn an_object_whose_file_is_evicted_goes_on_with_a_new_one() {
    let (dir, cache, object) = object();
    write(&object, 0..41);
    // Another process evicts.
    let other = open(&dir, MIN_SIZE_BYTES);
    evict_all(&other);
    assert!(!dir.path().join(KEY.file_name()).exists());
    assert_eq!(present(&object), [0u64; 0]);
    write(&object, 3..5);
    assert_eq!(present(&object), [3, 4]);
    assert_eq!(present(&other.object(&KEY, LEN).unwrap()), [3, 4]);
    assert!(cache.stats().error.is_none());
    // Without the folder nothing is stored, and nothing fails.
    std::fs::remove_dir_all(dir.path()).unwrap();
    write(&object, 5..6);
    assert!(cache.stats().error.is_some_and(|e| e.contains("No such file")));
    assert_eq!(present(&object), [3, 4]);
}

#[test]
fn a_cache_stays_within_its_size_and_leaves_other_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("other"), vec![1; 1 << 20]).unwrap();
    std::fs::write(dir.path().join(Key([1; 32]).file_name()), vec![1; 1 << 20]).unwrap();
    let cache = open(&dir, MIN_SIZE_BYTES);
    let len_bytes = 5 * MIN_SIZE_BYTES / 4;
    for n in 0..3 {
        let object = cache.object(&Key([n; 32]), len_bytes).unwrap();
        for block in (0..object.blocks()).step_by(4) {
            let blocks: Vec<_> =
                (block..block + 4).map(|block| bytes(u64::from(n), len_bytes, block)).collect();
            object.write(block, &blocks);
            let used = cache.used_bytes();
            assert!(used <= MIN_SIZE_BYTES, "{used} bytes are used");
        }
        let hits = (0..object.blocks()).filter(|block| !object.read(&(*block..block + 1)).is_empty());
        assert!(hits.count() as u64 * BLOCK_BYTES > MIN_SIZE_BYTES / 2);
    }
    assert!(cache.stats().evicted_bytes > MIN_SIZE_BYTES && dir.path().join("other").exists());
}

/// Threads that fetch ahead store long runs at once, faster than one of them evicts.
#[test]
fn a_cache_that_several_threads_fill_stays_within_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, MIN_SIZE_BYTES);
    let len_bytes = 3 * MIN_SIZE_BYTES;
    // Files that are looked at one after another while threads write have a sum that they never had at once.
    let writing = RwLock::new(());
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (cache, writing) = (&cache, &writing);
            scope.spawn(move || {
                let object = cache.object(&Key([n; 32]), len_bytes).unwrap();
                let run: Vec<_> = (0..32).map(|_| vec![n; BLOCK_BYTES as usize]).collect();
                for block in (0..object.blocks() - 32).step_by(32) {
                    let is_writing = writing.read().unwrap();
                    object.write(block, &run);
                    drop(is_writing);
                    let _nobody_writes = writing.write().unwrap();
                    let used = cache.used_bytes();
                    assert!(used <= MIN_SIZE_BYTES, "{used} bytes are used");
                }
            });
        }
    });
    assert!(cache.stats().evicted_bytes > 0);
}

/// Writes all runs of an object that is larger than the cache, which stays within its size.
fn write_all(cache: &Cache, object: &CachedObject) {
    let run: Vec<_> = (0..32).map(|_| vec![1; BLOCK_BYTES as usize]).collect();
    for block in (0..object.blocks() - 32).step_by(32) {
        object.write(block, &run);
        let used = cache.used_bytes();
        assert!(used <= MIN_SIZE_BYTES, "{used} bytes are used");
    }
}

/// The process that evicts knows nothing of what others write, and may be stopped.
#[test]
fn a_cache_stays_within_its_size_while_another_process_has_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, MIN_SIZE_BYTES);
    let lock = File::create(dir.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let object = cache.object(&KEY, 3 * MIN_SIZE_BYTES).unwrap();
    for _ in 0..3 {
        write_all(&cache, &object);
    }
    assert!(cache.stats().evicted_bytes > 0, "a process that is stopped keeps nobody from making room");
}

/// The folder is also used by programs that put anything there.
#[test]
fn a_cache_stays_within_its_size_although_its_lock_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lock")).unwrap();
    let cache = open(&dir, MIN_SIZE_BYTES);
    let object = cache.object(&KEY, 3 * MIN_SIZE_BYTES).unwrap();
    write_all(&cache, &object);
    assert!(cache.stats().evicted_bytes > 0);
}

/// A server that claims a tebibyte: the records of what was never fetched are a hole, which nobody reads.
#[test]
fn long_objects_of_which_little_was_read_are_looked_at_fast() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, MIN_SIZE_BYTES);
    let blocks = MAX_LEN_BYTES / BLOCK_BYTES;
    for n in 0..8 {
        let object = cache.object(&Key([n; 32]), MAX_LEN_BYTES).unwrap();
        [0, blocks / 2, blocks - 1]
            .into_iter()
            .for_each(|block| object.write(block, &[bytes(0, u64::MAX, 0)]));
    }
    // Records of 8 GiB would take seconds.
    evict_to(&cache, 0);
    assert_eq!(cache.used_bytes(), 0);
}

/// Room that belongs to no known group could never be made free again. The second group stays, so that the file does.
#[test]
fn no_group_that_is_written_while_it_is_evicted_is_lost() {
    let (_dir, cache, object) = object();
    for round in 0..300 {
        write(&object, 0..32);
        std::thread::scope(|scope| {
            scope.spawn(|| write(&object, 0..16));
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(round));
                evict_to(&cache, GROUP_BLOCKS * BLOCK_BYTES * 9 / 8);
            });
        });
        let (file, layout) = (object.file(), object.layout);
        for group in 0..2 {
            let data = layout.group_data(group);
            let is_known = super::folder::read_record(&file, &layout, group).unwrap().used_s() != 0;
            let has_data = rustix::fs::seek(&*file, SeekFrom::Data(data.start)).is_ok_and(|at| at < data.end);
            assert!(is_known || !has_data, "group {group} in round {round}");
        }
    }
}

/// One of the two has a wrong length, and only a digest could say which: neither takes blocks from the other that it has.
#[test]
fn an_object_of_another_length_takes_no_blocks_from_a_process_that_has_the_file_open() {
    let (dir, cache, object) = object();
    write(&object, 0..20);
    let other = open(&dir, MIN_SIZE_BYTES).object(&KEY, LEN + 1).unwrap();
    assert_eq!(present(&object).len(), 20);
    write(&object, 20..30);
    assert_eq!(present(&object).len(), 20, "its file has no name, and the other one is not replaced again");
    other.write(0, &served(0..1));
    assert_eq!(other.read(&(0..1)), served(0..1));
    assert!(cache.stats().error.is_none() && other.cache.stats().error.is_none());
}

#[test]
fn one_process_fetches_and_the_others_wait_for_it() {
    let (dir, _, object) = object();
    let others: Vec<_> = (0..3).map(|_| open(&dir, MIN_SIZE_BYTES).object(&KEY, LEN).unwrap()).collect();
    let fetches = Mutex::new(Vec::new());
    let fetch = |blocks: &Range<u64>| {
        fetches.lock().unwrap().push(blocks.clone());
        std::thread::sleep(Duration::from_millis(50));
        Ok::<_, ()>(served(blocks.clone()))
    };
    let wait = || Wait::Bounded(Instant::now() + Duration::from_secs(60));
    std::thread::scope(|scope| {
        for object in others.iter().chain([&object]) {
            scope.spawn(|| {
                // Blocks of one group are there at once.
                assert_eq!(object.load(&(2..12), wait(), fetch).unwrap(), Some(served(2..12)));
            });
        }
    });
    assert_eq!(fetches.into_inner().unwrap().len(), 1);
    assert!(others.iter().chain([&object]).map(|object| object.cache.stats().waits).sum::<u64>() >= 1);
}

#[test]
fn nobody_waits_long_for_a_process_that_is_stopped_and_nobody_fetches_ahead_of_it() {
    let (dir, _, object) = object();
    let other = open(&dir, MIN_SIZE_BYTES).object(&KEY, LEN).unwrap();
    let soon = || Wait::Bounded(Instant::now() + Duration::from_millis(80));
    let fetched = |blocks: &Range<u64>| Ok::<_, ()>(served(blocks.clone()));
    // The fetch of the first process lasts while the other looks.
    let result = object.load(&(0..4), soon(), |_| {
        assert_eq!(other.load(&(2..6), Wait::Never, |_| Err(())), Ok(None));
        let start = Instant::now();
        assert_eq!(other.load(&(2..6), soon(), fetched), Ok(Some(served(2..6))));
        let took = start.elapsed();
        assert!((50..500).contains(&took.as_millis()), "{took:?}");
        let start = Instant::now();
        assert_eq!(other.load(&(0..2), soon(), fetched), Ok(Some(served(0..2))));
        assert!(start.elapsed() < Duration::from_millis(50), "it waits once");
        Err("the server is away")
    });
    assert_eq!(result, Err("the server is away"));
    // The claim has ended with the fetch.
    assert_eq!(other.load(&(30..31), Wait::Never, fetched), Ok(Some(served(30..31))));
    assert_eq!(present(&object), [0, 1, 2, 3, 4, 5, 30]);
}
