//! Redirects: followed, remembered, asked for again, and without credentials for others.

use crate::server::{Fault, Object, Server};
use crate::{BLOCK, LEN, PATH, contents, open, open_with, options, read, server};
use pagefold_remote::{Options, Secret};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn a_redirect_is_followed_once_and_remembered() {
    let (front, store) = (server(), Server::start());
    store.put("/signed", Object::new(contents(0), "v0"));
    let target = store.url("/signed?signature=1");
    front.fail(move |_| Fault::Redirect(target.clone()));
    let authorization = Some(Secret("Basic abc".into()));
    let source = open_with(&front, Options { authorization, ..options(10_000) }).unwrap();
    read(&source, 0, LEN).unwrap();
    let (asked, served) = (front.take_log(), store.take_log());
    assert_eq!((asked.len(), served.len()), (1, 2));
    assert_eq!(asked[0].headers["authorization"], "Basic abc");
    assert!(served.iter().all(|request| !request.headers.contains_key("authorization")));
    assert!(served.iter().all(|request| request.path == "/signed?signature=1"));
}

#[test]
fn a_redirect_within_the_server_keeps_the_credentials() {
    let server = server();
    server.put("/moved", Object::new(contents(0), "v0"));
    server.fail(|request| match request.path.as_str() {
        PATH => Fault::Redirect("/moved".into()),
        _ => Fault::None,
    });
    let authorization = Some(Secret("Basic abc".into()));
    let source = open_with(&server, Options { authorization, ..options(10_000) }).unwrap();
    read(&source, 0, LEN).unwrap();
    assert!(server.take_log().iter().all(|request| request.headers["authorization"] == "Basic abc"));
}

/// A signed URL expires: the store denies it, and the front makes another one.
#[test]
fn an_expired_signature_is_renewed_in_the_middle_of_reading() {
    let (front, store) = (server(), Server::start());
    store.put("/signed", Object::new(contents(0), "v0"));
    let valid = Arc::new(AtomicU64::new(1));
    let (base, current) = (store.url("/signed"), valid.clone());
    front.fail(move |_| Fault::Redirect(format!("{base}?signature={}", current.load(Ordering::SeqCst))));
    let current = valid.clone();
    store.fail(move |request| {
        match request.path.ends_with(&format!("={}", current.load(Ordering::SeqCst))) {
            true => Fault::None,
            false => Fault::Status(403, None),
        }
    });
    let source = open(&front);
    for block in 1..9 {
        valid.store(block, Ordering::SeqCst);
        read(&source, block * BLOCK, 1).unwrap();
    }
    // A store that denies everything is not asked for ever.
    store.fail(|_| Fault::Status(403, None));
    let source = open_with(&front, options(500)).err().unwrap();
    assert!(source.to_string().contains("status 403"), "{source}");
}

#[test]
fn endless_redirects_and_those_to_other_protocols_are_refused() {
    let server = server();
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    server.fail(move |_| {
        *counted.lock().unwrap() += 1;
        Fault::Redirect(PATH.into())
    });
    let error = open_with(&server, options(10_000)).err().unwrap();
    assert!(error.to_string().contains("there are more than 5"), "{error}");
    assert_eq!(*count.lock().unwrap(), 6);
    for target in ["file:///etc/passwd", "//user:secret@host/x", "http://"] {
        server.fail(move |_| Fault::Redirect(target.into()));
        let error = open_with(&server, options(10_000)).err().unwrap();
        assert!(
            error.to_string().contains("cannot be followed") && !error.to_string().contains("secret"),
            "{error}"
        );
    }
}
