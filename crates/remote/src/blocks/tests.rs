#![allow(clippy::single_range_in_vec_init, reason = "a run of blocks is a range")]

use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES;

fn new(len_bytes: u64, max_bytes: usize) -> Arc<Blocks> {
    Arc::new(Blocks::new(len_bytes, max_bytes))
}

/// Byte `at` of the object.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// The blocks of a run, as a server would send them.
fn served(blocks: &Blocks, run: &Range<u64>) -> Loaded {
    run.clone().map(|block| bytes(blocks.byte_range(&(block..block + 1)))).collect()
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Reads, checks the bytes, and returns the runs that were loaded.
fn read(blocks: &Arc<Blocks>, range: Range<u64>) -> Vec<Range<u64>> {
    let runs = Mutex::new(Vec::new());
    let mut buf = vec![0; (range.end - range.start) as usize];
    let result = blocks.read::<()>(range.start, &mut buf, later(), &|run| {
        runs.lock().unwrap().push(run.clone());
        Ok(served(blocks, run))
    });
    assert!(result.is_ok() && buf == bytes(range));
    runs.into_inner().unwrap()
}

#[test]
fn single_reads_load_a_block_and_sequential_ones_more_and_more() {
    let blocks = new(60 * BLOCK + 5, 64 * BLOCK as usize);
    assert_eq!(read(&blocks, 10 * BLOCK + 7..10 * BLOCK + 8), [10..11]);
    assert_eq!(read(&blocks, 10 * BLOCK..11 * BLOCK), []);
    assert_eq!(read(&blocks, 11 * BLOCK..11 * BLOCK + 1), [11..19]);
    assert_eq!(read(&blocks, 19 * BLOCK..19 * BLOCK + 1), [19..51]);
    assert_eq!(read(&blocks, 51 * BLOCK..51 * BLOCK + 1), [51..61]);
    assert_eq!(read(&blocks, 60 * BLOCK + 4..60 * BLOCK + 5), []);
    // Blocks that are there are not loaded again.
    assert_eq!(read(&blocks, 8 * BLOCK..12 * BLOCK), [8..10]);
    let long = new(40 * BLOCK, 64 * BLOCK as usize);
    assert_eq!(read(&long, BLOCK / 2..BLOCK * 39), [0..32, 32..40]);
}

#[test]
fn the_next_run_is_fetched_ahead_of_a_sequence_and_of_nothing_else() {
    let blocks = new(1000 * BLOCK, 400 * BLOCK as usize);
    let ahead = |last| blocks.run_ahead(last);
    read(&blocks, 20 * BLOCK..20 * BLOCK + 1);
    assert!(ahead(20).is_none() && ahead(21).is_none());
    // Two reads that meet may do so by chance.
    read(&blocks, 21 * BLOCK..21 * BLOCK + 1);
    assert!(ahead(21).is_none() && blocks.run_ahead_of(22, 22).is_none());
    assert_eq!(read(&blocks, 29 * BLOCK..29 * BLOCK + 1), [29..61]);
    // One that was dropped is missing again.
    for _ in 0..2 {
        assert_eq!(ahead(29).unwrap().blocks(), &(61..93));
    }
    // Two runs are on their way at once, also while a reader waits for the one before.
    let (run, second) = (ahead(29).unwrap(), ahead(29).unwrap());
    assert_eq!((run.blocks(), second.blocks()), (&(61..93), &(93..125)));
    assert!(ahead(29).is_none(), "enough is on its way");
    let loaded = served(&blocks, run.blocks());
    run.complete(loaded);
    assert_eq!(read(&blocks, 61 * BLOCK..93 * BLOCK), []);
    let reading = blocks.run_ahead_of(93, 150).unwrap();
    assert_eq!(reading.blocks(), &(151..152));
    drop((reading, second));
    let (first, second) = (ahead(92).unwrap(), ahead(92).unwrap());
    assert_eq!((first.blocks(), second.blocks()), (&(93..125), &(125..157)));
    assert!(ahead(92).is_none());
    drop((first, second));
    let last = new(3 * BLOCK, 100 * BLOCK as usize);
    read(&last, 0..1);
    read(&last, BLOCK..BLOCK + 1);
    assert!(
        last.run_ahead(1).is_none() && last.run_ahead(2).is_none() && last.run_ahead(u64::MAX - 50).is_none()
    );
}

/// Clusters of two and three blocks at random places, as a database reads them: nothing but them is loaded.
#[test]
fn nothing_is_fetched_ahead_while_another_reader_waits_for_other_blocks() {
    let blocks = new(1000 * BLOCK, 1000 * BLOCK as usize);
    for block in [20, 21, 29] {
        read(&blocks, block * BLOCK..block * BLOCK + 1);
    }
    let mut buf = [0];
    let mut is_ahead = Vec::new();
    // The reader of the sequence itself may wait for blocks of it, and another one may fail.
    assert!(blocks.run_ahead(29).is_some());
    for (at, fails) in [(900, false), (61, false), (950, true)] {
        let waiting = blocks.read(at * BLOCK, &mut buf, later(), &|run| {
            assert!(blocks.run_chained(&(30..61), 200).is_some() == (at == 61));
            assert!(at == 61 || blocks.run_ahead(29).is_none());
            if fails { Err(()) } else { Ok(served(&blocks, run)) }
        });
        assert_eq!(waiting.is_err(), fails);
        is_ahead.push(blocks.run_chained(&(30..61), 200).is_some());
    }
    assert_eq!(is_ahead, [true; 3], "nobody waits any more");
}

#[test]
fn reads_at_random_places_load_the_blocks_that_they_want() {
    let blocks = new(4000 * BLOCK, 512 * BLOCK as usize);
    let (mut wanted, mut loaded, mut at) = (0, 0, 12345_u64);
    for _ in 0..300 {
        at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5677);
        let from = at % (3990 * BLOCK) / 4096 * 4096;
        let range = from..from + 40_000 + at % 100_000;
        wanted += (range.end - 1) / BLOCK - range.start / BLOCK + 1;
        let last = (range.end - 1) / BLOCK;
        let ahead = |blocks: &Arc<Blocks>| {
            let run = blocks.run_ahead_of(from / BLOCK, last).or_else(|| blocks.run_ahead(last));
            run.map_or(0, |run| run.blocks().end - run.blocks().start)
        };
        loaded += ahead(&blocks);
        loaded += read(&blocks, range).iter().map(|run| run.end - run.start).sum::<u64>();
        loaded += ahead(&blocks);
    }
    // By chance, some places follow each other.
    assert!(loaded <= wanted * 11 / 10, "{loaded} blocks for {wanted}");
    // Beside them, a reader in order still loads long runs.
    let runs: Vec<_> = (0..40).flat_map(|n| read(&blocks, n * 20_000..(n + 1) * 20_000)).collect();
    assert!(runs.iter().any(|run| run.end - run.start >= 4), "{runs:?}");
}

