//! The contract of [`Backing`], checked for every medium and every layer.

use crate::support::{LEN_BYTES, Medium};
use pagefold_backing::{Backing, BackingError, Buffer, Buffers, Completion, Demand, Operation, Request};
use proptest::prelude::*;

fn write(id: u64, offset: u64, buf: Buffer) -> Request {
    Request { id, operation: Operation::Write, offset, len_bytes: buf.len(), buf }
}

fn read(id: u64, offset: u64, buf: Buffer) -> Request {
    Request { id, operation: Operation::Read, offset, len_bytes: buf.len(), buf }
}

fn contents(backing: &dyn Backing) -> Vec<u8> {
    let mut all = vec![0xEE; backing.len_bytes() as usize];
    backing.read_at(0, &mut all).unwrap();
    all
}

fn for_each(check: impl Fn(&Medium)) {
    for medium in crate::support::all() {
        eprintln!("{}: {}", medium.name, medium.backing.describe());
        check(&medium);
    }
}

#[test]
fn new_media_have_their_length_and_read_as_zeroes() {
    for_each(|Medium { backing, .. }| {
        assert_eq!(backing.len_bytes(), LEN_BYTES as u64);
        assert!(backing.block_bytes().is_power_of_two());
        assert!(!backing.describe().is_empty());
        assert!(contents(&**backing).iter().all(|&b| b == 0));
    });
}

#[test]
fn ranges_outside_are_refused_and_nothing_is_done() {
    for_each(|Medium { backing, .. }| {
        let end = backing.len_bytes();
        for (offset, len) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (0, LEN_BYTES + 1)] {
            let mut buf = vec![9; len];
            assert!(matches!(backing.read_at(offset, &mut buf), Err(BackingError::OutOfRange { .. })));
            assert!(buf.iter().all(|&b| b == 9));
            let refused = backing.write_at(offset, &buf).unwrap_err();
            assert_eq!(refused.errno(), libc::EINVAL);
            assert!(matches!(refused, BackingError::OutOfRange { .. }));
            let refused = backing.discard(offset, len as u64);
            assert!(matches!(refused, Err(BackingError::OutOfRange { .. })));
        }
        backing.write_at(end, &[]).unwrap();
        backing.read_at(end, &mut []).unwrap();
        backing.discard(end, 0).unwrap();
        assert!(contents(&**backing).iter().all(|&b| b == 0));
    });
}

#[test]
fn a_signal_safe_read_agrees_with_any_other() {
    for_each(|Medium { backing, .. }| {
        let written: Vec<u8> = (0..LEN_BYTES).map(|i| (i / 5 + i / 4096) as u8).collect();
        backing.write_at(0, &written).unwrap();
        let mut buf = Buffer::new(3 * 4096);
        for (offset, len) in [(0, 4096), (4096, 3 * 4096), (LEN_BYTES - 4096, 4096), (8192, 0)] {
            backing.read_signal_safe(offset as u64, &mut buf[..len]).unwrap();
            assert!(buf[..len] == written[offset..offset + len], "{offset}+{len}");
        }
        let end = backing.len_bytes();
        for offset in [end, end - 4096, u64::MAX - 4095] {
            assert_eq!(backing.read_signal_safe(offset, &mut buf[..8192]), Err(libc::EINVAL));
        }
        // A misaligned read needs a bounce buffer, which this call does not allocate.
        let misaligned = backing.read_signal_safe(1, &mut buf[..10]);
        match backing.block_bytes() {
            1 => assert!(misaligned.is_ok() && buf[..10] == written[1..11]),
            _ => assert!(matches!(misaligned, Ok(()) | Err(libc::EINVAL))),
        }
    });
}

#[test]
fn discard_leaves_the_rest_alone() {
    for_each(|Medium { backing, .. }| {
        backing.write_at(0, &vec![7; LEN_BYTES]).unwrap();
        backing.discard(5000, 100_000).unwrap();
        backing.flush().unwrap();
        let all = contents(&**backing);
        assert!(all[..5000].iter().all(|&b| b == 7));
        assert!(all[105_000..].iter().all(|&b| b == 7));
        // A discarded range may read as anything, but it must be writable.
        backing.write_at(5000, &vec![3; 100_000]).unwrap();
        assert!(contents(&**backing)[5000..105_000].iter().all(|&b| b == 3));
    });
}

