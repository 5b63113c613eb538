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
    // A refusal is followed by a request without the condition, whose answer says which version there is.
    let v0 = Some("\"v0\"".to_string());
    assert!(
        conditions[1] == v0 && conditions[2].is_none() && conditions.last() == Some(&v0),
        "{conditions:?}"
    );
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

/// A server that refuses its own tag, as one that compresses files and names them differently does.
#[test]
fn a_server_that_refuses_its_own_tag_is_asked_without_a_condition() {
    for known in [None, Some("\"v0-gzip\"")] {
        let server = server();
        server.fail(move |request| match request.headers.get("if-match").map(String::as_str) {
            found if found == known || found.is_none() => Fault::None,
            _ => Fault::Status(412, None),
        });
        let source = open(&server);
        read(&source, 0, LEN).unwrap();
        let log = server.take_log();
        let refused = log.iter().filter(|request| request.headers.contains_key("if-match")).count();
        assert_eq!(refused, 1, "the source remembers it");
        server.put(PATH, Object::new(contents(1), "v1"));
        let source = open(&server);
        server.put(PATH, Object::new(contents(0), "v0"));
        let mut byte = [0];
        assert!(is_changed(pagefold_backing::ByteSource::read_at(&source, LEN - 1, &mut byte)));
    }
}

/// Servers behind one name that made their tags themselves.
#[test]
fn several_servers_with_different_tags_are_told_from_a_change_and_with_a_digest_the_bytes_decide() {
    let tag = |n: u64| Fault::Etag(Some(format!("\"{}\"", n % 2)));
    let server = server();
    server.fail(move |request| tag(request.number));
    // The next server is asked, too.
    let source = open(&server);
    read(&source, 0, LEN).unwrap();
    server.fail(move |_| tag(1));
    let source = open(&server);
    server.fail(move |request| tag(request.number));
    read(&source, BLOCK, 1).unwrap();
    server.fail(move |_| tag(0));
    let error = read(&source, LEN - 1, 1).unwrap_err().to_string();
    assert!(error.contains("Several servers have its name") && error.contains("--digest"), "{error}");
    // One that was replaced, perhaps.
    server.fail(move |_| tag(1));
    let source = open(&server);
    server.fail(move |_| tag(0));
    let error = read(&source, LEN - 1, 1).unwrap_err().to_string();
    assert!(error.contains("its ETag was \"1\", and is \"0\". If it was not replaced"), "{error}");
    let verified = Options { is_verified: true, ..options(10_000) };
    server.fail(move |request| tag(request.number / 3));
    let source = open_with(&server, verified).unwrap();
    server.take_log();
    read(&source, 0, LEN).unwrap();
    assert!(server.take_log().iter().all(|request| !request.headers.contains_key("if-match")));
}
