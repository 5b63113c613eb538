//! Each fault at each request in turn: a read returns the right bytes, or fails by its deadline.

use crate::server::{Fault, Server};
use crate::{BLOCK, LEN, open, open_with, options, read, server};
use pagefold_backing::{BackingError, ByteSource};
use pagefold_remote::{Options, Spool};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The reads of the tests, from the opening on: 5 requests.
fn read_all(server: &Server) -> Result<(), String> {
    let source = open_with(server, options(10_000)).map_err(|e| e.to_string())?;
    for (from, len) in
        [(0, 10), (4 * BLOCK, 10), (BLOCK, 3 * BLOCK), (LEN - 1, 1), (5 * BLOCK - 5, 3 * BLOCK)]
    {
        read(&source, from, len).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Runs the reads with the fault at request `n`; true if the fault happened.
fn with_fault_at(server: &Server, n: u64, fault: &Fault) -> (bool, Result<(), String>) {
    server.take_log();
    let fault = fault.clone();
    server.fail(move |request| if request.number == n { fault.clone() } else { Fault::None });
    let result = read_all(server);
    (server.take_log().len() as u64 > n, result)
}

#[test]
fn transient_faults_are_not_seen_by_readers() {
    let server = server();
    let second = Some("1".to_string());
    let faults = [
        Fault::Hangup,
        Fault::Cut(0),
        Fault::Cut(1),
        Fault::Cut(BLOCK as usize - 1),
        Fault::Status(500, None),
        Fault::Status(503, Some("0".into())),
        Fault::Status(429, second),
        Fault::Status(503, Some("Wed, 21 Oct 2015 07:28:00 GMT".into())),
        Fault::Late(Duration::from_millis(50)),
    ];
    for fault in faults {
        let mut n = 0;
        loop {
            let (happened, result) = with_fault_at(&server, n, &fault);
            assert_eq!(result, Ok(()), "{fault:?} at {n}");
            if !happened {
                break;
            }
            n += 1;
        }
        assert!(n >= 5, "{n} requests");
    }
}

#[test]
fn wrong_answers_are_refused_and_no_wrong_byte_is_returned() {
    let server = server();
    let faults = [
        (Fault::Whole, "does not answer range requests"),
        (Fault::Shifted(1), "were asked for"),
        (Fault::ContentRange("bytes 0-9".into()), "Content-Range is 'bytes 0-9'"),
        (Fault::ContentRange("bytes 1-2/3, 4-5/6".into()), "Content-Range is"),
        (Fault::Short, "Content-Length is not"),
        (Fault::Long, "Content-Length is not"),
        (Fault::LongInChunks, "longer than its range"),
        (Fault::Status(403, None), "access is denied"),
        (Fault::Status(404, None), "no such object"),
        (Fault::Redirect("ftp://host/x".into()), "a redirect of the server cannot be followed"),
    ];
    for (fault, says) in faults {
        for n in 0..5 {
            let (happened, result) = with_fault_at(&server, n, &fault);
            assert!(happened, "{fault:?} at {n}");
            // A range that ends at the end of the object cannot be shifted.
            let error = result.err();
            assert!(error.as_ref().is_some_and(|text| text.contains(says)), "{fault:?} at {n}: {error:?}");
        }
    }
}

#[test]
fn an_error_names_the_object_without_its_query_and_the_source_stays_usable() {
    let server = server();
    let url = pagefold_remote::Url::parse(&server.url("/images/app.erofs?signature=abc")).unwrap();
    let source = pagefold_remote::RemoteSource::open(&url, options(10_000)).unwrap();
    server.fail(|_| Fault::Status(404, None));
    let error = read(&source, 4 * BLOCK, 1).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/images/app.erofs?...': the server answers with status 404"), "{text}");
    assert!(!text.contains("abc") && matches!(error, BackingError::Unreachable { .. }));
    server.fail(|_| Fault::None);
    read(&source, 4 * BLOCK, 1).unwrap();
}

/// Seeded faults at a fifth of the requests, of many readers at once.
#[test]
fn many_readers_get_right_bytes_from_a_bad_server() {
    let server = server();
    let source = open_with(&server, options(20_000)).unwrap();
    let seed = 0x5eed_u64;
    server.fail(move |request| match (request.number + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 {
        0..2 => Fault::Hangup,
        2..4 => Fault::Cut(70_000),
        4 => Fault::Status(503, Some("0".into())),
        5 => Fault::Status(429, None),
        _ => Fault::None,
    });
    let small = pagefold_remote::Options { cache_bytes: 0, ahead_threads: 3, ..options(20_000) };
    let small = open_with(&server, small).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let source = if thread % 2 == 0 { &source } else { &small };
            scope.spawn(move || {
                for n in 0..12_u64 {
                    let from = (thread * 101 + n).wrapping_mul(0xff51_afd7_ed55_8ccd) % LEN;
                    read(source, from, (3 * BLOCK).min(LEN - from)).unwrap();
                }
            });
        }
    });
    assert!(small.stats().retries > 0, "{:?}", small.stats());
}

#[test]
fn garbage_and_slow_bodies_end_by_the_deadline() {
    let server = server();
    let source = open(&server);
    drop(source);
    let limit = Duration::from_millis(600);
    for fault in [Fault::Garbage, Fault::Slow(Duration::from_millis(50)), Fault::Late(Duration::from_secs(3))]
    {
        server.fail(|_| Fault::None);
        let source = open_with(&server, options(limit.as_millis() as u64)).unwrap();
        let chosen = fault.clone();
        server.fail(move |_| chosen.clone());
        let start = Instant::now();
        let error = read(&source, 5 * BLOCK, 100).unwrap_err();
        let took = start.elapsed();
        assert!(took < limit + Duration::from_secs(1) && took >= limit / 2, "{fault:?}: {took:?}");
        assert!(error.to_string().contains("no answer within 0.6 s"), "{error}");
    }
}

/// Servers that know no ranges, in several ways: a caller that reads all of an object gets it whole.
#[test]
fn an_object_of_a_server_without_ranges_is_downloaded_whole_where_the_caller_permits_it() {
    for status in [200, 400, 416, 501] {
        let server = server();
        server.fail(move |request| match (status, request.headers.contains_key("range")) {
            (200, true) => Fault::Whole,
            (_, true) => Fault::Status(status, None),
            (_, false) => Fault::None,
        });
        let error = open_with(&server, options(5000)).err().unwrap().to_string();
        assert!(error.contains("'pagefold image copy'"), "{error}");
        assert_eq!(server.take_log().len(), 1, "a refusal is not repeated");
        let folder = tempfile::tempdir().unwrap();
        let spool = Some(Arc::new(Spool::create(folder.path(), |_| {})));
        let source = open_with(&server, Options { spool, cache_bytes: 0, ..options(5000) }).unwrap();
        assert!(source.len_bytes() == LEN && source.is_kept());
        for (from, len) in [(0, LEN), (5, 1), (LEN - 1, 1), (BLOCK - 1, 2)] {
            read(&source, from, len).unwrap();
        }
        let log = server.take_log();
        assert_eq!(log.len(), 2, "{log:?}");
        // A download that breaks off is no object.
        server.fail(move |request| match request.headers.contains_key("range") {
            true => Fault::Whole,
            false => Fault::Answer(200, "X: y\r\nContent-Length: 9\r\n".into(), b"12345".to_vec()),
        });
        let spool = Some(Arc::new(Spool::create(folder.path(), |_| {})));
        assert!(open_with(&server, Options { spool, ..options(2000) }).is_err());
    }
}
