//! Saving disks and restoring them: both exports, root and users, with a backing and without, and all ways to fail.

use crate::support::writeback::{connect, no_devices, pages, write};
use crate::support::{Nbd, Sandbox, is_root, is_running, kill, wait_until};
use pagefold_testkit::noise;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const PAGES: usize = 2048;

fn nbd(s: &Sandbox, name: &str) -> Nbd {
    Nbd::connect(&s.runtime().join(name).join("nbd.sock"))
}

fn read_all(client: &mut Nbd) -> Vec<u8> {
    let mut bytes = vec![1; PAGES * 4096];
    for (at, piece) in bytes.chunks_mut(256 << 10).enumerate() {
        client.read((at * (256 << 10)) as u64, piece);
    }
    bytes
}

fn create(s: &Sandbox, words: &str) {
    s.ok(&format!("disk create -q --export nbd --name x --size 8M {words}"));
}

/// The names in the folder of a file, without it.
fn beside(file: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let names = entries.map(|entry| entry.unwrap().path()).filter(|path| path != file);
    names.filter(|path| path.to_string_lossy().contains(".part")).collect()
}

fn saved(s: &Sandbox, file: &Path, words: &str) -> serde_json::Value {
    serde_json::from_str(&s.ok(&format!("disk saved {} --json {words}", file.display()))).unwrap()
}

