//! Servers that are away: for a while, and for longer than the deadline.

use crate::server::{Fault, Object, Server};
use crate::{BLOCK, LEN, PATH, contents, open_with, options, read, server};
use pagefold_backing::{BackingError, DeadlineScope};
use std::time::{Duration, Instant};

#[test]
fn an_outage_that_ends_within_the_deadline_is_not_seen() {
    let first = server();
    let (source, address) = (open_with(&first, options(8_000)).unwrap(), first.address);
    drop(first);
    std::thread::scope(|scope| {
        let readers = [2, 5, 8].map(|block| {
            let source = &source;
            scope.spawn(move || read(source, block * BLOCK, 100))
        });
        std::thread::sleep(Duration::from_millis(700));
        let second = Server::start_at(address, None);
        second.put(PATH, Object::new(contents(0), "v0"));
        readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
        read(&source, 0, LEN).unwrap();
    });
    assert!(source.stats().retries >= 3, "{:?}", source.stats());
}

#[test]
fn a_dead_server_fails_reads_at_the_deadline_and_memory_stays_readable() {
    let server = server();
    let timeout = Duration::from_millis(700);
    let source = open_with(&server, options(timeout.as_millis() as u64)).unwrap();
    let url = server.url(PATH);
    drop(server);
    let start = Instant::now();
    std::thread::scope(|scope| {
        // Several of them wait for one block: each has its own deadline.
        let readers = [3, 3, 3, 6].map(|block| {
            let source = &source;
            scope.spawn(move || read(source, block * BLOCK, 100))
        });
        for reader in readers {
            let error = reader.join().unwrap().unwrap_err();
            assert_eq!(error.errno(), 5);
            assert!(
                matches!(error, BackingError::Unreachable { .. })
                    && error.to_string().contains("within 0.7 s")
            );
        }
    });
    let took = start.elapsed();
    assert!(took >= timeout / 2 && took < timeout + Duration::from_secs(1), "{took:?}");
    read(&source, 100, 100).unwrap();
    let url = pagefold_remote::Url::parse(&url).unwrap();
    let error = pagefold_remote::RemoteSource::open(&url, options(300)).err().unwrap();
    assert!(error.to_string().contains("no answer within 0.3 s"), "{error}");
}

/// As the kernel lets them wait: the next read begins when the one before has failed.
#[test]
fn reads_behind_one_that_failed_fail_with_it_until_the_server_answers() {
    let first = server();
    let timeout = Duration::from_millis(900);
    let (source, address) = (open_with(&first, options(timeout.as_millis() as u64)).unwrap(), first.address);
    drop(first);
    let start = Instant::now();
    let scoped = |block: u64| {
        let _scope = DeadlineScope::begin();
        read(&source, block * BLOCK, 100)
    };
    for _ in 0..4 {
        let error = scoped(3).unwrap_err();
        assert!(error.to_string().contains("within 0.9 s"), "{error}");
    }
    let took = start.elapsed();
    assert!(took < timeout + Duration::from_secs(1), "{took:?}");
    // Another block, and a read without a scope, have separate deadlines.
    for other in [&|| scoped(6), &|| read(&source, 3 * BLOCK, 100)] as [&dyn Fn() -> _; 2] {
        let start = Instant::now();
        other().unwrap_err();
        assert!(start.elapsed() >= timeout / 2, "{:?}", start.elapsed());
    }
    // Another second later, a read has its deadline again, and then the next one finds the server.
    std::thread::sleep(Duration::from_secs(1));
    let again = Instant::now();
    scoped(3).unwrap_err();
    assert!(again.elapsed() >= timeout / 2, "{:?}", again.elapsed());
    let second = Server::start_at(address, None);
    second.put(PATH, Object::new(contents(0), "v0"));
    scoped(3).unwrap();
    read(&source, 0, LEN).unwrap();
}

/// A scope whose time is used up, by other reads of it, says nothing about the server.
#[test]
fn a_read_that_begins_with_little_time_left_is_no_outage_for_the_next_one() {
    let server = server();
    let timeout = Duration::from_millis(1500);
    let source = open_with(&server, options(timeout.as_millis() as u64)).unwrap();
    drop(server);
    let begun = |before: Duration| {
        let _scope = DeadlineScope::begin();
        std::thread::sleep(before);
        let start = Instant::now();
        read(&source, 3 * BLOCK, 100).unwrap_err();
        start.elapsed()
    };
    begun(timeout * 9 / 10);
    let took = begun(Duration::ZERO);
    assert!(took >= timeout * 3 / 4, "the read has its whole time: {took:?}");
}

#[test]
fn the_reads_of_a_scope_share_a_deadline() {
    let server = server();
    let timeout = Duration::from_millis(3000);
    let source = open_with(&server, options(timeout.as_millis() as u64)).unwrap();
    server.fail(|_| Fault::Late(Duration::from_millis(800)));
    let (start, scope) = (Instant::now(), DeadlineScope::begin());
    let are_read = [7, 5, 3, 1].map(|block| read(&source, block * BLOCK, 100).is_ok());
    assert!(are_read[0] && are_read[1] && !are_read[3], "{are_read:?}");
    drop(scope);
    let took = start.elapsed();
    assert!(took < timeout + Duration::from_millis(400), "{took:?}");
    // Without a scope, each read has a separate deadline.
    std::thread::sleep(Duration::from_secs(1));
    read(&source, BLOCK, 100).unwrap();
}