#[test]
fn a_queue_returns_every_request_with_its_buffer() {
    for_each(|Medium { backing, .. }| {
        let buffers = Buffers::new(1 << 20).unwrap();
        let mut queue = backing.queue(4, &buffers).unwrap();
        let mut page = buffers.get(4096, Demand::Required).unwrap();
        page.fill(5);
        queue.submit(write(1, 8192, page)).unwrap();
        queue.submit(write(2, LEN_BYTES as u64, Buffer::copy_of(&[1; 3]))).unwrap();
        queue.submit(write(3, 0, Buffer::new(0))).unwrap();
        queue.submit(Request { len_bytes: 11, ..read(4, 0, Buffer::new(10)) }).unwrap();
        assert_eq!(queue.in_flight(), 4);
        let refused = queue.submit(read(5, 77, Buffer::copy_of(b"mine"))).unwrap_err();
        assert_eq!((refused.request.id, &*refused.request.buf), (5, &b"mine"[..]));
        assert_eq!(refused.result, Err(BackingError::QueueFull { depth: 4 }));

        let mut done: Vec<Completion> = Vec::new();
        queue.start();
        assert_eq!(queue.complete(usize::MAX, &mut done), 4);
        assert_eq!((queue.in_flight(), queue.complete(1, &mut done)), (0, 0));
        done.sort_by_key(|c| c.request.id);
        assert_eq!(done.iter().map(|c| c.request.id).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(done[0].result, Ok(()));
        assert!(done[0].request.buf.iter().all(|&b| b == 5));
        assert!(matches!(done[1].result, Err(BackingError::OutOfRange { .. })));
        assert_eq!(done[2].result, Ok(()));
        assert_eq!(done[3].result, Err(BackingError::ShortBuffer { len_bytes: 11, buf_len_bytes: 10 }));
        drop(queue);
        assert!(contents(&**backing)[8192..12_288].iter().all(|&b| b == 5));
    });
}

/// Buffers of the region and of the heap; whole pages, parts of buffers, and odd offsets.
#[test]
fn all_requests_arrive_when_there_are_many_more_than_the_queue_is_deep() {
    for_each(|Medium { backing, name, .. }| {
        let buffers = Buffers::new(6 * 4096).unwrap();
        let mut queue = backing.queue(5, &buffers).unwrap();
        let (mut done, mut returned) = (Vec::new(), 0);
        // Each request has a page to itself, and misaligned ones are shorter than a page: no two share a block.
        let offset = |id: u64| id * 4096 + if id.is_multiple_of(7) { 3 } else { 0 };
        for id in 0..100_u64 {
            let mut buf = buffers.get(8192, Demand::Required).unwrap();
            buf.fill(id as u8 + 1);
            let len_bytes = if id.is_multiple_of(7) { 1000 } else { 4096 };
            let mut request = Request { len_bytes, ..write(id, offset(id), buf) };
            while let Err(full) = queue.submit(request) {
                assert_eq!(full.result, Err(BackingError::QueueFull { depth: 5 }));
                returned += queue.complete(1, &mut done);
                request = full.request;
            }
        }
        returned += queue.complete(usize::MAX, &mut done);
        assert_eq!((returned, done.len()), (100, 100), "{name}");
        assert!(done.iter().all(|c| c.result.is_ok()));
        done.clear();
        let all = contents(&**backing);
        for id in 0..100_u64 {
            let len_bytes = if id % 7 == 0 { 1000 } else { 4096 };
            let at = offset(id) as usize;
            assert!(all[at..at + len_bytes].iter().all(|&b| b == id as u8 + 1), "{name}: {id}");
            if id % 7 == 0 {
                assert_eq!((all[at - 1], all[at + len_bytes]), (0, 0), "{name}: {id}");
            }
        }
        drop(queue);
        assert_eq!(buffers.in_use_bytes(), 0);
    });
}

#[test]
fn dropping_a_queue_completes_its_requests() {
    for_each(|Medium { backing, name, .. }| {
        let buffers = Buffers::new(1 << 20).unwrap();
        for is_started in [false, true] {
            let mut queue = backing.queue(64, &buffers).unwrap();
            for id in 0..64 {
                let mut buf = buffers.get(8192, Demand::Required).unwrap();
                buf.fill(if is_started { 200 } else { 100 } + id as u8 % 50);
                queue.submit(write(id, id * 8192, buf)).unwrap();
            }
            if is_started {
                queue.start();
            }
            drop(queue);
            assert_eq!(buffers.in_use_bytes(), 0, "{name}");
            let all = contents(&**backing);
            for id in 0..64 {
                let expected = if is_started { 200 } else { 100 } + id as u8 % 50;
                assert!(all[id * 8192..][..8192].iter().all(|&b| b == expected), "{name}");
            }
        }
    });
}

#[test]
fn threads_share_a_medium() {
    for_each(|Medium { backing, name, .. }| {
        let buffers = Buffers::new(64 << 10).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (backing, buffers) = (&**backing, &buffers);
                scope.spawn(move || {
                    let mut queue = backing.queue(8, buffers).unwrap();
                    let mut done = Vec::new();
                    for id in 0..32 {
                        let mut buf = buffers.get(4096, Demand::Required).unwrap();
                        buf.fill((thread * 32 + id) as u8);
                        while queue.in_flight() == 8 {
                            queue.complete(1, &mut done);
                        }
                        queue.submit(write(id, (thread * 32 + id) * 4096, buf)).unwrap();
                    }
                    queue.complete(usize::MAX, &mut done);
                    assert_eq!(done.len(), 32);
                    assert!(done.iter().all(|c| c.result.is_ok()));
                });
            }
        });
        let all = contents(&**backing);
        for page in 0..96 {
            assert!(all[page * 4096..][..4096].iter().all(|&b| b == page as u8), "{name}: {page}");
        }
    });
}