/// Saves, restores with the same and with other codecs, and compares, also after the restored disk was saved again.
fn round_trip(s: &Sandbox, options: &str) {
    let backing = s.path("backing").display().to_string();
    create(s, &options.replace("BACKING", &backing));
    let data = pages(PAGES, 5);
    write(&mut connect(s), &data);
    if options.contains("BACKING") {
        s.ok("disk writeback x --pages 0-1500");
    }
    let file = s.path("saved");
    let report = s.ok(&format!("disk save x {} --json", file.display()));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let shown = saved(s, &file, "--check");
    // The contents of a disk are as private as the disk.
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for field in ["id", "digest", "pages", "same_filled_pages", "raw_pages", "payload_bytes", "file_bytes"] {
        assert_eq!(report[field], shown[field], "{field}");
    }
    let (bytes, payload) =
        (std::fs::metadata(&file).unwrap().len(), shown["payload_bytes"].as_u64().unwrap());
    assert_eq!(shown["file_bytes"], bytes);
    assert!(bytes < payload + payload / 50 + 20_000, "{bytes} bytes for {payload}");
    assert_eq!(saved(s, &file, "")["checked"], false);
    let codec = s.show("x")["codec"].clone();
    for (name, words) in [("same", ""), ("other", "--codec zstd:1"), ("larger", "--size 64M --memory 64M")] {
        s.ok(&format!("disk create -q --export nbd --name {name} --restore {} {words}", file.display()));
        assert!(read_all(&mut nbd(s, name)) == data, "{options}, {words}");
        if words.is_empty() {
            assert_eq!(s.show(name)["codec"], codec);
            assert_eq!(s.show(name)["size_bytes"], 8 << 20);
        }
    }
    // Through pipes both ways.
    let mut save =
        s.command("disk save same -").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let restore = s
        .command("disk create -q --export nbd --name piped --restore -")
        .stdin(save.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(save.wait().unwrap().success());
    assert!(restore.status.success(), "{restore:?}");
    assert!(read_all(&mut nbd(s, "piped")) == data, "{options}");
    s.ok("disk remove --force x same other larger piped");
    assert!(s.left().is_empty());
}

#[test]
fn a_saved_disk_is_restored_unchanged() {
    round_trip(&Sandbox::new(), "");
}

#[test]
fn a_disk_with_a_backing_and_further_codecs_is_saved_and_restored() {
    round_trip(&Sandbox::new(), "--codec zstd:3 --recompress-codec deflate:9 --memory 4M --backing BACKING");
    round_trip(&Sandbox::new(), "--backing BACKING --compressed-writeback off");
}

#[test]
fn a_user_saves_and_restores() {
    if !is_root() {
        pagefold_testkit::skipped!("a_user_saves_and_restores: needs root, to become another user");
        return;
    }
    round_trip(&Sandbox::for_user(1234), "");
}

#[test]
fn a_file_system_in_use_is_saved_and_restored() {
    let test = "a_file_system_in_use_is_saved_and_restored";
    if let Some(why) = no_devices(&["mkfs.ext4", "e2fsck", "mount", "cp", "diff"]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let (mount, file, tree) = (s.path("mnt"), s.path("saved"), "/usr/include");
    let at = mount.to_str().unwrap();
    let device = s.ok("disk create -q --export loop --size 1G --name x").trim_end().to_string();
    std::fs::create_dir(&mount).unwrap();
    crate::support::sh("mkfs.ext4", &["-q", &device]);
    crate::support::sh("mount", &[&device, at]);
    let copy = mount.join("tree");
    crate::support::sh("cp", &["-a", tree, copy.to_str().unwrap()]);
    // Without a sync before: the command flushes.
    s.ok(&format!("disk save {at} {}", file.display()));
    std::fs::remove_dir_all(&copy).unwrap();
    crate::support::sh("umount", &[at]);
    s.ok("disk remove x");
    let restored = s.ok(&format!("disk create -q --export loop --name y --restore {}", file.display()));
    let device = restored.trim_end();
    // The journal is replayed by the mount.
    crate::support::sh("mount", &[device, at]);
    crate::support::sh("diff", &["-r", "--no-dereference", tree, copy.to_str().unwrap()]);
    crate::support::sh("umount", &[at]);
    crate::support::sh("e2fsck", &["-fn", device]);
    s.ok("disk remove y");
    assert!(s.left().is_empty());
}

/// A client writes versions of its pages in order while saves run: each save has the pages of one moment.
#[test]
fn saves_under_load_are_consistent() {
    let s = Sandbox::new();
    create(&s, "");
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let file = s.path("saved");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = nbd(&s, "x");
            let mut page = pages(1, 3);
            for version in 1u64.. {
                for index in 0..PAGES as u64 {
                    if stop.load(SeqCst) {
                        return;
                    }
                    page[..8].copy_from_slice(&version.to_le_bytes());
                    client.write(index * 4096, &page);
                }
                rounds.store(version, SeqCst);
            }
        });
        wait_until("a round is written", || rounds.load(SeqCst) > 0);
        let check = || {
            s.ok(&format!("disk save x {}", file.display()));
            s.ok(&format!("disk create -q --export nbd --name y --restore {}", file.display()));
            let bytes = read_all(&mut nbd(&s, "y"));
            s.ok("disk remove --force y");
            let versions = bytes.chunks(4096).map(|page| u64::from_le_bytes(page[..8].try_into().unwrap()));
            versions.collect::<Vec<_>>()
        };
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..4 {
                let versions = check();
                assert!(versions.is_sorted_by(|a, b| a >= b), "{versions:?}");
                assert!(versions[0] - versions[PAGES - 1] <= 1, "{versions:?}");
            }
        }));
        stop.store(true, SeqCst);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn failures_leave_the_old_file_and_the_disk() {
    let s = Sandbox::new();
    create(&s, "");
    let data = pages(PAGES, 9);
    write(&mut connect(&s), &data);
    let file = s.path("saved");
    s.ok(&format!("disk save x {}", file.display()));
    let before = std::fs::read(&file).unwrap();
    // A limit of the length of files, as a full medium, ends the save in the server and not the server.
    s.run(&format!("disk save x {}", s.path("missing/saved").display())).fails(3, "missing");
    s.run(&format!("disk save x {}", s.path("").display())).fails(2, "directory");
    s.run("disk save x - --json").fails(2, "standard output");
    s.run(&format!("disk save y {}", file.display())).fails(3, "no disk 'y'");
    if Path::new("/dev/full").exists() {
        s.run("disk save x /dev/full").fails(1, "No space left");
    }
    assert!(std::fs::read(&file).unwrap() == before && beside(&file).is_empty());
    // A reader that goes away.
    let mut save = s.command("disk save x -").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(save.stdout.take());
    assert!(!save.wait().unwrap().success());
    assert!(read_all(&mut connect(&s)) == data);
    s.ok(&format!("disk save x {}", file.display()));
}

