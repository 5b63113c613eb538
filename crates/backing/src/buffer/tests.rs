use super::*;

#[test]
fn buffers_are_aligned_and_disjoint_and_dropping_frees_them() {
    let buffers = Buffers::new(64 * 4096).unwrap();
    let mut held: Vec<Buffer> = Vec::new();
    for (i, len_bytes) in [0, 1, 4096, 4097, 20_000, 131_072].into_iter().enumerate() {
        let mut buffer = buffers.get(len_bytes, Demand::BestEffort).unwrap();
        assert_eq!(buffer.as_ptr().addr() % BUFFER_ALIGN_BYTES, 0);
        assert_eq!(buffer.len(), len_bytes);
        buffer.fill(i as u8 + 1);
        held.push(buffer);
    }
    for (i, buffer) in held.iter().enumerate() {
        assert!(buffer.iter().all(|&b| b == i as u8 + 1), "buffer {i} was overwritten");
    }
    assert_eq!(buffers.in_use_bytes(), (1 + 1 + 1 + 2 + 5 + 32) * 4096);
    held.clear();
    assert_eq!(buffers.in_use_bytes(), 0);
    assert_eq!(buffers.get(64 * 4096, Demand::BestEffort).unwrap().len(), 64 * 4096);
}

#[test]
fn required_overflows_to_the_heap_and_best_effort_is_refused() {
    let buffers = Buffers::new(4096).unwrap();
    let first = buffers.get(4096, Demand::Required).unwrap();
    let second = buffers.get(8192, Demand::Required).unwrap();
    assert!(second.iter().all(|&b| b == 0));
    assert_eq!(second.as_ptr().addr() % BUFFER_ALIGN_BYTES, 0);
    assert!(buffers.get(1, Demand::BestEffort).is_none());
    assert_eq!(buffers.in_use_bytes(), 12_288);
    drop((first, second));
    assert_eq!(buffers.in_use_bytes(), 0);
}

#[test]
fn a_buffer_outlives_its_region() {
    let buffers = Buffers::new(4096).unwrap();
    let mut buffer = buffers.get(4096, Demand::BestEffort).unwrap();
    drop(buffers);
    buffer.fill(9);
    assert_eq!(buffer[4095], 9);
}

#[test]
fn an_empty_region_serves_required_buffers_only() {
    let buffers = Buffers::new(0).unwrap();
    assert!(buffers.get(0, Demand::BestEffort).is_none());
    assert!(buffers.get(0, Demand::Required).is_some());
}

#[test]
fn threads_share_a_region() {
    let buffers = Buffers::new(16 * 4096).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let buffers = buffers.clone();
            scope.spawn(move || {
                for round in 0..500_usize {
                    let mut buffer = buffers.get(1 + round * 37 % 20_000, Demand::Required).unwrap();
                    buffer.fill(thread);
                    assert!(buffer.iter().all(|&b| b == thread));
                }
            });
        }
    });
    assert_eq!(buffers.in_use_bytes(), 0);
}

#[test]
fn resident_memory_of_bounded_buffers_stays_within_their_limit() {
    let buffers = BoundedBuffers::new(16 * 4096).unwrap();
    for round in 0..200_usize {
        // A short buffer stays while a long one is freed, so that the next long one gets other addresses.
        let mut long = buffers.get((1 + round % 12) * 4096);
        long.fill(round as u8);
        let mut short = buffers.get(4096);
        drop(long);
        short.fill(1);
        let mut other = buffers.get((1 + round * 7 % 3) * 4096);
        other.fill(2);
        assert!(short.iter().all(|&b| b == 1));
        assert!(real_bytes(&buffers) <= 16 * 4096, "round {round}: {}", real_bytes(&buffers));
    }
}

/// Bytes that are real memory now: those of the region, free units included, and those elsewhere.
fn real_bytes(buffers: &BoundedBuffers) -> u64 {
    let state = buffers.0.state();
    let resident = state.resident.as_ref().map(|resident| resident.count as u64 * 4096);
    resident.unwrap() + state.elsewhere_bytes
}

/// Free units keep their memory only as long as nothing else needs it.
#[test]
fn memory_elsewhere_takes_the_place_of_free_memory_in_the_region() {
    const UNITS: usize = 1024;
    const LIMIT: u64 = UNITS as u64 * 4096;
    let bounded = BoundedBuffers::new(LIMIT as usize).unwrap();
    let fill_region = || {
        let buffers: Vec<_> = (0..UNITS).map(|_| bounded.get(4096)).collect();
        drop(buffers);
        assert_eq!(real_bytes(&bounded), LIMIT, "free units are kept while nobody needs memory");
    };
    let is_within_limit = || {
        let real = real_bytes(&bounded);
        assert!(real <= LIMIT, "{real} of {LIMIT}");
        real
    };
    fill_region();
    bounded.add_elsewhere(5 * 4096 + 1);
    assert!(is_within_limit() >= LIMIT - 70 * 4096, "most of the free memory stays");
    let buffers: Vec<_> = (0..UNITS - 6).map(|_| bounded.get(4096)).collect();
    is_within_limit();
    drop(buffers);
    bounded.subtract_elsewhere(5 * 4096 + 1);
    for elsewhere in [1, LIMIT / 3, LIMIT] {
        fill_region();
        bounded.add_elsewhere(elsewhere);
        is_within_limit();
        bounded.subtract_elsewhere(elsewhere);
    }
    assert_eq!((bounded.0.in_use_bytes(), bounded.0.state().elsewhere_bytes), (0, 0));
}

/// The region is so fragmented that the heap serves a buffer.
#[test]
fn a_heap_buffer_takes_the_place_of_free_memory_in_the_region() {
    const LIMIT: u64 = 16 * 4096;
    let bounded = BoundedBuffers::new(LIMIT as usize).unwrap();
    // All units of the address space but 15 are taken, and no two of these are neighbours.
    {
        let units = &mut bounded.0.state().units;
        let count = 4 * 16;
        assert_eq!(units.take(count), Some(0));
        (0..15).for_each(|i| units.release(2 * i, 1));
    }
    let single: Vec<_> = (0..14).map(|_| bounded.get(4096)).collect();
    drop(single);
    assert_eq!(real_bytes(&bounded), 14 * 4096);
    let heap = bounded.get(2 * 4096 + 1);
    assert_eq!(bounded.0.state().elsewhere_bytes, 3 * 4096);
    assert!(real_bytes(&bounded) <= LIMIT, "{}", real_bytes(&bounded));
    drop(heap);
    assert_eq!(bounded.0.state().elsewhere_bytes, 0);
}
