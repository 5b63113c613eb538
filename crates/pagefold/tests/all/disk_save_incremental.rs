//! Incremental saves of disks: chains of files, their restore, and all that can be wrong with one.

use crate::support::writeback::{connect, no_devices, pages, write};
use crate::support::{Nbd, Sandbox, is_running, kill, wait_until};
use pagefold_testkit::noise;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const PAGES: usize = 2048;

/// A disk with contents, and their copy.
struct Saved {
    s: Sandbox,
    data: Vec<u8>,
    file: PathBuf,
}

impl Saved {
    fn new() -> Self {
        let s = Sandbox::new();
        s.ok("disk create -q --export nbd --name x --size 8M");
        let folder = s.path("saves");
        std::fs::create_dir(&folder).unwrap();
        let mut new = Saved { s, data: vec![0; PAGES * 4096], file: folder.join("work.saved") };
        new.write(0, &pages(PAGES, 5));
        new
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let mut client = connect(&self.s);
        match offset {
            0 if bytes.len() == self.data.len() => write(&mut client, bytes),
            _ => client.write(offset as u64, bytes),
        }
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn words(&self) -> String {
        format!("disk save x {} --incremental", self.file.display())
    }

    fn save(&self) -> serde_json::Value {
        serde_json::from_str(&self.s.ok(&format!("{} --json", self.words()))).unwrap()
    }

    fn saved(&self, words: &str) -> serde_json::Value {
        let words = format!("disk saved {} --json {words}", self.file.display());
        serde_json::from_str(&self.s.ok(&words)).unwrap()
    }

    /// The files in the folder but the newest.
    fn others(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.file.parent().unwrap()).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| *path != self.file);
        paths
    }

    /// Restores the chain with these options, and compares the contents.
    fn check(&self, words: &str) {
        self.saved("--check");
        let words = format!("disk create -q --export nbd --name y --restore {} {words}", self.file.display());
        self.s.ok(&words);
        let mut client = Nbd::connect(&self.s.runtime().join("y/nbd.sock"));
        let mut bytes = vec![1; self.data.len()];
        for (at, piece) in bytes.chunks_mut(256 << 10).enumerate() {
            client.read((at * (256 << 10)) as u64, piece);
        }
        drop(client);
        assert!(bytes == self.data);
        self.s.ok("disk remove --force y");
    }
}

#[test]
fn only_what_has_changed_is_saved_and_all_is_restored() {
    let mut d = Saved::new();
    let full = d.save();
    assert!(full["parent"].is_null() && full["full_because"] == "the file did not exist", "{full}");
    let mut before = full["id"].clone();
    for round in 1..=3 {
        d.write(round * 70 * 4096, &pages(20, round as u64 + 10));
        d.write((round * 200 + 900) * 4096, &[0; 5 * 4096]);
        let incremental = d.save();
        assert_eq!((&incremental["parent"], incremental["pages"].as_u64()), (&before, Some(25)));
        assert!(incremental["full_because"].is_null());
        assert!(incremental["file_bytes"].as_u64().unwrap() * 10 < full["file_bytes"].as_u64().unwrap());
        before = incremental["id"].clone();
        d.check("");
    }
    let saved = d.saved("");
    assert_eq!(saved["chain_files"], 4);
    assert!(
        d.others().iter().any(|other| other.file_name().unwrap() == saved["parent_file"].as_str().unwrap())
    );
    assert_eq!(d.others().len(), 3);
    // A save to another file does not end the chain, and a link to the file is the same file.
    d.s.ok(&format!("disk save x {}", d.s.path("another").display()));
    d.write(0, &pages(1, 77));
    let link = d.s.path("link");
    std::os::unix::fs::symlink(&d.file, &link).unwrap();
    let words = format!("disk save x {} --incremental --json", link.display());
    let linked: serde_json::Value = serde_json::from_str(&d.s.ok(&words)).unwrap();
    assert_eq!((&linked["parent"], linked["pages"].as_u64()), (&before, Some(1)));
    d.check("--codec zstd");
    d.check(&format!("--memory 4M --backing {}", d.s.path("backing").display()));
    // Nothing has changed.
    assert_eq!(d.save()["pages"], 0);
    d.check("");
}