#[test]
fn the_least_recently_used_blocks_leave() {
    let blocks = new(100 * BLOCK, 3 * BLOCK as usize);
    for block in [10, 20, 30] {
        assert_eq!(read(&blocks, block * BLOCK..block * BLOCK + 1).len(), 1);
    }
    assert_eq!(read(&blocks, 10 * BLOCK..10 * BLOCK + 1), []);
    assert_eq!(read(&blocks, 40 * BLOCK..40 * BLOCK + 1), [40..41]);
    assert_eq!(read(&blocks, 10 * BLOCK..10 * BLOCK + 1), []);
    assert_eq!(read(&blocks, 20 * BLOCK..20 * BLOCK + 1), [20..21]);
    assert_eq!(read(&blocks, 50 * BLOCK..60 * BLOCK), [50..60]);
    assert_eq!(blocks.lock().ready_blocks, 3);
}

#[test]
fn readers_of_a_block_on_its_way_wait_and_one_of_them_tries_after_a_failure() {
    let blocks = new(10 * BLOCK, 10 * BLOCK as usize);
    let (loads, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let load = |run: &Range<u64>| {
        loads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        if has_failed.swap(true, Ordering::SeqCst) { Ok(served(&blocks, run)) } else { Err("no") }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let reader = || {
            let mut buf = [0; 100];
            blocks.read(5 * BLOCK, &mut buf, later(), &load).map(|()| buf.to_vec())
        };
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(loads.into_inner(), 2);
    assert_eq!(results.iter().filter(|result| **result == Err(ReadError::Load("no"))).count(), 1);
    let right = results.iter().filter(|result| **result == Ok(bytes(5 * BLOCK..5 * BLOCK + 100)));
    assert_eq!(right.count(), 7);
}

#[test]
fn a_reader_waits_for_another_until_its_own_deadline_and_a_panic_frees_the_block() {
    let blocks = new(10 * BLOCK, BLOCK as usize);
    let Claim::Load(run) = blocks.claim(3..4, None, later()) else { panic!("the block is missing") };
    let soon = Instant::now() + Duration::from_millis(20);
    let result = blocks.read::<()>(3 * BLOCK, &mut [0], soon, &|_| panic!("two load one block"));
    assert_eq!(result, Err(ReadError::TimedOut));
    drop(run);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        blocks.read::<()>(3 * BLOCK, &mut [0], later(), &|_| panic!("a test"))
    }));
    assert!(panicked.is_err());
    assert_eq!(read(&blocks, 3 * BLOCK..3 * BLOCK + 1), [3..4]);
}

