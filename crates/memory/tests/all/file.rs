//! A region that begins with the bytes of a file is like a private copy of it, and never a mix of two versions.

use crate::support::{MODES, Random, bytes_of, each, noise, run_to_sigbus, text};
use pagefold_memory::{Advice, RangeError, Region, RegionConfig, RegionError};
use rustix::fs::{FallocateFlags, MemfdFlags, Timespec, Timestamps, fallocate, futimens};
use std::fs::File;
use std::os::unix::fs::FileExt;

const PAGES: u64 = 2048;
const LIMIT: u64 = 128 * 4096;
/// Bytes of the file's last page.
const LAST: usize = 1234;

/// A file in memory that was last modified long ago, and its bytes.
fn file() -> (File, Vec<u8>) {
    let file = File::from(rustix::fs::memfd_create("source", MemfdFlags::CLOEXEC).unwrap());
    let words = (0..PAGES).flat_map(|page| if page % 3 == 0 { text(page) } else { noise(page) });
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate((PAGES as usize - 1) * 4096 + LAST);
    file.write_all_at(&bytes, 0).unwrap();
    set_time(&file, 1);
    (file, bytes)
}

fn set_time(file: &File, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    futimens(file, &Timestamps { last_access: time, last_modification: time }).unwrap();
}

fn region(mode: usize, file: &File, pool_bytes: u64) -> Region {
    let (service, eviction) = MODES[mode];
    let max_pool_bytes = Some(pool_bytes);
    let config = RegionConfig { service, eviction, max_pool_bytes, ..RegionConfig::new(0, LIMIT) };
    Region::from_file(file.try_clone().unwrap(), config).unwrap()
}

/// Runs a part in a separate process. Returns false if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("changed", mode)) => touch_after_a_change(mode.parse().unwrap()),
        _ => return false,
    }
    true
}

#[test]
fn a_region_from_a_file_is_like_a_private_copy() {
    each("a_region_from_a_file", |mode| {
        let (file, bytes) = file();
        let mut twin = bytes.clone();
        twin.resize(PAGES as usize * 4096, 0);
        // Much less than the file takes, and more than the pages that are written below.
        let mut region = region(mode, &file, 1 << 20);
        assert_eq!(region.len_bytes(), twin.len());
        let mut random = Random::new(mode as u64);
        for round in 0..4 {
            for _ in 0..20 {
                let at = random.below(PAGES) as usize * 4096;
                let word = random.next().to_le_bytes();
                region.bytes_mut()[at..at + 8].copy_from_slice(&word);
                twin[at..at + 8].copy_from_slice(&word);
                let at = random.below(PAGES * 4096 - 9000) as usize;
                region.discard(at..at + 9000).unwrap();
                twin[at..at + 9000].fill(0);
            }
            region.advise(bytes_of(random.below(PAGES - 64), 64), Advice::WillNeed).unwrap();
            assert!(region.bytes() == twin, "round {round}");
        }
        let stats = region.stats();
        assert!(stats.faults.file_reads > PAGES && stats.eviction.dropped_to_file > PAGES, "{stats:?}");
        assert!(stats.eviction.folded > 0 && stats.faults.failed == 0, "{stats:?}");
        assert!(stats.memory.resident_max <= LIMIT, "{stats:?}");
        let mut now = vec![0; bytes.len()];
        file.read_exact_at(&mut now, 0).unwrap();
        assert!(now == bytes, "the file was changed");
    });
}

#[test]
fn parts_of_a_file_are_copied_to_memory_that_is_not_resident() {
    each("parts_of_a_file_are_copied", |mode| {
        let (file, bytes) = file();
        let mut from = region(mode, &file, 64 << 20);
        let (service, eviction) = MODES[mode];
        let config = RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) };
        let mut to = Region::new(config).unwrap();
        from.read_part(0, &mut to.bytes_mut()[..bytes.len()]).unwrap();
        assert!(to.bytes()[..bytes.len()] == bytes && from.stats().memory.resident == 0);
        // Some pages get the bytes that the file has, and others new ones.
        let mut twin = bytes;
        twin.resize(PAGES as usize * 4096, 0);
        for page in (0..PAGES as usize).step_by(3) {
            let part = page * 4096..(page + 1) * 4096;
            twin[part.clone()][..8].fill(page as u8 & 1);
            from.discard(part.clone()).unwrap();
            from.write_part(part.start, &twin[part]).unwrap();
        }
        from.read_part(0, to.bytes_mut()).unwrap();
        assert!(to.bytes() == twin && from.bytes() == twin);
    });
}

#[test]
fn a_page_of_the_file_is_read_once_while_the_pool_has_room() {
    each("a_page_of_the_file_is_read_once", |mode| {
        let (file, bytes) = file();
        let region = region(mode, &file, 64 << 20);
        for _ in 0..3 {
            assert!(region.bytes()[..bytes.len()] == bytes);
        }
        let stats = region.stats();
        assert_eq!((stats.faults.file_reads, stats.eviction.dropped_to_file), (PAGES, 0), "{stats:?}");
    });
}

