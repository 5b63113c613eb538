//! Reading without faults: the right bytes, few requests, many readers.

use crate::server::{Fault, Object, Server};
use crate::{BLOCK, LEN, PATH, contents, open, open_with, options, read, server};
use pagefold_backing::{BackingError, ByteSource};
use pagefold_remote::{Options, RemoteSource, Secret, Url};
use std::time::{Duration, Instant};

#[test]
fn a_whole_object_is_read_in_few_requests_that_grow() {
    let server = server();
    let source = open(&server);
    assert_eq!(source.len_bytes(), LEN);
    for from in (0..LEN).step_by(5000) {
        read(&source, from, 5000.min(LEN - from)).unwrap();
    }
    let ranges: Vec<_> = server.take_log().iter().map(|request| request.range().unwrap()).collect();
    // 1 and 8 blocks, and the rest.
    assert_eq!(ranges, [(0, BLOCK - 1), (BLOCK, 9 * BLOCK - 1), (9 * BLOCK, LEN - 1)]);
    let stats = source.stats();
    assert_eq!((stats.requests, stats.retries, stats.received_bytes), (3, 0, LEN));
    assert_eq!(stats.latency.count(), 2, "the request that opens the object is not counted");
    assert!(stats.request_ns > 0 && stats.cache_bytes == 16 << 20);
    assert!(stats.hit_bytes > LEN * 8 / 10, "{stats:?}");
}

#[test]
fn many_threads_read_at_random_and_fetch_each_block_once() {
    let server = server();
    let source = open(&server);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let source = &source;
            scope.spawn(move || {
                for n in 0..200_u64 {
                    let from = (thread * 7919 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % LEN;
                    read(source, from, (n * 131 % 9000).min(LEN - from)).unwrap();
                }
            });
        }
    });
    assert_eq!(source.stats().received_bytes, LEN);
    let outside = source.read_at(LEN - 1, &mut [0; 2]);
    assert!(matches!(outside, Err(BackingError::OutOfRange { .. })), "{outside:?}");
    assert_eq!(source.read_at(LEN, &mut []), Ok(()));
}

#[test]
fn a_small_cache_is_slower_and_never_wrong() {
    let server = server();
    let source = open_with(&server, Options { cache_bytes: 2 * BLOCK as usize, ..options(10_000) }).unwrap();
    for from in [0, 5 * BLOCK, LEN - 10, 5 * BLOCK + 1, 100] {
        read(&source, from, 10).unwrap();
    }
    read(&source, 0, LEN).unwrap();
}

#[test]
fn objects_of_no_bytes_and_of_one_are_read() {
    let server = Server::start();
    for len in [0, 1] {
        server.put(crate::PATH, Object::new(vec![7; len], "tiny"));
        let source = open(&server);
        let mut buf = vec![0; len];
        assert_eq!((source.len_bytes(), source.read_at(0, &mut buf)), (len as u64, Ok(())));
        assert_eq!(buf, vec![7; len]);
    }
}

#[test]
fn credentials_are_sent_with_each_request_and_shown_nowhere() {
    let server = server();
    let authorization = Some(Secret("Bearer abc".into()));
    let source = open_with(&server, Options { authorization, ..options(10_000) }).unwrap();
    read(&source, 0, LEN).unwrap();
    let log = server.take_log();
    assert!(log.len() > 1);
    for request in log {
        assert_eq!(request.headers["authorization"], "Bearer abc");
        assert!(request.headers["user-agent"].starts_with("pagefold/"));
        assert_eq!(request.headers["accept-encoding"], "identity");
    }
    assert!(!source.describe().contains("abc"));
    let far = Url::parse("http://images.example.org/x").unwrap();
    let options = Options { authorization: Some(Secret("Bearer abc".into())), ..options(10_000) };
    let refused = RemoteSource::open(&far, options).err().unwrap();
    assert!(refused.to_string().contains("https:// only"), "{refused}");
}

/// A server with an object that is long enough for read-ahead, and its bytes.
fn long_object() -> (Server, Vec<u8>) {
    let (server, long) = (Server::start(), contents(0).repeat(20));
    server.put(PATH, Object::new(long.clone(), "v0"));
    (server, long)
}

#[test]
fn what_follows_a_sequence_is_fetched_before_it_is_wanted() {
    let (server, long) = long_object();
    // The length of requests follows latency and rate: this latency keeps them from becoming shorter than the first ones.
    server.fail(|_| Fault::Late(Duration::from_millis(50)));
    let source = open_with(&server, Options { ahead_threads: 2, ..options(10_000) }).unwrap();
    let read = |from: u64, len: u64| {
        let mut buf = vec![0; len as usize];
        source.read_at(from, &mut buf).unwrap();
        assert!(buf == long[from as usize..(from + len) as usize]);
    };
    for from in [0, BLOCK, 9 * BLOCK] {
        read(from, 10);
    }
    // Two runs of 32 blocks. A thread that has just started may not wait yet: each read offers it the next one.
    let begun = Instant::now();
    while source.stats().received_bytes < 105 * BLOCK {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", source.stats());
        std::thread::sleep(Duration::from_millis(5));
        read(9 * BLOCK, 10);
    }
    server.take_log();
    read(0, 73 * BLOCK);
    // Blocks behind these may be fetched meanwhile.
    let asked: Vec<_> = server.take_log().iter().map(|request| request.range().unwrap()).collect();
    assert!(asked.iter().all(|(first, _)| *first >= 73 * BLOCK), "all was there: {asked:?}");
    read(73 * BLOCK, long.len() as u64 - 73 * BLOCK);
    assert_eq!(source.stats().received_bytes, long.len() as u64);
}

/// The server fails at all that is fetched ahead: readers do not notice.
#[test]
fn requests_ahead_that_fail_are_those_of_readers_then() {
    let (server, long) = long_object();
    let source = open_with(&server, Options { ahead_threads: 3, ..options(10_000) }).unwrap();
    server.fail(|request| match request.number % 2 {
        0 => Fault::Hangup,
        _ => Fault::None,
    });
    for (from, expected) in (0..).step_by(3000).zip(long.chunks(3000)) {
        let mut buf = vec![0; expected.len()];
        source.read_at(from, &mut buf).unwrap();
        assert!(buf == expected, "{from}");
    }
}
