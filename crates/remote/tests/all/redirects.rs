//! Redirects: followed, remembered, asked for again, and without credentials for others.

use crate::registry::{EROFS, IMAGE, Manifests, NAME, descriptor, image, token_answer, unauthorized};
use crate::server::{Fault, Object, Server};
use crate::{BLOCK, LEN, PATH, contents, open, open_with, options, read, server};
use pagefold_remote::oci::{self, OciReference, Platform};
use pagefold_remote::{Options, Secret};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

/// A registry that leads from one of its places to another, where the token is refused: as on the first place, another one
/// is asked for.
#[test]
fn a_token_that_is_refused_behind_a_redirect_is_renewed() {
    let (server, mut manifests, valid) = (Server::start(), Manifests::default(), Arc::new(AtomicU64::new(1)));
    let blob = contents(0);
    let moved = format!("/moved/{}", crate::registry::digest(&blob));
    server.put(&moved, Object { bytes: Arc::new(blob.clone()), etag: None, last_modified: None });
    manifests.add("1", IMAGE, &image(&[descriptor(EROFS, &blob, "")]));
    let (realm, current) = (server.url("/token"), valid.clone());
    server.fail(move |request| {
        let n = current.load(Ordering::SeqCst);
        let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
        match request.path.split('?').next() {
            Some("/token") => token_answer(n, 3600),
            Some(path) if path.contains("/blobs/") => Fault::Redirect(moved.clone()),
            Some(path) if path.starts_with("/moved/") => {
                unauthorized(request, &format!("Bearer token-{n}"), &challenge).unwrap_or(Fault::None)
            }
            _ => manifests.answer(request),
        }
    });
    let reference = OciReference::parse(&format!("oci://{}/{NAME}:1", server.address)).unwrap();
    let platform = "linux/amd64".parse::<Platform>().unwrap();
    let found = oci::resolve(&reference, None, &platform, Duration::from_secs(5)).unwrap();
    let source = found.open(&Options { cache_bytes: 0, ..options(10_000) }).unwrap();
    for block in 1..4 {
        // The place that was remembered refuses the old token first, and so does the way to it.
        valid.fetch_add(1, Ordering::SeqCst);
        read(&source, block * BLOCK, 1).unwrap();
    }
    // One that no token opens is refused at once.
    valid.store(0, Ordering::SeqCst);
    server.fail(|request| match request.path.contains("/blobs/") {
        true => Fault::Redirect("/moved/x".into()),
        false => Fault::Status(401, None),
    });
    let begun = std::time::Instant::now();
    let error = read(&source, 5 * BLOCK, 1).unwrap_err();
    assert!(error.to_string().contains("status 401") && begun.elapsed() < Duration::from_secs(8), "{error}");
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
