//! Publishing images in registries.

use crate::image_remote::server::{Fault, Object, Request, Server};
use crate::image_stores::registry::{NAME, digest, put_blob};
use crate::image_stores::{ok, run};
use crate::json::Schema;
use crate::support::Sandbox;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};

/// Exit codes of the program.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

/// The contents of a registry, by the end of their paths.
type Contents = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Stores what is pushed, and answers requests for manifests. Blobs are for the server to answer.
fn answer(contents: &Contents, request: &Request) -> Fault {
    let mut contents = contents.lock().unwrap();
    let path = request.path.strip_prefix(&format!("/v2/{NAME}/")).unwrap();
    let status = |status| Fault::Answer(status, String::new(), Vec::new());
    match (&*request.method, path) {
        ("HEAD", path) => status(if contents.contains_key(path) { 200 } else { 404 }),
        ("POST", _) => Fault::Answer(202, "Location: uploads/1\r\n".into(), Vec::new()),
        ("PUT", path) => {
            let name = match path.split_once("digest=") {
                Some((_, digest)) => format!("blobs/{}", digest.replace("%3A", ":")),
                None => path.to_string(),
            };
            if name.starts_with("manifests/") {
                let by_digest = format!("manifests/{}", digest(&request.body_bytes));
                contents.insert(by_digest, request.body_bytes.clone());
            }
            contents.insert(name, request.body_bytes.clone());
            status(201)
        }
        (_, path) => match contents.get(path) {
            Some(bytes) if path.starts_with("manifests/") => Fault::Answer(200, String::new(), bytes.clone()),
            _ => Fault::None,
        },
    }
}

#[test]
fn an_image_that_was_pushed_is_read_and_verified() {
    let s = Sandbox::new();
    fs::create_dir(s.path("tree")).unwrap();
    fs::write(s.path("tree/file"), "contents\n".repeat(10_000)).unwrap();
    fs::write(s.path("list"), "/file\n").unwrap();
    let image = s.path("app.erofs").display().to_string();
    s.ok(&format!("-q image build {} {image}", s.path("tree").display()));
    let of_image = s.ok(&format!("image digest {image}"));
    let (server, contents) = (Server::start(), Contents::default());
    let stored = contents.clone();
    server.fail(move |request| answer(&stored, request));
    let name = format!("oci://{}/{NAME}", server.address);
    let words = format!(
        "image push --digest {} --list {} {image} {name}:1.0",
        of_image.trim(),
        s.path("list").display()
    );
    let pushed = run(&s, &format!("{words} --annotation org.opencontainers.image.version=1.0"), &[]);
    assert!(pushed.code == 0 && pushed.err.contains("5 blobs sent"), "{pushed:?}");
    for (path, bytes) in contents.lock().unwrap().iter().filter(|(path, _)| path.starts_with("blobs/")) {
        assert_eq!(*path, format!("blobs/{}", digest(bytes)));
        put_blob(&server, bytes);
    }
    let by_digest = pushed.out.trim();
    assert!(by_digest.starts_with(&format!("{name}@sha256:")), "{by_digest}");
    let local = s.ok(&format!("image ls -lR {image}"));
    for target in [by_digest, &format!("{name}:1.0")] {
        assert_eq!(ok(&s, &format!("image ls -lR {target}"), &[]), local);
    }
    let again = run(&s, &format!("{words} --platform linux/arm64"), &[]);
    assert!(again.err.contains("1 blob sent"), "{again:?}");
    let json = format!("{words} --json --annotation org.opencontainers.image.version=1.0");
    let json = ok(&s, &json, &[]);
    Schema::of("image-push").check(&json);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["name"].as_str(), Some(by_digest));
    assert!(by_digest.ends_with(json["manifest_digest"].as_str().unwrap()), "{json}");
    assert_eq!(json["sent_blobs"], 0);
    // The tree was pushed too, and tells that other bytes are not those of the image.
    let mut bytes = fs::read(&image).unwrap();
    let path = format!("/v2/{NAME}/blobs/{}", digest(&bytes));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    server.put(&path, Object { bytes: Arc::new(bytes), etag: None, last_modified: None });
    assert_ne!(run(&s, &format!("image check {name}:1.0"), &[]).code, 0);
    let list = s.path("list").display().to_string();
    // A name that is wrong is reported before the image is read.
    let none = s.path("none").display().to_string();
    // Nothing is sent that mounts would refuse.
    let before = contents.lock().unwrap().len();
    fs::write(s.path("other"), "/file\tx\n").unwrap();
    let other = s.path("other").display().to_string();
    let zeroes = format!("sha256:{}", "0".repeat(64));
    for (words, code, what) in [
        (format!("{none} {none}"), USAGE, "is no name of an image in a registry"),
        (format!("--platform x {none} {name}:1"), USAGE, "--platform"),
        (format!("--digest {zeroes} {image} {name}:1"), DAMAGED, "with the Merkle tree"),
        (
            format!("--digest {} --merkle-tree {list} {image} {name}:1", of_image.trim()),
            DAMAGED,
            "Merkle tree",
        ),
        (format!("--list {other} {image} {name}:1"), USAGE, "is no list of a start"),
        (format!("{list} {name}:1"), USAGE, "is no EROFS image"),
        (format!("{image} {list}"), USAGE, "is no name of an image in a registry"),
        (format!("{image} {by_digest}"), UNAVAILABLE, "is pushed by a tag"),
        (format!("{image}x {name}:1"), NOT_FOUND, "app.erofsx"),
        (format!("--annotation x {image} {name}:1"), USAGE, "is not NAME=TEXT"),
    ] {
        run(&s, &format!("image push {words}"), &[]).fails(code, what);
    }
    assert_eq!(contents.lock().unwrap().len(), before);
    // A byte in the middle is compared with the tree too.
    let mut bytes = fs::read(&image).unwrap();
    bytes[middle] ^= 1;
    fs::write(&image, bytes).unwrap();
    let words = format!("image push --digest {} {image} {name}:1", of_image.trim());
    run(&s, &words, &[]).fails(DAMAGED, "differs from its digest");
    assert_eq!(contents.lock().unwrap().len(), before);
}
