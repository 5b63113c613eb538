//! The end of a save to a bucket: the manifest is written without an answer, beside other saves, and under signals. An object
//! that a manifest names, or may name later, stays.

use crate::disk_bucket::s3_writes::WriteFault;
use crate::disk_bucket::{BUSY, FAILED, KEY, Saved};
use crate::image_remote::server::{Fault, Request};
use crate::support::writeback::pages;
use crate::support::{kill, wait_until};
use serde_json::Value;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MANIFEST: &str = "/disks/of%20a/work";

fn is_manifest(request: &Request) -> bool {
    request.method == "PUT" && request.path == MANIFEST
}

/// Faults of the writes of the manifest, one after another; then there are none.
fn fail_manifests(d: &Saved, faults: impl IntoIterator<Item = WriteFault, IntoIter: Send + 'static>) {
    let mut faults = faults.into_iter();
    d.writes.fail(move |request| match is_manifest(request) {
        true => faults.next().unwrap_or(WriteFault::None),
        false => WriteFault::None,
    });
}

fn status(status: u16) -> WriteFault {
    WriteFault::Before(Fault::Status(status, None))
}

/// The names in a manifest, as paths.
fn named(manifest: &Value) -> Vec<String> {
    let names = manifest["objects"].as_array().unwrap().iter();
    names.map(|object| format!("/disks/of%20a/{}", object["name"].as_str().unwrap())).collect()
}

/// A manifest with an object of another save at its beginning.
fn gone_on_from(manifest: &[u8]) -> Vec<u8> {
    let mut manifest: Value = serde_json::from_slice(manifest).unwrap();
    let id = "0a".repeat(16);
    let other =
        serde_json::json!({"name": format!("work.{id}"), "id": id, "sha256": "b1".repeat(32), "bytes": 7});
    manifest["objects"].as_array_mut().unwrap().insert(0, other);
    manifest.to_string().into_bytes()
}

/// The answer to the manifest is lost, and another save goes on from it before it is read again.
#[test]
fn a_save_that_another_one_goes_on_from_has_succeeded() {
    for words in ["", "|--incremental"] {
        let mut d = Saved::new();
        d.save("|--incremental");
        d.write(4096, &pages(9, 7));
        let writes = d.writes.clone();
        d.writes.fail(move |request| match is_manifest(request) {
            true => {
                writes.put(MANIFEST, gone_on_from(&request.body_bytes));
                WriteFault::Before(Fault::Hangup)
            }
            false => WriteFault::None,
        });
        d.save(words);
        let (manifest, mut objects) = (d.manifest(), d.objects());
        assert_eq!(named(&manifest).len(), if words.is_empty() { 2 } else { 3 });
        // That of the other save is in its manifest only.
        objects.sort();
        let mut wanted = named(&manifest)[1..].to_vec();
        wanted.sort();
        assert_eq!(objects, wanted);
        // Without the other save the disk is whole.
        let mut ours = manifest;
        ours["objects"].as_array_mut().unwrap().remove(0);
        d.writes.fail(|_| WriteFault::None);
        d.writes.put(MANIFEST, ours.to_string().into_bytes());
        d.check(&d.data);
    }
}

/// Another save has replaced the manifest by one that does not name our object. If ours may be written later, it stays.
#[test]
fn an_object_is_removed_only_if_its_manifest_cannot_come() {
    let d = Saved::new();
    d.save("");
    let before = d.objects();
    let former = d.writes.get(MANIFEST).unwrap();
    for fault in [|| Fault::Status(412, None), || Fault::Hangup, || Fault::Status(409, None)] {
        let fault: fn() -> Fault = fault;
        let (writes, other) = (d.writes.clone(), gone_on_from(&former));
        d.writes.fail(move |request| match is_manifest(request) {
            true => {
                writes.put(MANIFEST, other.clone());
                WriteFault::Before(fault())
            }
            false => WriteFault::None,
        });
        let ran = d.run(&format!("disk save x|{KEY}"));
        ran.fails(BUSY, "replaced by another save meanwhile");
        d.writes.fail(|_| WriteFault::None);
        assert_eq!(d.writes.get(MANIFEST).unwrap(), gone_on_from(&former));
        let is_known = fault() == Fault::Status(412, None);
        assert_eq!(d.objects().len(), before.len() + usize::from(!is_known), "{ran:?}");
        assert_eq!(ran.err.contains("stays in the bucket"), !is_known, "{ran:?}");
        d.writes.put(MANIFEST, former.clone());
        d.ok(&format!("disk saved|{KEY}|--clean"));
        assert_eq!(d.objects(), before);
    }
    d.check(&d.data);
}

