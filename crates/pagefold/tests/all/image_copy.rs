//! `image copy`, and the comparison of whole blobs with their digests by the commands that read everything.

use crate::image_digest::image;
use crate::image_remote::server::{Fault, Object, Server};
use crate::image_stores::registry::{self, EROFS, IMAGE, Manifests, NAME, descriptor, digest, put_blob};
use crate::image_stores::{ok, run};
use crate::support::Sandbox;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Exit codes of the program.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const DAMAGED: i32 = 6;

/// A registry without a login, which has the image as `plain`; and the name of that, and the path of its blob.
fn open_registry(path: &Path) -> (Server, String, String) {
    let server = Server::start();
    let blob = fs::read(path).unwrap();
    put_blob(&server, &blob);
    let mut manifests = Manifests::default();
    manifests.add("plain", IMAGE, &registry::image(&[descriptor(EROFS, &blob, "")]));
    server.fail(move |request| manifests.answer(request));
    let name = format!("oci://{}/{NAME}:plain", server.address);
    (server, name, format!("/v2/{NAME}/blobs/{}", digest(&blob)))
}

/// Puts a blob under a name that may be that of another.
fn put(server: &Server, path: &str, bytes: Vec<u8>) {
    server.put(path, Object { bytes: Arc::new(bytes), etag: None, last_modified: None });
}

#[test]
fn a_copy_is_the_image_and_says_what_verified_it() {
    let s = Sandbox::new();
    let path = image(&s);
    let bytes = fs::read(&path).unwrap();
    let of_image = s.ok(&format!("image digest {}", path.display()));
    let (server, name, _) = open_registry(&path);
    server.put("/app.erofs", Object::new(bytes.clone(), "v0"));
    server.put("/app.erofs.verity", Object::new(fs::read(s.path("image.verity")).unwrap(), "t0"));
    let (url, out) = (server.url("/app.erofs"), s.path("out"));
    let local = path.display().to_string();
    let verity = format!("{url} --digest {}", of_image.trim());
    for (words, verified_by, is_noted) in [
        (&name, vec!["manifest"], false),
        (&url, vec![], true),
        (&verity, vec!["merkle_tree"], false),
        (&local, vec![], false),
    ] {
        fs::write(&out, "before").unwrap();
        let ran = run(&s, &format!("image copy {words} {}", out.display()), &[]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(fs::read(&out).unwrap() == bytes, "{words}");
        assert!(ran.out.trim().ends_with(&digest(&bytes)), "{ran:?}");
        assert_eq!(ran.err.contains("nothing verifies the contents"), is_noted, "{ran:?}");
        let json = ok(&s, &format!("image copy --json {words} {}", out.display()), &[]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["verified_by"], serde_json::json!(verified_by), "{words}");
        assert_eq!((&json["image_bytes"], &json["sha256"]), (&bytes.len().into(), &digest(&bytes).into()));
    }
    let to = |words: &str| run(&s, &format!("image copy {words}"), &[]);
    to(&format!("{name} -")).fails(USAGE, "name a file");
    to(&format!("{name} {}", s.path("").display())).fails(USAGE, "is a directory");
    to(&format!("{} {}", server.url("/none"), s.path("none").display())).fails(NOT_FOUND, "no such object");
    assert!(!s.path("none").exists());
}

/// An interrupted copy leaves the blocks that it has read in the cache, and the next one does not fetch them.
#[test]
fn a_copy_goes_on_where_another_stopped() {
    let s = Sandbox::new();
    let path = s.path("image");
    let bytes: Vec<u8> =
        (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_769).to_le_bytes()).collect();
    fs::write(&path, &bytes).unwrap();
    let (server, name, blob) = open_registry(&path);
    let mut manifests = Manifests::default();
    manifests.add("plain", IMAGE, &registry::image(&[descriptor(EROFS, &bytes, "")]));
    let (limit, answers) = (Arc::new(AtomicU64::new(bytes.len() as u64 / 2)), manifests);
    let served = limit.clone();
    server.fail(move |request| match request.range() {
        Some((first, _)) if first > served.load(Ordering::SeqCst) => Fault::Hangup,
        _ => answers.answer(request),
    });
    let out = s.path("out");
    let cache = s.path("cache");
    let copy = format!("image copy --timeout 1s --cache {} {name} {}", cache.display(), out.display());
    run(&s, &copy, &[]).fails(FAILED, "no answer within 1 s");
    assert!(!out.exists());
    let names = || fs::read_dir(s.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names().all(|name| !name.to_string_lossy().contains(".part")), "the temporary file is removed");
    limit.store(u64::MAX, Ordering::SeqCst);
    server.take_log();
    ok(&s, &copy, &[]);
    assert!(fs::read(&out).unwrap() == bytes);
    let fetched: u64 = server.take_log().iter().filter(|request| request.path == blob).map(asked_bytes).sum();
    assert!(fetched < bytes.len() as u64 * 6 / 10, "{fetched} of {} bytes were fetched again", bytes.len());
}