/// A disk whose server was replaced is saved in full, and the files of the former chain are removed.
#[test]
fn the_next_server_begins_a_new_chain() {
    let mut d = Saved::new();
    d.save();
    d.write(4096, &pages(1, 3));
    d.save();
    let stranger = d.file.with_file_name("work.saved.0123456789abcdef0123456789abcdef");
    std::fs::write(&stranger, b"").unwrap();
    let server = d.s.server_pid("x");
    kill(server, "KILL");
    wait_until("the server has exited", || !is_running(server));
    wait_until("another server serves", || d.s.run("disk show x").code == 0 && d.s.server_pid("x") != server);
    d.write(8192, &pages(1, 9));
    let full = d.save();
    assert!(full["parent"].is_null());
    assert!(full["full_because"].as_str().unwrap().contains("since its server was started"), "{full}");
    assert_eq!(d.others(), [stranger]);
    d.check("");
    d.write(4096, &pages(1, 4));
    assert_eq!(d.save()["parent"], full["id"]);
    // Another disk saved to the file.
    d.s.ok("disk create -q --export nbd --name z --size 8M");
    d.s.ok(&d.words().replace("save x", "save z"));
    assert!(d.save()["parent"].is_null());
    d.check("");
}

#[test]
fn a_chain_has_a_bounded_length() {
    let mut d = Saved::new();
    let mut fulls = 0;
    for round in 0..34 {
        d.write(round * 4096, &pages(1, round as u64 + 100));
        fulls += u32::from(d.save()["parent"].is_null());
        match round {
            31 => assert_eq!((fulls, d.others().len()), (1, 31)),
            32 => assert_eq!((fulls, d.others().len()), (2, 0)),
            _ => {}
        }
        if round == 31 {
            d.check("");
        }
    }
    assert_eq!((fulls, d.others().len()), (2, 1));
    // Incremental saves that together are as long as the full one are not worth their reading.
    let mut reasons = String::new();
    for seed in 0..3 {
        d.write(0, &pages(PAGES, 70 + seed));
        reasons += &d.save()["full_because"].to_string();
    }
    assert!(reasons.contains("as long as the full one"), "{reasons}");
    assert!(d.others().len() < 3);
    d.check("");
    // A save without the option replaces the chain.
    d.s.ok(&format!("disk save x {}", d.file.display()));
    assert!(d.others().is_empty());
    d.check("");
}

#[test]
fn an_incomplete_chain_is_refused_and_leaves_no_disk() {
    let mut d = Saved::new();
    for seed in 1..4 {
        d.write(seed * 4096, &pages(3, seed as u64));
        d.save();
    }
    let parent = d.file.with_file_name(d.saved("")["parent_file"].as_str().unwrap());
    let good = std::fs::read(&parent).unwrap();
    let shown = parent.display().to_string();
    let refused = |code, what: &str| {
        let file = d.file.display();
        let backing = d.s.path("backing");
        let words = format!(
            "disk create -q --export nbd --name y --restore-now --restore {file} --backing {}",
            backing.display()
        );
        for words in [&words, &format!("disk saved --check {file}")] {
            let ran = d.s.run(words);
            assert!(ran.err.contains(&shown), "{}", ran.err);
            ran.fails(code, what);
        }
        assert_eq!(d.s.left(), ["x"]);
        assert!(!backing.exists());
        // The properties of the file can be seen all the same.
        assert_eq!(d.saved("")["chain_files"], 3);
    };
    std::fs::remove_file(&parent).unwrap();
    refused(3, "needs the save before it");
    for cut in [0, 50, 300, good.len() - 1] {
        std::fs::write(&parent, &good[..cut]).unwrap();
        refused(6, "incomplete");
    }
    let mut damaged = good.clone();
    damaged[600] ^= 1;
    std::fs::write(&parent, &damaged).unwrap();
    refused(6, "damaged at byte");
    std::fs::copy(&d.file, &parent).unwrap();
    refused(6, "is another one");
    d.s.ok(&format!("disk save x {shown}"));
    refused(6, "is another one");
    std::fs::remove_file(&parent).unwrap();
    std::fs::create_dir(&parent).unwrap();
    refused(2, "not a file");
    std::fs::remove_dir(&parent).unwrap();
    std::fs::write(&parent, &good).unwrap();
    d.check("");
    // The files of a chain are beside each other, so it does not come through a pipe.
    let mut restore = d.s.command("disk create -q --export nbd --name y --restore -");
    let ran = restore.stdin(File::open(&d.file).unwrap()).stderr(Stdio::piped()).output().unwrap();
    let err = String::from_utf8_lossy(&ran.stderr).to_string();
    assert!(ran.status.code() == Some(2) && err.contains("needs the files beside it"), "{err}");
    // A chain that is damaged is not gone on from.
    std::fs::write(&parent, &good[..50]).unwrap();
    let full = d.save();
    assert!(full["full_because"].as_str().unwrap().contains("incomplete"), "{full}");
    // The name of the first save was in the file that is damaged.
    assert_eq!(d.others().len(), 1);
    d.check("");
}

