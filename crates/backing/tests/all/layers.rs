//! The behaviour that each layer adds to a medium.

use pagefold_backing::layer::{
    Access, Action, DelayLayer, DelayOptions, ErrorLayer, FaultRule, ManualClock, StatsLayer, SystemClock,
    Tear, TimeSource, TornLayer, TornRule, TraceLayer, When,
};
use pagefold_backing::{
    Backing, Buffer, Buffers, ByteSource, Completion, MemoryBacking, Operation, Queue, Request,
};
use std::sync::Arc;
use std::time::Duration;

const LEN_BYTES: usize = 64 * 4096;
const US: Duration = Duration::from_micros(1);

fn memory() -> MemoryBacking {
    MemoryBacking::new(LEN_BYTES)
}

fn write(page: u64, fill: u8) -> Request {
    let buf = Buffer::copy_of(&[fill; 4096]);
    Request { id: page, operation: Operation::Write, offset: page * 4096, buf, len_bytes: 4096 }
}

fn drain(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    queue.complete(usize::MAX, &mut done);
    done
}

fn bytes(backing: &dyn Backing, offset: u64, len_bytes: usize) -> Vec<u8> {
    let mut buf = vec![0; len_bytes];
    backing.read_at(offset, &mut buf).unwrap();
    buf
}

// Errors.

/// Makes each request of a run fail in turn, single and queued, and checks that the others succeed.
#[test]
fn each_request_fails_in_turn_and_comes_back() {
    let buffers = Buffers::new(0).unwrap();
    for n in 1..=20 {
        for queued in [false, true] {
            let medium = ErrorLayer::new(memory());
            medium.control().fail_writes(When::Nth(n), libc::EIO);
            let mut failed = Vec::new();
            if queued {
                let mut queue = medium.queue(8, &buffers).unwrap();
                let mut done = Vec::new();
                for page in 0..20 {
                    while queue.in_flight() == 8 {
                        queue.complete(3, &mut done);
                    }
                    queue.submit(write(page, 9)).unwrap();
                }
                queue.complete(usize::MAX, &mut done);
                assert_eq!(done.len(), 20);
                assert!(done.iter().all(|c| c.request.buf.iter().all(|&b| b == 9)));
                failed.extend(
                    done.iter().filter_map(|c| Some((c.request.id, c.result.as_ref().err()?.errno()))),
                );
            } else {
                let results = (0..20).map(|page| (page, medium.write_at(page * 4096, &[9; 4096])));
                failed.extend(results.filter_map(|(page, result)| Some((page, result.err()?.errno()))));
            }
            assert_eq!(failed, [(n - 1, libc::EIO)]);
            assert_eq!(medium.control().injected(), 1);
            for page in 0..20 {
                let expected = if page == n - 1 { 0 } else { 9 };
                assert_eq!(bytes(&medium, page * 4096, 4096), [expected; 4096]);
            }
        }
    }
}