fn asked_bytes(request: &crate::image_remote::server::Request) -> u64 {
    request.range().map_or(0, |(first, last)| last + 1 - first)
}

/// A registry that sends another blob than the manifest names: ranges do not tell, and all of it does.
#[test]
fn commands_that_read_a_whole_blob_compare_its_digest() {
    let s = Sandbox::new();
    let path = image(&s);
    let (server, name, blob) = open_registry(&path);
    let right = fs::read(&path).unwrap();
    let mut wrong = right.clone();
    let at = wrong.len() - 5000;
    wrong[at] ^= 1;
    let out = |n: usize| s.path(&format!("out{n}"));
    let commands = [
        format!("image copy {name} {}", out(0).display()),
        format!("image digest {name}"),
        format!("image check {name}"),
        format!("-q image extract {name} {}", out(3).display()),
        format!("image tar -o {} {name}", out(4).display()),
        format!("-q image build {name} {}", out(5).display()),
    ];
    let with_cache = format!(" --cache {}", s.path("cache").display());
    for (n, words) in commands.iter().enumerate() {
        for more in [with_cache.as_str(), " --no-cache"] {
            let words = format!("{words}{more}");
            fs::remove_dir_all(s.path("cache")).ok();
            put(&server, &blob, wrong.clone());
            let ran = run(&s, &words, &[]);
            ran.fails(DAMAGED, "has another digest: sha256:");
            assert!(n == 3 || !out(n).exists(), "{words}");
            fs::remove_dir_all(out(n)).ok();
            // The wrong blocks have left the cache.
            put(&server, &blob, right.clone());
            ok(&s, &words, &[]);
            if out(n).is_dir() {
                fs::remove_dir_all(out(n)).unwrap();
            } else {
                fs::remove_file(out(n)).ok();
            }
        }
    }
    // Those that read a part say nothing.
    put(&server, &blob, wrong);
    assert_eq!(ok(&s, &format!("image cat {name} /text --no-cache"), &[]).len(), 15 * 50_000);
    ok(&s, &format!("image tar -o {} {name} /text --no-cache", out(4).display()), &[]);
}

/// Without a place for what was read, comparing would fetch everything twice.
#[test]
fn a_blob_that_nothing_keeps_is_not_fetched_twice() {
    let s = Sandbox::new();
    let (tree, path) = (s.path("tree"), s.path("image"));
    fs::create_dir(&tree).unwrap();
    let noise: Vec<u8> =
        (0..2_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_769).to_le_bytes()).collect();
    fs::write(tree.join("noise"), &noise).unwrap();
    s.ok(&format!("-q image build -z none {} {}", tree.display(), path.display()));
    let (server, name, blob) = open_registry(&path);
    let len = fs::metadata(&path).unwrap().len();
    let with_cache = format!("--memory 4M --cache {}", s.path("cache").display());
    for (more, is_compared) in [("--no-cache --memory 4M", false), (with_cache.as_str(), true)] {
        server.take_log();
        let ran = run(&s, &format!("image check {name} {more}"), &[]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(ran.err.contains("were not compared with the digest"), !is_compared, "{ran:?}");
        let fetched: u64 =
            server.take_log().iter().filter(|request| request.path == blob).map(asked_bytes).sum();
        assert!(fetched < len * 11 / 10, "{fetched} of {len} bytes with {more}");
    }
}