#[test]
fn targets_without_a_name_and_saves_at_the_same_time_are_refused() {
    let d = Saved::new();
    d.s.run("disk save x - --incremental").fails(2, "name one");
    d.s.run("disk save x /dev/null --incremental").fails(2, "needs a file");
    d.s.run(&format!("disk save x {} --incremental", d.s.path("").display())).fails(2, "directory");
    d.save();
    let file = File::open(&d.file).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    d.s.run(&d.words()).fails(4, "another save");
    d.s.run(&d.words().replace(" --incremental", "")).fails(4, "another save");
    drop(file);
    assert!(!d.save()["parent"].is_null());
}

/// A save that fails leaves the chain, and its pages to the next one.
#[test]
fn a_full_medium_leaves_the_chain() {
    let test = "a_full_medium_leaves_the_chain";
    if let Some(why) = no_devices(&["mount", "umount"]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let mut d = Saved::new();
    let folder = d.s.path("small");
    std::fs::create_dir(&folder).unwrap();
    d.write(0, &vec![0; PAGES * 4096]);
    d.write(0, &pages(200, 3));
    crate::support::sh("mount", &["-t", "tmpfs", "-o", "size=2M", "tmpfs", folder.to_str().unwrap()]);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        d.file = folder.join("work.saved");
        d.save();
        d.write(4096, &pages(1, 8));
        d.save();
        let good = d.data.clone();
        d.write(0, &noise(4, PAGES * 4096));
        d.s.run(&d.words()).fails(1, "No space left");
        let present = std::mem::replace(&mut d.data, good);
        d.check("");
        d.data = present;
        d.write(0, &vec![0; PAGES * 4096]);
        d.write(9 * 4096, &pages(2, 6));
        // All pages were written since: they are in the next one, most of them as zeroes.
        let next = d.save();
        assert!(!next["parent"].is_null() && next["pages"].as_u64() == Some(PAGES as u64), "{next}");
        d.check("");
    }));
    crate::support::sh("umount", &[Path::new(&folder).to_str().unwrap()]);
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The pages of a damaged block are errors, and all others have their contents.
#[test]
fn a_damaged_chain_is_salvaged() {
    let mut d = Saved::new();
    d.save();
    d.write(8 * 4096, &pages(40, 77));
    d.save();
    let full = d.others().remove(0);
    let mut bytes = std::fs::read(&full).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&full, bytes).unwrap();
    let new = d.s.path("new");
    let salvage = |file: &Path| {
        let mut command = d.s.command(&format!("disk saved {} --salvage", file.display()));
        let ran = command.stdout(File::create(&new).unwrap()).stderr(Stdio::piped()).output().unwrap();
        (ran.status.code().unwrap(), String::from_utf8(ran.stderr).unwrap())
    };
    let (code, err) = salvage(&d.file);
    assert!(code == 6 && err.contains("lost: pages "), "{err}");
    let (_, range) = err.split_once("lost: pages ").unwrap();
    let (first, rest) = range.split_once(" to ").unwrap();
    let (first, last): (usize, usize) =
        (first.parse().unwrap(), rest.lines().next().unwrap().parse().unwrap());
    assert!(first > 48 && last < PAGES && last - first < 200, "{err}");
    d.s.ok(&format!("disk create -q --export nbd --name y --restore-now --restore {}", new.display()));
    let mut client = Nbd::connect(&d.s.runtime().join("y/nbd.sock"));
    for page in (0..PAGES).filter(|page| !(first..=last).contains(page)) {
        let mut read = [1; 4096];
        client.read(page as u64 * 4096, &mut read);
        assert!(read[..] == d.data[page * 4096..][..4096], "page {page}");
    }
    drop(client);
    d.s.ok("disk remove --force y");
    let lost: serde_json::Value =
        serde_json::from_str(&d.s.ok(&format!("disk saved {} --check --json", new.display()))).unwrap();
    assert_eq!(lost["lost_pages"].as_u64().unwrap() as usize, last + 1 - first);
    // Without the full save, the pages of the incremental one are left; of a file that is whole, nothing is lost.
    std::fs::remove_file(&full).unwrap();
    let (code, err) = salvage(&d.file);
    assert!(code == 6 && err.contains("cannot be read"), "{err}");
    let whole = d.s.path("whole");
    d.s.ok(&format!("disk save x {}", whole.display()));
    assert_eq!(salvage(&whole).0, 0);
    std::fs::write(&whole, "no saved disk, and not short either ".repeat(9)).unwrap();
    assert_eq!(salvage(&whole).0, 6);
}