#[test]
fn only_pages_that_are_read_again_count_as_brought_back() {
    each("only_pages_that_are_read_again", |mode| {
        let (file, bytes) = file();
        let region = region(mode, &file, 1 << 20);
        // Less than the pool takes, so no page is dropped to the file.
        assert!(region.bytes()[..64 * 4096] == bytes[..64 * 4096]);
        let faults = region.stats().faults;
        assert!(faults.file_reads >= 64 && faults.file_rereads == 0, "{faults:?}");
        for _ in 0..3 {
            assert!(region.bytes()[..bytes.len()] == bytes);
        }
        let stats = region.stats();
        let (reads, rereads) = (stats.faults.file_reads, stats.faults.file_rereads);
        assert!(rereads > PAGES && rereads <= stats.eviction.dropped_to_file, "{stats:?}");
        assert_eq!(reads - rereads, PAGES, "{stats:?}");
    });
}

#[test]
fn threads_share_a_region_from_a_file() {
    each("threads_share_a_region_from_a_file", |mode| {
        let (file, mut bytes) = file();
        bytes.resize(PAGES as usize * 4096, 0);
        let mut region = region(mode, &file, 3 << 20);
        let share = PAGES as usize * 4096 / 4;
        let (lent, parts) = region.parts();
        std::thread::scope(|scope| {
            for (thread, (mine, twin)) in lent.chunks_mut(share).zip(bytes.chunks_mut(share)).enumerate() {
                scope.spawn(move || {
                    let mut random = Random::new((mode * 4 + thread) as u64);
                    for _ in 0..1500 {
                        let at = random.below(share as u64 / 4096) as usize * 4096;
                        let page = at..at + 4096;
                        match random.below(16) {
                            0 => {
                                parts.discard(&mut mine[page.clone()]).unwrap();
                                twin[page.clone()].fill(0);
                            }
                            1 => {
                                (mine[at + 9], twin[at + 9]) = (thread as u8, thread as u8);
                            }
                            2 => assert!(parts.pin(&mine[page.clone()]).unwrap()[..] == twin[page.clone()]),
                            _ => {}
                        }
                        assert!(mine[page.clone()] == twin[page], "thread {thread}, byte {at}");
                    }
                    assert!(mine == twin, "thread {thread}");
                });
            }
        });
    });
}

#[test]
fn pages_that_are_cut_off_come_back_as_zeroes() {
    each("pages_that_are_cut_off", |mode| {
        let (file, bytes) = file();
        let (service, eviction) = MODES[mode];
        let max_len_bytes = Some(3 * PAGES * 4096);
        let config = RegionConfig { service, eviction, max_len_bytes, ..RegionConfig::new(0, LIMIT) };
        let mut region = Region::from_file(file, config).unwrap();
        // Some pages that are cut off were touched.
        assert!(region.bytes()[100 * 4096..150 * 4096] == bytes[100 * 4096..150 * 4096]);
        region.resize(120 * 4096).unwrap();
        region.resize(2 * PAGES * 4096).unwrap();
        assert!(region.bytes()[..120 * 4096] == bytes[..120 * 4096]);
        assert!(region.bytes()[120 * 4096..].iter().all(|byte| *byte == 0));
    });
}

/// Ways to change a file.
fn changes() -> [fn(&File); 4] {
    [
        |file| set_time(file, 2),
        |file| file.write_all_at(&[9], 100 * 4096).unwrap(),
        |file| {
            // The time stays, the size does not.
            file.set_len(PAGES * 4096).unwrap();
            set_time(file, 1);
        },
        |file| file.set_len(50 * 4096).unwrap(),
    ]
}

#[test]
fn a_changed_file_is_an_error() {
    each("a_changed_file_is_an_error", |mode| {
        for change in changes() {
            let (file, bytes) = file();
            let region = region(mode, &file, 1 << 20);
            assert!(region.pin(bytes_of(7, 1)).unwrap()[..] == bytes[7 * 4096..8 * 4096]);
            change(&file);
            assert_eq!(region.pin(bytes_of(100, 1)).err(), Some(RangeError::FileChanged { page: 100 }));
            // Pages that were read before have the bytes of then.
            assert!(region.pin(bytes_of(7, 1)).unwrap()[..] == bytes[7 * 4096..8 * 4096]);
            assert!(region.stats().faults.unreadable > 0);
        }
    });
}

fn touch_after_a_change(mode: usize) {
    let (file, _) = file();
    let region = region(mode, &file, 1 << 20);
    changes()[mode % 4](&file);
    std::hint::black_box(region.bytes()[100 * 4096]);
}

