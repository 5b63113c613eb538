//! Saved disks in a bucket: saves, chains, restores, other writers, and all that a store and a killed command can do.

#[path = "../../../remote/tests/support/s3_writes.rs"]
pub mod s3_writes;

use crate::image_remote::server;
use crate::image_stores::command;
use crate::json::Schema;
use crate::support::writeback::{connect, pages, write};
use crate::support::{Nbd, Ran, Sandbox, kill, wait_until};
use s3_writes::{WriteFault, Writes};
use server::{Fault, Object, Server};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

pub const PAGES: usize = 2048;
pub const KEY: &str = "s3://disks/of a/work";
/// Exit codes of the program.
pub const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
pub const BUSY: i32 = 4;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

/// A disk with contents, and a bucket.
pub struct Saved {
    s: Sandbox,
    pub data: Vec<u8>,
    _server: Server,
    url: String,
    pub writes: Writes,
}

impl Saved {
    pub fn new() -> Self {
        Saved::of_pages(PAGES)
    }

    pub fn of_pages(count: usize) -> Self {
        let s = Sandbox::new();
        s.ok(&format!("disk create -q --export nbd --name x --size {}", count * 4096));
        let server = Server::start();
        let writes = Writes::on(&server);
        let url = server.url("");
        let mut new = Saved { s, data: pages(count, 5), _server: server, url, writes };
        write(&mut connect(&new.s), &new.data);
        new.data.truncate(count * 4096);
        new
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        connect(&self.s).write(offset as u64, bytes);
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// A command whose words are divided at '|', because keys have spaces.
    pub fn command(&self, words: &str) -> std::process::Command {
        let variables = [
            ("AWS_ENDPOINT_URL", self.url.as_str()),
            ("AWS_ACCESS_KEY_ID", "KEY"),
            ("AWS_SECRET_ACCESS_KEY", "hidden"),
        ];
        let mut words = words.split('|');
        let mut command = command(&self.s, words.next().unwrap(), &variables);
        command.args(words);
        command
    }

    pub fn run(&self, words: &str) -> Ran {
        Ran::new(words, self.command(words).output().unwrap())
    }

    pub fn ok(&self, words: &str) -> String {
        self.run(words).succeeds()
    }

    pub fn json(&self, words: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }

    pub fn save(&self, words: &str) -> serde_json::Value {
        self.json(&format!("disk save x|{KEY}|--json{words}"))
    }

    /// Paths but that of the manifest.
    pub fn objects(&self) -> Vec<String> {
        let mut paths = self.writes.paths();
        paths.retain(|path| path != "/disks/of%20a/work");
        paths
    }

    pub fn manifest(&self) -> serde_json::Value {
        serde_json::from_slice(&self.writes.get("/disks/of%20a/work").unwrap()).unwrap()
    }

    /// Checks the saved disk, restores it, and compares the contents.
    pub fn check(&self, data: &[u8]) {
        assert_eq!(self.json(&format!("disk saved|{KEY}|--json|--check"))["checked"], true);
        self.ok(&format!("disk create -q --export nbd --name y --restore|{KEY}"));
        self.is_restored(data);
    }

    pub fn is_restored(&self, data: &[u8]) {
        let mut client = Nbd::connect(&self.s.runtime().join("y/nbd.sock"));
        let mut bytes = vec![1; data.len()];
        for (at, piece) in bytes.chunks_mut(256 << 10).enumerate() {
            client.read((at * (256 << 10)) as u64, piece);
        }
        drop(client);
        assert!(bytes == data);
        self.s.ok("disk remove --force y");
    }

    pub fn spawn(&self, words: &str) -> Child {
        self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}

#[test]
fn a_disk_is_saved_to_a_bucket_and_restored() {
    let mut d = Saved::new();
    let first = d.save("");
    assert!(first["full_because"].is_null());
    let manifest = d.manifest();
    assert_eq!((&manifest["format"], &manifest["version"]), (&"pagefold-saved-disk".into(), &1.into()));
    let object = &manifest["objects"][0];
    assert_eq!(
        (&object["id"], &object["sha256"], &object["bytes"]),
        (&first["id"], &first["digest"], &first["file_bytes"])
    );
    assert_eq!(d.objects(), [format!("/disks/of%20a/work.{}", first["id"].as_str().unwrap())]);
    let shown = d.json(&format!("disk saved|{KEY}|--json"));
    assert_eq!(
        (&shown["id"], &shown["checked"], &shown["chain_files"]),
        (&first["id"], &false.into(), &1.into())
    );
    d.check(&d.data);
    // The next one replaces it, and its object is removed.
    d.write(4096, &pages(3, 9));
    let second = d.save("");
    assert_eq!(d.objects(), [format!("/disks/of%20a/work.{}", second["id"].as_str().unwrap())]);
    d.check(&d.data);
    // An object alone is a saved disk too, and so is one on any server.
    let object = d.objects()[0].replace("%20", " ");
    d.ok(&format!("disk create -q --export nbd --name y --restore|s3:/{object}"));
    d.is_restored(&d.data);
    let plain = Server::start();
    plain.put("/work.saved", Object::new(d.writes.get(&d.objects()[0]).unwrap(), "v"));
    d.ok(&format!("disk create -q --export nbd --name y --restore|{}", plain.url("/work.saved")));
    d.is_restored(&d.data);
    d.s.ok("disk remove --force x");
    assert!(d.s.left().is_empty());
}

#[test]
fn incremental_saves_are_a_chain_in_the_bucket() {
    let mut d = Saved::new();
    let mut before = d.save("|--incremental");
    assert_eq!(before["full_because"], "the bucket had no saved disk of this name");
    for round in 1..=3 {
        d.write(round * 70 * 4096, &pages(20, round as u64 + 10));
        let incremental = d.save("|--incremental");
        assert_eq!((&incremental["parent"], &incremental["pages"]), (&before["id"], &20.into()));
        before = incremental;
        d.check(&d.data);
    }
    assert_eq!((d.objects().len(), d.manifest()["objects"].as_array().unwrap().len()), (4, 4));
    // A failed save leaves manifest and chain; the next one is full, because the server takes the lost one for the last.
    let manifest = d.manifest();
    d.writes.fail(|request| match request.method.as_str() {
        "PUT" => WriteFault::Before(Fault::Status(403, None)),
        _ => WriteFault::None,
    });
    d.write(0, &pages(2, 99));
    d.run(&format!("disk save x|{KEY}|--incremental")).fails(UNAVAILABLE, "403");
    d.writes.fail(|_| WriteFault::None);
    assert_eq!((d.manifest(), d.objects().len()), (manifest, 4));
    let full = d.save("|--incremental");
    assert!(full["parent"].is_null() && full["full_because"].is_string(), "{full}");
    assert_eq!(d.objects().len(), 1);
    d.check(&d.data);
    // An object of a chain that is missing or another one is an error, and makes no disk.
    d.write(0, &pages(2, 98));
    d.save("|--incremental");
    let oldest = format!("/disks/of%20a/{}", d.manifest()["objects"][1]["name"].as_str().unwrap());
    let bytes = d.writes.get(&oldest).unwrap();
    let mut changed = bytes.clone();
    changed[9999] ^= 1;
    d.writes.put(&oldest, changed);
    let restore = format!("disk create -q --export nbd --name y --restore|{KEY}");
    d.run(&restore).fails(DAMAGED, "checksum");
    d.run(&format!("disk saved|{KEY}|--check")).fails(DAMAGED, "work.");
    d.writes.put(&oldest, bytes[1..].to_vec());
    d.run(&restore).fails(DAMAGED, "in place of");
    d.writes.put(&oldest, bytes);
    let manifest = d.manifest();
    let other =
        manifest.to_string().replace(manifest["objects"][1]["sha256"].as_str().unwrap(), &"0".repeat(64));
    d.writes.put("/disks/of%20a/work", other.into_bytes());
    d.run(&restore).fails(DAMAGED, "another digest");
    d.run(&format!("disk saved|{KEY}|--check")).fails(DAMAGED, "than its manifest says");
    d.writes.put("/disks/of%20a/work", manifest.to_string().into_bytes());
    d.check(&d.data);
}

/// Somebody else's save in between stays, and the object of the one that came too late is removed.
#[test]
fn a_save_does_not_replace_another_one() {
    let d = Saved::new();
    d.save("");
    let (objects, writes) = (d.objects(), d.writes.clone());
    let foreign = d.writes.get("/disks/of%20a/work").unwrap();
    let puts = Arc::new(AtomicBool::new(false));
    d.writes.fail(move |request| {
        if request.method == "PUT" && request.path.ends_with("/work") && !puts.swap(true, SeqCst) {
            // The same manifest, written by another client, is another version.
            return WriteFault::Before(Fault::Status(412, None));
        }
        WriteFault::None
    });
    d.run(&format!("disk save x|{KEY}")).fails(BUSY, "replaced by another save meanwhile");
    assert_eq!((d.objects(), writes.get("/disks/of%20a/work").unwrap()), (objects, foreign));
    d.check(&d.data);
    // Another object than a manifest is not replaced.
    for bytes in [b"something else".to_vec(), Vec::new(), vec![b'x'; 9 << 20]] {
        d.writes.put("/disks/of%20a/work", bytes);
        d.run(&format!("disk save x|{KEY}")).fails(BUSY, "is not replaced");
        assert_eq!(d.objects().len(), 1);
        d.run(&format!("disk saved|{KEY}")).fails(DAMAGED, "neither a saved disk nor");
    }
}

/// Lost answers and errors that pass, at each request of a save, change nothing about its result.
#[test]
fn a_save_outlasts_passing_failures() {
    let d = Saved::new();
    d.save("");
    for n in 0..4 {
        for after in [false, true] {
            let mut seen = 0;
            d.writes.fail(move |_| {
                seen += 1;
                match (seen == n + 1, after) {
                    (false, _) => WriteFault::None,
                    (true, false) => WriteFault::Before(Fault::Status(500, None)),
                    (true, true) => WriteFault::After(Fault::Hangup),
                }
            });
            d.save("");
            d.writes.fail(|_| WriteFault::None);
            let objects = d.objects();
            assert_eq!(objects.len(), 1, "{n} {after}: {objects:?}");
            assert!(objects[0].ends_with(d.manifest()["objects"][0]["name"].as_str().unwrap()));
        }
    }
    d.check(&d.data);
}

/// Ctrl-C while the store is silent removes what was sent.
#[test]
fn an_interrupted_save_leaves_nothing() {
    let d = Saved::of_pages(8192);
    let silent = Arc::new(AtomicBool::new(false));
    let seen = silent.clone();
    d.writes.fail(move |request| match request.path.contains("partNumber=2") {
        true => {
            seen.store(true, SeqCst);
            WriteFault::Before(Fault::Late(Duration::from_secs(2)))
        }
        false => WriteFault::None,
    });
    let mut child = d.spawn(&format!("disk save x|{KEY}"));
    wait_until("the second part is sent", || silent.load(SeqCst));
    kill(child.id() as i32, "INT");
    assert!(!child.wait().unwrap().success());
    assert!(d.writes.paths().is_empty(), "{:?}", d.writes.paths());
    wait_until("the upload is aborted", || d.writes.uploads() == 0);
}

/// SIGKILL at any moment: the manifest names complete objects, and the save before it is restored.
#[test]
fn a_killed_save_leaves_the_one_before() {
    let mut d = Saved::new();
    d.save("|--incremental");
    let mut saved = (d.manifest(), d.data.clone());
    for round in 0..12_u64 {
        d.write(round as usize * 4096 * 40, &pages(30, round + 50));
        let mut child = d.spawn(&format!("disk save x|{KEY}|--incremental"));
        std::thread::sleep(Duration::from_millis(5 + round * 17));
        let _ = child.kill();
        let _ = child.wait();
        // A request that the command had sent may still be on its way.
        std::thread::sleep(Duration::from_millis(100));
        let names = d.manifest()["objects"].as_array().unwrap().clone();
        for object in &names {
            let path = format!("/disks/of%20a/{}", object["name"].as_str().unwrap());
            assert_eq!(d.writes.get(&path).unwrap().len() as u64, object["bytes"].as_u64().unwrap());
        }
        if d.manifest() != saved.0 {
            saved = (d.manifest(), d.data.clone());
        }
        d.check(&saved.1);
    }
    d.save("");
    assert_eq!(d.writes.uploads(), 0);
    d.check(&d.data);
    // Objects that the killed ones have left are removed by name and age.
    let left = d.objects().len() as u64 - 1;
    let clean = d.ok(&format!("disk saved|{KEY}|--clean|--json|--older-than|10000d"));
    Schema::of("disk-saved-clean").check(&clean);
    let clean: serde_json::Value = serde_json::from_str(&clean).unwrap();
    assert_eq!((clean["younger"].as_u64(), clean["removed"].as_array().unwrap().len()), (Some(left), 0));
    assert_eq!(
        d.json(&format!("disk saved|{KEY}|--clean|--json"))["removed"].as_array().unwrap().len() as u64,
        left
    );
    assert_eq!(d.objects().len(), 1);
}

#[test]
fn cleaning_removes_old_objects_that_nobody_names() {
    let d = Saved::new();
    d.writes.set_time("2026-01-02T03:04:05.000Z");
    d.run(&format!("disk saved|{KEY}|--clean")).fails(NOT_FOUND, "it is not known what is needed");
    d.save("");
    let id = "0123456789abcdef0123456789abcdef";
    let beside = ["work.bak".to_string(), format!("work.{id}.x"), format!("other.{id}"), format!("work{id}")];
    for name in &beside {
        d.writes.put(&format!("/disks/of%20a/{name}"), vec![0]);
    }
    d.writes.put(&format!("/disks/of%20a/work.{id}"), vec![0]);
    let cleaned = d.ok(&format!("disk saved|{KEY}|--clean"));
    assert!(cleaned.starts_with(&format!("removed of a/work.{id} (1 B, of 2026-01-02")), "{cleaned}");
    assert_eq!(cleaned.lines().count(), 1);
    assert_eq!(d.objects().len(), 1 + beside.len());
    d.check(&d.data);
    d.s.run("disk saved /dev/null --clean").fails(USAGE, "for buckets");
}

/// Connections that are lost in the middle are resumed; the version is pinned.
#[test]
fn a_restore_resumes_and_sees_a_replaced_object() {
    let d = Saved::new();
    d.save("");
    let mut seen = 0;
    d.writes.fail(move |request| {
        seen += 1;
        match request.method == "GET" && seen % 2 == 0 {
            true => WriteFault::Before(Fault::Hangup),
            false => WriteFault::None,
        }
    });
    d.check(&d.data);
    d.writes.fail(|_| WriteFault::None);
    d.run("disk create -q --export nbd --size 8M --name y --restore|s3://disks/none")
        .fails(NOT_FOUND, "no such object");
    let if_exists = "disk create -q --export nbd --size 8M --name y --restore-if-exists";
    d.ok(&format!("{if_exists}|s3://disks/none"));
    d.is_restored(&vec![0; PAGES * 4096]);
    d.ok(&format!("{if_exists}|{KEY}"));
    d.is_restored(&d.data);
    // A bucket that is missing, a refusal, and a manifest without its object are no new disks.
    let refuse = |status, code: &str| {
        let body = format!("<Error><Code>{code}</Code></Error>").into_bytes();
        d.writes.fail(move |_| WriteFault::Before(Fault::Answer(status, String::new(), body.clone())));
        d.run(&format!("{if_exists}|{KEY}"))
    };
    refuse(404, "NoSuchBucket").fails(UNAVAILABLE, "NoSuchBucket");
    refuse(403, "AccessDenied").fails(UNAVAILABLE, "AccessDenied");
    d.writes.fail(|request| match request.path.contains("work.") {
        true => WriteFault::Before(Fault::Status(404, None)),
        false => WriteFault::None,
    });
    d.run(&format!("{if_exists}|{KEY}")).fails(FAILED, "needs all its objects");
    // Another save removes the object in the middle of a restore.
    let mut seen = 0;
    d.writes.fail(move |request| {
        seen += u32::from(request.path.contains("work."));
        match seen > 3 {
            true => WriteFault::Before(Fault::Status(404, None)),
            false => WriteFault::None,
        }
    });
    d.run(&format!("{if_exists}|{KEY}")).fails(FAILED, "if another save has replaced the object, try again");
    d.s.ok("disk remove --force x");
    assert!(d.s.left().is_empty());
}

#[test]
fn targets_that_cannot_be_written_are_refused() {
    let d = Saved::new();
    d.run("disk save x https://host/disk").fails(USAGE, "a disk is saved to a file or to a bucket");
    d.run("disk save x s3://disks").fails(USAGE, "followed by '/' and the key");
    d.run("disk save x s3://disks/a//b").fails(USAGE, "cannot be written");
    d.run("disk save x oci://host/disk:1").fails(USAGE, "a disk is saved to");
    d.run("disk unit x --size 1G --save-to s3://disks/a").fails(USAGE, "--save-to is a file");
    d.run(&format!("disk save y|{KEY}")).fails(NOT_FOUND, "'y'");
}
