//! Servers that are away: for a while, and for longer than the deadline.

use crate::server::{Object, Server};
use crate::{BLOCK, LEN, PATH, contents, open_with, options, read, server};
use pagefold_backing::BackingError;
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