#[test]
fn the_first_blocks_of_a_run_are_enough_and_forgotten_ones_are_loaded_again() {
    let blocks = new(20 * BLOCK, 20 * BLOCK as usize);
    let runs = Mutex::new(Vec::new());
    let load = |run: &Range<u64>| {
        runs.lock().unwrap().push(run.clone());
        Ok::<_, ()>(served(&blocks, &(run.start..run.start + 3.min(run.end - run.start))))
    };
    let mut buf = vec![0; 8 * BLOCK as usize];
    blocks.read(BLOCK + 7, &mut buf, later(), &load).unwrap();
    assert!(buf == bytes(BLOCK + 7..9 * BLOCK + 7));
    // A run is four times as long as what has come of the sequence.
    assert_eq!(runs.into_inner().unwrap(), [1..10, 4..16, 7..20]);
    assert!(blocks.forget(&(2..4)) && !blocks.forget(&(2..4)) && !blocks.forget(&(15..20)));
    assert_eq!(read(&blocks, BLOCK..5 * BLOCK), [2..4]);
}

#[test]
fn blocks_on_their_way_are_forgotten_too_when_they_have_come() {
    let blocks = new(100 * BLOCK, 100 * BLOCK as usize);
    read(&blocks, 0..BLOCK);
    let Some(run) = read_ahead(&blocks) else { panic!("no run") };
    blocks.forget(&(5..6));
    let loaded = served(&blocks, run.blocks());
    let fetched = run.blocks().clone();
    run.complete(loaded);
    assert_eq!(read(&blocks, fetched.start * BLOCK..fetched.start * BLOCK + 1).len(), 1);
}

/// Reads on in order, and returns the run to fetch ahead.
fn read_ahead(blocks: &Arc<Blocks>) -> Option<Fetch> {
    for block in [1, 9] {
        read(blocks, block * BLOCK..(block + 1) * BLOCK);
    }
    (1..20).find_map(|last| blocks.run_ahead(last))
}

#[test]
fn reads_of_which_the_cache_has_parts_are_no_long_sequence() {
    let blocks = new(2000 * BLOCK, 1000 * BLOCK as usize);
    let load = |run: &Range<u64>| Ok::<_, ()>(served(&blocks, &(run.start..run.start + 1)));
    let mut buf = vec![0; 64 * BLOCK as usize];
    blocks.read(0, &mut buf, later(), &load).unwrap();
    let state = blocks.lock();
    let longest = state.blocks.values().map(Entry::run_blocks).max().unwrap();
    assert!(longest <= 65, "{longest}");
}