/// An attempt without an answer is still on its way when the next one is refused.
#[test]
fn a_manifest_that_comes_late_names_an_object() {
    for first in [|| Fault::Hangup, || Fault::Status(500, None), || Fault::Status(409, None)] {
        let first: fn() -> Fault = first;
        for second in [403, 401, 404, 412] {
            let mut d = Saved::of_pages(64);
            d.save("");
            d.write(4096, &pages(2, 8));
            let late = Arc::new(Mutex::new(Vec::new()));
            let sent = late.clone();
            let mut faults = [WriteFault::Before(first()), status(second)].into_iter();
            d.writes.fail(move |request| match is_manifest(request) {
                true => {
                    sent.lock().unwrap().clone_from(&request.body_bytes);
                    faults.next().unwrap()
                }
                false => WriteFault::None,
            });
            let ran = d.run(&format!("disk save x|{KEY}"));
            ran.fails(FAILED, "whether 's3://disks/of a/work' names it is not known");
            assert!(ran.err.contains("stays in the bucket") && ran.err.contains("--clean"), "{ran:?}");
            d.writes.fail(|_| WriteFault::None);
            d.writes.put(MANIFEST, late.lock().unwrap().clone());
            d.check(&d.data);
        }
    }
}

/// A refusal that cannot have been done removes the object; a conflict that passes is repeated.
#[test]
fn a_clear_answer_is_believed() {
    let d = Saved::new();
    d.save("");
    let before = (d.objects(), d.manifest());
    fail_manifests(&d, [status(403)]);
    d.run(&format!("disk save x|{KEY}")).fails(5, "403");
    assert_eq!((d.objects(), d.manifest()), before);
    fail_manifests(&d, [status(409), status(503), WriteFault::Before(Fault::Hangup)]);
    d.save("");
    assert_ne!(d.manifest(), before.1);
    assert_eq!(d.objects(), named(&d.manifest()));
    d.writes.fail(|_| WriteFault::None);
    d.check(&d.data);
}

/// Runs a save to a store that does not answer one request, and sends a signal then.
fn interrupted(d: &Saved, signal: &str, stalls: impl Fn(&Request) -> bool + Send + 'static) -> Output {
    let is_silent = Arc::new(AtomicBool::new(false));
    let seen = is_silent.clone();
    d.writes.fail(move |request| match stalls(request) {
        true => {
            seen.store(true, SeqCst);
            WriteFault::Before(Fault::Late(Duration::from_secs(100)))
        }
        false => WriteFault::None,
    });
    let mut save = d.command(&format!("disk save x|{KEY}"));
    let child = save.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the store is silent", || is_silent.load(SeqCst));
    kill(child.id() as i32, signal);
    let output = child.wait_with_output().unwrap();
    d.writes.fail(|_| WriteFault::None);
    output
}

#[test]
fn a_signal_ends_the_wait_for_the_manifest() {
    for signal in ["INT", "TERM", "HUP"] {
        let d = Saved::of_pages(64);
        d.save("");
        let before = d.manifest();
        let output = interrupted(&d, signal, is_manifest);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(FAILED), "{errors}");
        assert!(errors.contains("names it is not known: interrupted"), "{errors}");
        // The object stays: the store may still write the manifest.
        assert_eq!((d.manifest(), d.objects().len()), (before, 2));
        d.check(&d.data);
    }
}

/// The save is complete, so a signal ends only the removal of what is not needed.
#[test]
fn a_signal_ends_the_removal_of_former_objects() {
    let d = Saved::of_pages(64);
    d.save("");
    let output = interrupted(&d, "INT", |request| request.method == "DELETE");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("is not needed, and stays in the bucket: interrupted"), "{errors}");
    assert_eq!(d.objects().len(), 2);
    d.ok(&format!("disk saved|{KEY}|--clean"));
    assert_eq!(d.objects(), named(&d.manifest()));
    d.check(&d.data);
}