/// One step of the comparison with plain bytes.
#[derive(Debug, Clone)]
enum Step {
    Write {
        offset: usize,
        len_bytes: usize,
        fill: u8,
    },
    Read {
        offset: usize,
        len_bytes: usize,
    },
    Flush,
    /// A queue of writes to the pages from here on, then the same pages read back through it.
    Batch {
        first_page: usize,
        pages: usize,
        fill: u8,
        odd: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![0_usize..20, 500_usize..530, 4090_usize..4100, 0_usize..70_000];
    // Half of the offsets are at the beginning of a block.
    let offset = prop_oneof![0..LEN_BYTES, (0..LEN_BYTES / 512).prop_map(|block| block * 512)];
    let step = prop_oneof![
        (offset.clone(), len.clone(), any::<u8>()).prop_map(|(offset, len_bytes, fill)| Step::Write {
            offset,
            len_bytes,
            fill
        }),
        (offset, len).prop_map(|(offset, len_bytes)| Step::Read { offset, len_bytes }),
        Just(Step::Flush),
        (0_usize..150, 1_usize..40, any::<u8>(), prop_oneof![Just(0_usize), 0_usize..600])
            .prop_map(|(first_page, pages, fill, odd)| Step::Batch { first_page, pages, fill, odd }),
    ];
    prop::collection::vec(step, 1..12)
}

/// Bytes that differ by offset, so that a shifted transfer shows.
fn pattern(fill: u8, offset: usize, len_bytes: usize) -> Vec<u8> {
    (offset..offset + len_bytes).map(|at| fill ^ (at / 7) as u8).collect()
}

fn batch(
    backing: &dyn Backing,
    buffers: &Buffers,
    twin: &mut [u8],
    (first, pages, fill, odd): (usize, usize, u8, usize),
) {
    let mut queue = backing.queue(6, buffers).unwrap();
    let mut done = Vec::new();
    for operation in [Operation::Write, Operation::Read] {
        for page in first..(first + pages).min(LEN_BYTES / 4096 - 1) {
            let (offset, len_bytes) = (page * 4096 + odd, 4096 - odd);
            let data = pattern(fill, offset, len_bytes);
            let mut buf = buffers.get(4096, Demand::Required).unwrap();
            buf.fill(0xAA);
            if operation == Operation::Write {
                buf[..len_bytes].copy_from_slice(&data);
                twin[offset..][..len_bytes].copy_from_slice(&data);
            }
            let request = Request { id: offset as u64, operation, offset: offset as u64, buf, len_bytes };
            while queue.in_flight() == 6 {
                queue.complete(2, &mut done);
            }
            queue.submit(request).unwrap();
        }
        queue.complete(usize::MAX, &mut done);
        for Completion { request, result } in done.drain(..) {
            assert_eq!(result, Ok(()));
            let (offset, len_bytes) = (request.id as usize, request.len_bytes);
            assert!(request.buf[..len_bytes] == twin[offset..][..len_bytes]);
            assert!(request.buf[len_bytes..].iter().all(|&b| b == 0xAA), "bytes behind the request changed");
        }
    }
}

fn run(backing: &dyn Backing, steps: &[Step]) {
    let buffers = Buffers::new(4 * 4096).unwrap();
    // Not zeroes, so that a lost neighbour shows.
    let mut twin = pattern(0x3C, 0, LEN_BYTES);
    backing.write_at(0, &twin).unwrap();
    for step in steps {
        match *step {
            Step::Write { offset, len_bytes, fill } => {
                let data = pattern(fill, offset, len_bytes.min(LEN_BYTES - offset));
                backing.write_at(offset as u64, &data).unwrap();
                twin[offset..offset + data.len()].copy_from_slice(&data);
            }
            Step::Read { offset, len_bytes } => {
                let mut buf = vec![0xEE; len_bytes.min(LEN_BYTES - offset)];
                backing.read_at(offset as u64, &mut buf).unwrap();
                assert!(buf == twin[offset..offset + buf.len()]);
            }
            Step::Flush => backing.flush().unwrap(),
            Step::Batch { first_page, pages, fill, odd } => {
                batch(backing, &buffers, &mut twin, (first_page, pages, fill, odd));
            }
        }
    }
    assert!(contents(backing) == twin);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_medium_behaves_as_an_array_of_bytes(steps in steps()) {
        for medium in crate::support::all() {
            run(&*medium.backing, &steps);
        }
    }
}
