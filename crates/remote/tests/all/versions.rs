//! One version of an object for the life of a source.

use crate::server::{Fault, Object, Server};
use crate::{BLOCK, LEN, PATH, contents, open, open_with, options, read, server};
use pagefold_backing::BackingError;
use pagefold_remote::{Options, RemoteError};
use std::sync::Arc;

fn is_changed(result: Result<(), BackingError>) -> bool {
    match result {
        Err(BackingError::Mismatch { what }) => what.contains("has changed since it was opened"),
        other => panic!("{other:?}"),
    }
}

fn object(version: u64, etag: Option<&str>, last_modified: Option<&str>) -> Object {
    let owned = |text: Option<&str>| text.map(String::from);
    Object { bytes: Arc::new(contents(version)), etag: owned(etag), last_modified: owned(last_modified) }
}

#[test]
fn an_object_that_is_replaced_fails_reads_and_what_is_in_memory_stays_readable() {
    let server = server();
    let source = open(&server);
    read(&source, 0, 100).unwrap();
    server.put(PATH, Object::new(contents(1), "v1"));
    assert!(is_changed(read(&source, 5 * BLOCK, 100)));
    read(&source, 0, 100).unwrap();
    // It is the right one again.
    server.put(PATH, Object::new(contents(0), "v0"));
    read(&source, 5 * BLOCK, 100).unwrap();
    let conditions: Vec<_> =
        server.take_log().into_iter().map(|r| r.headers.get("if-match").cloned()).collect();
    assert_eq!(conditions[0], None);
    assert!(conditions[1..].iter().all(|condition| condition.as_deref() == Some("\"v0\"")), "{conditions:?}");
}

/// Servers that ignore `If-Match`: the entity tag of the answer tells.
#[test]
fn a_version_that_the_server_names_in_the_answer_only_is_noticed() {
    let server = server();
    let source = open(&server);
    for etag in [Some("\"v1\""), Some("W/\"v0\""), None] {
        server.fail(move |_| Fault::Etag(etag.map(String::from)));
        assert!(is_changed(read(&source, 5 * BLOCK, 100)));
    }
    server.fail(|_| Fault::None);
    read(&source, 5 * BLOCK, 100).unwrap();
}

#[test]
fn without_a_strong_entity_tag_the_time_and_the_length_are_compared() {
    let server = Server::start();
    server.put(PATH, object(0, Some("W/\"a\""), Some("Wed, 21 Oct 2015 07:28:00 GMT")));
    let source = open(&server);
    read(&source, BLOCK, 100).unwrap();
    let log = server.take_log();
    assert_eq!(log[1].headers["if-unmodified-since"], "Wed, 21 Oct 2015 07:28:00 GMT");
    server.put(PATH, object(1, Some("W/\"a\""), Some("Wed, 21 Oct 2015 07:28:01 GMT")));
    assert!(is_changed(read(&source, LEN - 100, 100)));
}

#[test]
fn an_object_without_a_version_is_refused_unless_it_is_verified() {
    let server = Server::start();
    server.put(PATH, object(0, None, None));
    assert_eq!(open_with(&server, options(10_000)).err(), Some(RemoteError::Unversioned));
    let source = open_with(&server, Options { is_verified: true, ..options(10_000) }).unwrap();
    read(&source, 0, LEN).unwrap();
    let mut longer = contents(0);
    longer.push(1);
    server.put(PATH, Object { bytes: Arc::new(longer), ..object(0, None, None) });
    let source = open_with(&server, Options { is_verified: true, ..options(10_000) }).unwrap();
    server.put(PATH, object(0, None, None));
    assert!(is_changed(read(&source, 5 * BLOCK, 100)));
}
