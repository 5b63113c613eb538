use super::*;

#[test]
fn pieces_are_aligned_and_disjoint_and_come_back() {
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
    assert_eq!(buffers.stats().in_use_bytes, (1 + 1 + 1 + 2 + 5 + 32) * 4096);
    held.clear();
    assert_eq!(buffers.stats().in_use_bytes, 0);
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
    let expected = BufferStats { in_use_bytes: 12_288, limit_bytes: 4096, overflows: 1, refused: 1 };
    assert_eq!(buffers.stats(), expected);
    drop((first, second));
    assert_eq!(buffers.stats(), BufferStats { in_use_bytes: 0, ..expected });
}

#[test]
fn a_buffer_outlives_its_budget() {
    let buffers = Buffers::new(4096).unwrap();
    let mut buffer = buffers.get(4096, Demand::BestEffort).unwrap();
    drop(buffers);
    buffer.fill(9);
    assert_eq!(buffer[4095], 9);
}

#[test]
fn an_empty_budget_serves_required_only() {
    let buffers = Buffers::new(0).unwrap();
    assert!(buffers.get(0, Demand::BestEffort).is_none());
    assert!(buffers.get(0, Demand::Required).is_some());
}

#[test]
fn threads_share_a_budget() {
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
    assert_eq!(buffers.stats().in_use_bytes, 0);
}