#[test]
fn touching_a_page_of_a_changed_file_ends_the_process() {
    each("touching_a_page_of_a_changed_file", |mode| {
        run_to_sigbus(&format!("changed {mode}"), "the file must not change");
    });
}

#[test]
fn only_files_with_bytes_make_a_region() {
    each("only_files_with_bytes", |mode| {
        let (service, eviction) = MODES[mode];
        let config = || RegionConfig { service, eviction, ..RegionConfig::new(0, LIMIT) };
        let from = |path: &str| Region::from_file(File::open(path).unwrap(), config()).err();
        assert!(matches!(from("/dev/zero"), Some(RegionError::NotAFile)));
        assert!(matches!(from("/proc"), Some(RegionError::NotAFile)));
        let empty = File::from(rustix::fs::memfd_create("empty", MemfdFlags::CLOEXEC).unwrap());
        assert!(matches!(Region::from_file(empty, config()).err(), Some(RegionError::BadLength(0))));
    });
}

/// A limit with which nothing is evicted, so that windows are whole.
const WIDE: u64 = 4 * PAGES * 4096;

fn with_limit(mode: usize, len_bytes: u64, limit_bytes: u64) -> RegionConfig {
    let (service, eviction) = MODES[mode];
    RegionConfig { service, eviction, ..RegionConfig::new(len_bytes, limit_bytes) }
}

#[test]
fn adjacent_pages_are_read_together() {
    each("adjacent_pages_are_read_together", |mode| {
        for limit in [LIMIT, WIDE] {
            let (file, bytes) = file();
            let region = Region::from_file(file, with_limit(mode, 0, limit)).unwrap();
            let middle = bytes.len() / 2 / 4096 * 4096;
            for (advice, range) in [(Advice::Normal, 0..middle), (Advice::Sequential, middle..bytes.len())] {
                region.advise(range.clone(), advice).unwrap();
                assert!(region.bytes()[range.clone()] == bytes[range]);
            }
            let stats = region.stats();
            assert_eq!(stats.faults.file_reads, PAGES, "{stats:?}");
            // A window has 32 pages, but the first ones of a stream have fewer.
            assert!(limit == LIMIT || stats.faults.file_read_calls < PAGES / 24, "{stats:?}");
            assert!(stats.memory.resident_max <= limit, "{stats:?}");
        }
    });
}

#[test]
fn pages_between_those_of_the_file_keep_their_bytes() {
    each("pages_between_those_of_the_file", |mode| {
        for limit in [LIMIT, WIDE] {
            let (file, mut twin) = file();
            let hole = bytes_of(600, 8);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, hole.start as u64, hole.len() as u64).unwrap();
            set_time(&file, 1);
            twin[hole].fill(0);
            // The region is longer than the file.
            twin.resize((PAGES as usize + 40) * 4096, 0);
            let config = with_limit(mode, twin.len() as u64, limit);
            let mut region = Region::from_file(file, config).unwrap();
            // Each window has a page that was dropped, and one that was written.
            let windows = (0..PAGES).step_by(32);
            region.advise(.., Advice::Random).unwrap();
            for first in windows.clone() {
                let dropped = bytes_of(first + 3, 1);
                region.discard(dropped.clone()).unwrap();
                twin[dropped].fill(0);
                let at = bytes_of(first + 9, 1).start;
                (region.bytes_mut()[at], twin[at]) = (first as u8, first as u8);
            }
            let calls = region.stats().faults.file_read_calls;
            for first in windows.clone() {
                region.advise(bytes_of(first, 32), Advice::WillNeed).unwrap();
            }
            let stats = region.stats();
            // Before, between and behind the two pages.
            assert!(
                limit == LIMIT || stats.faults.file_read_calls - calls == 3 * windows.count() as u64,
                "{stats:?}"
            );
            assert!(region.bytes() == twin);
            assert!(region.stats().memory.resident_max <= limit, "{stats:?}");
        }
    });
}

#[test]
fn of_a_changed_file_no_page_comes_in() {
    each("of_a_changed_file_no_page_comes_in", |mode| {
        for change in changes() {
            let (file, bytes) = file();
            let region = region(mode, &file, 64 << 20);
            region.advise(bytes_of(0, 32), Advice::WillNeed).unwrap();
            let reads = region.stats().faults.file_reads;
            change(&file);
            // Around the page that was written, and around the end of the file that is shorter now.
            for first in [40, 90] {
                region.advise(bytes_of(first, 32), Advice::WillNeed).unwrap();
                for page in first..first + 32 {
                    let pinned = region.pin(bytes_of(page, 1)).err();
                    assert_eq!(pinned, Some(RangeError::FileChanged { page }));
                }
            }
            assert_eq!(region.stats().faults.file_reads, reads);
            assert!(region.pin(bytes_of(0, 32)).unwrap()[..] == bytes[bytes_of(0, 32)]);
        }
    });
}