#[test]
fn a_full_medium_leaves_the_old_file() {
    let test = "a_full_medium_leaves_the_old_file";
    if let Some(why) = no_devices(&["mount", "umount"]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    create(&s, "");
    let folder = s.path("small");
    std::fs::create_dir(&folder).unwrap();
    crate::support::sh("mount", &["-t", "tmpfs", "-o", "size=1M", "tmpfs", folder.to_str().unwrap()]);
    let file = folder.join("saved");
    s.ok(&format!("disk save x {}", file.display()));
    let before = std::fs::read(&file).unwrap();
    write(&mut connect(&s), &noise(4, PAGES * 4096));
    let ran = s.run(&format!("disk save x {}", file.display()));
    let after = std::fs::read(&file).unwrap();
    let (left, check) = (beside(&file), s.run(&format!("disk saved --check {}", file.display())));
    crate::support::sh("mount", &["-o", "remount,ro", folder.to_str().unwrap()]);
    let read_only = s.run(&format!("disk save x {}", file.display()));
    crate::support::sh("umount", &[folder.to_str().unwrap()]);
    ran.fails(1, "No space left");
    read_only.fails(1, "Read-only file system");
    assert!(after == before && left.is_empty() && check.code == 0);
    s.ok("disk remove --force x");
}

/// Reads the first bytes of a save to a pipe. It then waits for the pipe: the rest does not fit all buffers.
fn wait_for_begin(save: &mut Child) {
    let mut magic = [0; 8];
    save.stdout.as_mut().unwrap().read_exact(&mut magic).unwrap();
    assert_eq!(&magic, b"pgfsaved");
}

/// A save to a pipe that nobody reads ends with its command, however that ends.
#[test]
fn a_save_ends_with_its_command() {
    let s = Sandbox::new();
    create(&s, "");
    write(&mut connect(&s), &noise(4, PAGES * 4096));
    let file = s.path("saved");
    for signal in ["INT", "TERM", "KILL"] {
        let command =
            || s.command("disk save x -").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut save = command();
        wait_for_begin(&mut save);
        s.run(&format!("disk save x {}", file.display())).fails(4, "for another command");
        kill(save.id() as i32, signal);
        if signal != "KILL" {
            // The command waits for its copy; the reader has to go.
            drop(save.stdout.take());
        }
        assert!(!save.wait().unwrap().success(), "{signal}");
        wait_until("the next save succeeds", || s.run(&format!("disk save x {}", file.display())).code == 0);
        assert!(beside(&file).is_empty());
    }
}

/// The next server has the pages; the save has failed.
#[test]
fn the_death_of_the_server_in_a_save_loses_nothing() {
    let s = Sandbox::new();
    create(&s, "");
    let data = noise(2, PAGES * 4096);
    write(&mut connect(&s), &data);
    let (file, server) = (s.path("saved"), s.server_pid("x"));
    let mut save = s.command("disk save x -").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_begin(&mut save);
    kill(server, "KILL");
    wait_until("the server has exited", || !is_running(server));
    drop(save.stdout.take());
    assert!(!save.wait().unwrap().success());
    wait_until("another server serves", || s.run("disk show x").code == 0 && s.server_pid("x") != server);
    assert!(read_all(&mut nbd(&s, "x")) == data);
    s.ok(&format!("disk save x {}", file.display()));
    saved(&s, &file, "--check");
}

#[test]
fn what_cannot_be_restored_is_refused_and_leaves_no_disk() {
    let s = Sandbox::new();
    create(&s, "");
    write(&mut connect(&s), &pages(PAGES, 4));
    let (file, bad) = (s.path("saved"), s.path("bad"));
    s.ok(&format!("disk save x {}", file.display()));
    let good = std::fs::read(&file).unwrap();
    let backing = s.path("backing");
    let restore = |words: &str| {
        let words = format!("--restore {} --backing {} {words}", bad.display(), backing.display());
        s.run(&format!("disk create -q --export nbd --name y {words}"))
    };
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(&bad, bytes).unwrap();
    };
    with(&|bytes| bytes.truncate(50));
    restore("").fails(2, "not a saved disk");
    with(&|bytes| bytes[0] = b'x');
    restore("").fails(2, "not a saved disk");
    s.run(&format!("disk saved {}", bad.display())).fails(2, "not a saved disk");
    with(&|bytes| bytes[8] = 9);
    restore("").fails(2, "version 9");
    with(&|bytes| bytes.truncate(good.len() - 1));
    restore("").fails(6, &format!("incomplete: it ends at byte {}", good.len() - 1));
    s.run(&format!("disk saved {}", bad.display())).fails(6, "incomplete");
    with(&|bytes| bytes[good.len() / 2] ^= 1);
    restore("").fails(6, "damaged at byte");
    s.run(&format!("disk saved --check {}", bad.display())).fails(6, "damaged at byte");
    with(&|_| {});
    restore("--size 4M").fails(2, "--size");
    s.run(&format!("disk create --export nbd --name y --memory 64K --restore {}", bad.display()))
        .fails(1, "raise --memory");
    assert_eq!(s.left(), ["x"]);
    assert!(!backing.exists());
    assert_eq!(restore("").code, 0);
    assert!(read_all(&mut nbd(&s, "y")) == read_all(&mut nbd(&s, "x")));
}