#[test]
fn fault_rules_select_by_kind_range_and_number() {
    let medium = ErrorLayer::new(memory());
    let control = medium.control();
    let write_ok = |page: u64| medium.write_at(page * 4096, &[1; 4096]).is_ok();
    control.fail_writes(When::EveryNth(3), libc::EIO);
    assert_eq!((0..7).map(write_ok).collect::<Vec<_>>(), [true, true, false, true, true, false, true]);
    assert!(medium.read_at(0, &mut [0]).is_ok());
    control.clear();
    control.fail(FaultRule {
        actions: vec![Action::Write, Action::Discard],
        range: Some(4096..8192),
        when: When::Always,
        errno: libc::ENOSPC,
    });
    assert_eq!((0..3).map(write_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(medium.write_at(4095, &[1]).is_ok() && medium.write_at(8192, &[1]).is_ok());
    assert_eq!(medium.write_at(4095, &[1, 1]).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(medium.discard(0, 5000).unwrap_err().errno(), libc::ENOSPC);
    assert!(medium.flush().is_ok());
    control.clear();
    control.fail_io(When::From(3), libc::ENODEV);
    assert_eq!((0..5).map(write_ok).collect::<Vec<_>>(), [true, true, false, false, false]);
    assert_eq!(medium.read_at(0, &mut [0]).unwrap_err().errno(), libc::ENODEV);
    control.clear();
    control.fail(FaultRule {
        actions: vec![Action::Flush],
        range: None,
        when: When::Always,
        errno: libc::EIO,
    });
    assert!(write_ok(0) && medium.flush().is_err());
}

#[test]
fn chance_is_the_same_for_the_same_seed() {
    let run = |seed| {
        let medium = ErrorLayer::new(memory());
        medium.control().fail_reads(When::Chance { per_million: 250_000, seed }, libc::EIO);
        (0..1000).map(|_| medium.read_at(0, &mut [0]).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let failed = run(3).iter().filter(|ok| !**ok).count();
    assert!((150..350).contains(&failed), "{failed} of 1000");
}

// Delays, all on a clock that only waits advance.

fn delayed(options: DelayOptions) -> (DelayLayer<MemoryBacking>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (DelayLayer::new(memory(), options, clock.clone()), clock)
}

#[test]
fn a_device_works_on_as_many_requests_as_it_is_deep() {
    let buffers = Buffers::new(0).unwrap();
    for (device_depth, queue_depth, waits) in [(32, 32, 2), (32, 1, 64), (1, 32, 64), (8, 64, 8)] {
        let (medium, clock) = delayed(DelayOptions { depth: device_depth, ..Default::default() });
        let mut queue = medium.queue(queue_depth, &buffers).unwrap();
        let mut done = Vec::new();
        for page in 0..64 {
            if queue.in_flight() == queue_depth {
                queue.complete(queue_depth, &mut done);
            }
            queue.submit(write(page, 1)).unwrap();
        }
        queue.complete(usize::MAX, &mut done);
        assert_eq!(done.len(), 64);
        assert_eq!(clock.now(), US * 100 * waits, "device {device_depth}, queue {queue_depth}");
    }
}

#[test]
fn single_requests_and_queues_share_the_device() {
    let (medium, clock) = delayed(DelayOptions { depth: 2, ..Default::default() });
    let buffers = Buffers::new(0).unwrap();
    let mut queue = medium.queue(8, &buffers).unwrap();
    for page in 0..4 {
        queue.submit(write(page, 1)).unwrap();
    }
    queue.start();
    // Both channels are taken until 200 us.
    medium.write_at(0, &[1]).unwrap();
    assert_eq!(clock.now(), US * 300);
    assert_eq!(drain(&mut *queue).len(), 4);
    assert_eq!(clock.now(), US * 300);
    medium.flush().unwrap();
    medium.discard(0, 4096).unwrap();
    assert_eq!(clock.now(), US * 400);
}

#[test]
fn the_delay_of_a_request_begins_at_start_and_not_at_submit() {
    let (medium, clock) = delayed(DelayOptions::default());
    let buffers = Buffers::new(0).unwrap();
    let mut queue = medium.queue(8, &buffers).unwrap();
    queue.submit(write(1, 1)).unwrap();
    queue.start();
    clock.advance(US * 60);
    queue.submit(write(2, 1)).unwrap();
    let mut done = Vec::new();
    assert_eq!(queue.complete(0, &mut done), 0);
    assert_eq!(queue.complete(1, &mut done), 1);
    assert_eq!((done[0].request.id, clock.now()), (1, US * 100));
    assert_eq!(queue.complete(1, &mut done), 1);
    assert_eq!((done[1].request.id, clock.now()), (2, US * 160));
}

#[test]
fn bandwidth_is_shared_by_the_channels() {
    let options = DelayOptions { bytes_per_s: Some(4096 * 1000), ..Default::default() };
    let (medium, clock) = delayed(options);
    let buffers = Buffers::new(0).unwrap();
    let mut queue = medium.queue(32, &buffers).unwrap();
    for page in 0..32 {
        queue.submit(write(page, 1)).unwrap();
    }
    drain(&mut *queue);
    assert_eq!(clock.now(), Duration::from_millis(32));
}

#[test]
fn with_jitter_requests_complete_out_of_order_with_their_own_data() {
    let jittery = |seed| DelayOptions { jitter: US * 500, seed, ..Default::default() };
    let order = |seed| {
        let (medium, _) = delayed(jittery(seed));
        let buffers = Buffers::new(0).unwrap();
        let mut queue = medium.queue(32, &buffers).unwrap();
        for page in 0..32 {
            queue.submit(write(page, page as u8 + 1)).unwrap();
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            assert!(queue.complete(1, &mut done) >= 1);
        }
        for Completion { request, result } in &done {
            assert_eq!(*result, Ok(()));
            assert_eq!(request.offset, request.id * 4096);
            assert!(request.buf.iter().all(|&b| b == request.id as u8 + 1));
            assert_eq!(bytes(&medium, request.offset, 4096), &request.buf[..]);
        }
        done.iter().map(|c| c.request.id).collect::<Vec<_>>()
    };
    let first = order(1);
    assert!(!first.is_sorted());
    assert_eq!(first, order(1));
    assert_ne!(first, order(2));
    let mut ids = first;
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..32));
}

#[test]
fn the_system_clock_never_returns_early() {
    let clock = SystemClock::new();
    for us in [0, 5, 40, 300] {
        let until = clock.now() + US * us;
        clock.wait_until(until);
        assert!(clock.now() >= until);
    }
}

// Trace and counters.

#[test]
fn the_trace_has_every_request_that_ended() {
    let medium = TraceLayer::new(ErrorLayer::new(memory()), true);
    medium.inner().control().fail_writes(When::Nth(2), libc::EIO);
    let buffers = Buffers::new(0).unwrap();
    let mut queue = medium.queue(8, &buffers).unwrap();
    for page in 0..3 {
        queue.submit(write(page, page as u8)).unwrap();
    }
    // Dropping a queue completes its requests, and they are in the trace.
    drop(queue);
    medium.read_at(8192, &mut [0; 2]).unwrap();
    medium.flush().unwrap();
    medium.discard(5, 6).unwrap();
    medium.read_at(u64::MAX, &mut [0]).unwrap_err();
    let mut trace = medium.control().take();
    assert!(medium.control().take().is_empty());
    trace[..3].sort_by_key(|e| e.access.offset);
    let access = |action, offset, len_bytes| Access { action, offset, len_bytes };
    let seen: Vec<_> = trace.iter().map(|e| (e.access, e.result.is_ok(), e.data.as_deref())).collect();
    let expected = [
        (access(Action::Write, 0, 4096), true, Some(&[0; 4096][..])),
        (access(Action::Write, 4096, 4096), false, Some(&[1; 4096][..])),
        (access(Action::Write, 8192, 4096), true, Some(&[2; 4096][..])),
        (access(Action::Read, 8192, 2), true, Some(&[2, 2][..])),
        (access(Action::Flush, 0, 0), true, None),
        (access(Action::Discard, 5, 6), true, None),
        (access(Action::Read, u64::MAX, 1), false, None),
    ];
    assert!(seen == expected);
    let without_data = TraceLayer::new(memory(), false);
    without_data.write_at(0, &[1]).unwrap();
    without_data.control().for_each(|entry| assert_eq!(entry.data, None));
    assert_eq!(without_data.control().take().len(), 1);
}

#[test]
fn counters_are_by_kind_and_count_errors_separately() {
    let medium = StatsLayer::new(ErrorLayer::new(memory()));
    medium.inner().control().fail_writes(When::Nth(1), libc::EIO);
    let buffers = Buffers::new(0).unwrap();
    let mut queue = medium.queue(4, &buffers).unwrap();
    queue.submit(write(0, 1)).unwrap();
    queue.submit(write(1, 1)).unwrap();
    drain(&mut *queue);
    drop(queue);
    medium.read_at(0, &mut [0; 100]).unwrap();
    medium.discard(0, 5000).unwrap();
    medium.flush().unwrap();
    medium.flush().unwrap();
    let stats = medium.control().stats();
    let tuple = |s: pagefold_backing::layer::ActionStats| (s.requests, s.bytes, s.errors);
    assert_eq!(tuple(stats.writes), (2, 4096, 1));
    assert_eq!(tuple(stats.reads), (1, 100, 0));
    assert_eq!(tuple(stats.discards), (1, 5000, 0));
    assert_eq!(tuple(stats.flushes), (2, 0, 0));
}

// Torn writes.

fn torn(rule: TornRule, queued: bool) -> (Vec<bool>, Vec<u8>) {
    let medium = TornLayer::new(memory());
    medium.control().set(Some(rule));
    let mut results = Vec::new();
    if queued {
        let buffers = Buffers::new(0).unwrap();
        let mut queue = medium.queue(64, &buffers).unwrap();
        for page in 0..16 {
            queue.submit(write(page, page as u8 + 1)).unwrap();
        }
        let mut done = drain(&mut *queue);
        done.sort_by_key(|c| c.request.id);
        assert!(done.iter().all(|c| c.request.buf.iter().all(|&b| b == c.request.id as u8 + 1)));
        results.extend(done.iter().map(|c| c.result.is_ok()));
    } else {
        results.extend((0..16).map(|p: u64| medium.write_at(p * 4096, &[p as u8 + 1; 4096]).is_ok()));
    }
    assert!(medium.control().torn() > 0);
    medium.control().set(None);
    (results, bytes(&medium, 0, 16 * 4096))
}

#[test]
fn the_same_seed_tears_the_same_writes() {
    let rule = |seed| TornRule { when: When::EveryNth(2), tear: None, errno: None, seed };
    let (results, contents) = torn(rule(1), false);
    assert!(results.iter().all(|&ok| ok), "a torn write was reported though it should not");
    assert_eq!((results, contents.clone()), torn(rule(1), true));
    assert_ne!(contents, torn(rule(2), false).1);
    for (page, data) in contents.chunks(4096).enumerate() {
        let whole = data.iter().all(|&b| b == page as u8 + 1);
        assert_eq!(whole, page % 2 == 0, "page {page}");
        // Sectors are whole or missing.
        assert!(data.chunks(512).all(|s| s == [0; 512] || s == [page as u8 + 1; 512]));
    }
    let failing = TornRule { errno: Some(libc::EIO), ..rule(1) };
    let (results, same_contents) = torn(failing, true);
    assert!(results.iter().enumerate().all(|(page, &ok)| ok == (page % 2 == 0)));
    assert_eq!(contents, same_contents);
}

#[test]
fn each_tear_writes_the_sectors_of_its_name() {
    let sectors = |tear, seed| {
        let rule = TornRule { when: When::Nth(1), tear: Some(tear), errno: None, seed };
        let page = torn(rule, false).1[..4096].to_vec();
        page.chunks(512).map(|s| s[0] == 1).collect::<Vec<_>>()
    };
    let mut cuts = std::collections::HashSet::new();
    for seed in 0..40 {
        let prefix = sectors(Tear::Prefix, seed);
        assert!(prefix.is_sorted_by(|a, b| a >= b) && !prefix[7]);
        cuts.insert(prefix);
        let suffix = sectors(Tear::Suffix, seed);
        assert!(suffix.is_sorted() && !suffix[0]);
    }
    assert_eq!(cuts.len(), 8, "all cuts are tried");
    assert_eq!(sectors(Tear::AlternateSectors, 0), [false, true, false, true, false, true, false, true]);
    assert_eq!(sectors(Tear::Nothing, 0), [false; 8]);
    assert_eq!(sectors(Tear::Everything, 0), [true; 8]);
}