#[test]
fn a_thread_that_fetches_ahead_goes_on_in_long_sequences_alone_and_not_far() {
    let blocks = new(2000 * BLOCK, 1000 * BLOCK as usize);
    let chained = |last: u64| {
        let run = blocks.run_ahead(last).unwrap();
        let (next, first) = (run.next(), run.blocks().clone());
        let loaded = served(&blocks, &first);
        run.complete(loaded);
        (first, next().map(|run| run.blocks().clone()))
    };
    for from in 0..40 {
        read(&blocks, from * BLOCK..(from + 1) * BLOCK);
    }
    assert_eq!(chained(40).1, None, "a short sequence");
    for from in 40..800 {
        read(&blocks, from * BLOCK..(from + 1) * BLOCK);
    }
    // Up to one run further than a reader would have it.
    let last = 799;
    let mut runs = Vec::new();
    while let Some(run) = blocks.run_ahead(last) {
        let (next, loaded) = (run.next(), served(&blocks, run.blocks()));
        runs.push(run.blocks().clone());
        run.complete(loaded);
        while let Some(run) = next() {
            runs.push(run.blocks().clone());
            let loaded = served(&blocks, run.blocks());
            run.complete(loaded);
        }
    }
    let end = runs.iter().map(|run| run.end).max().unwrap();
    assert!(last + 3 * MAX_RUN_BLOCKS < end && end <= last + 1 + 4 * MAX_RUN_BLOCKS, "{runs:?}");
}

#[test]
fn what_a_reader_in_order_has_passed_leaves_before_what_is_used_again() {
    let blocks = new(1000 * BLOCK, 64 * BLOCK as usize);
    // Metadata, and a part of a block that holds small files.
    for block in [900, 920, 940] {
        assert_eq!(read(&blocks, block * BLOCK..block * BLOCK + 5000).len(), 1);
    }
    for from in (0..600 * BLOCK).step_by(16384) {
        read(&blocks, from..from + 16384);
    }
    for block in [900, 920, 940] {
        assert_eq!(read(&blocks, block * BLOCK..block * BLOCK + 5000), []);
    }
    // The oldest ones leave first.
    assert_eq!(read(&blocks, 599 * BLOCK..599 * BLOCK + 1), []);
    assert_eq!(read(&blocks, 300 * BLOCK..300 * BLOCK + 1).len(), 1);
}

#[test]
fn long_requests_have_the_length_that_was_set_and_an_eighth_of_the_blocks_at_most() {
    let blocks = new(1000 * BLOCK, 160 * BLOCK as usize);
    for (bytes, expected) in [(4 * BLOCK, 4), (12 * BLOCK + 5, 12), (100 * BLOCK, 20), (1, 1)] {
        blocks.set_request_bytes(bytes);
        assert_eq!(read(&blocks, 0..40 * BLOCK)[0], 0..expected);
        blocks.lock().blocks.clear();
        blocks.lock().ready_blocks = 0;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Threads read at random from a cache of few blocks, and loading fails at times: a read returns the bytes or fails.
    #[test]
    fn reads_return_the_bytes_of_the_object(
        len in 1..30 * BLOCK,
        max_blocks in 1..20_usize,
        reads in proptest::collection::vec((any::<u64>(), 1..5 * BLOCK), 1..12),
        fails_every in 2..6_u64,
    ) {
        let blocks = new(len, max_blocks * BLOCK as usize);
        let loads = AtomicU64::new(0);
        let load = |run: &Range<u64>| {
            let is_right = !run.is_empty() && run.end - run.start <= MAX_RUN_BLOCKS && run.end <= len.div_ceil(BLOCK);
            assert!(is_right, "{run:?}");
            let fails = loads.fetch_add(1, Ordering::Relaxed) % fails_every == fails_every - 1;
            if fails { Err(()) } else { Ok(served(&blocks, run)) }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for (from, read_len) in &reads {
                        let from = from % len;
                        let mut buf = vec![0; (*read_len).min(len - from) as usize];
                        let result = blocks.read(from, &mut buf, later(), &load);
                        assert!(result.is_err() || buf == bytes(from..from + buf.len() as u64));
                    }
                });
            }
        });
        let state = blocks.lock();
        prop_assert!(state.ready_blocks <= max_blocks);
        prop_assert_eq!(state.blocks.len(), state.ready_blocks);
    }
}
