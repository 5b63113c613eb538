//! Saving disks and restoring them: both exports, root and users, with a backing and without, and all ways to fail.

use crate::support::writeback::{assert_reads, connect, no_devices, pages, write};
use crate::support::{Nbd, Sandbox, is_root, is_running, kill, wait_until};
use pagefold_testkit::noise;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

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
    for (name, words) in [
        ("same", ""),
        ("now", "--restore-now"),
        ("other", "--codec zstd:1"),
        ("larger", "--size 64M --memory 64M"),
    ] {
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
    s.ok("disk remove --force x same now other larger piped");
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
        let check = |options: &str| {
            s.ok(&format!("disk save x {} {options}", file.display()));
            s.ok(&format!("disk create -q --export nbd --name y --restore {}", file.display()));
            let bytes = read_all(&mut nbd(&s, "y"));
            s.ok("disk remove --force y");
            let versions = bytes.chunks(4096).map(|page| u64::from_le_bytes(page[..8].try_into().unwrap()));
            versions.collect::<Vec<_>>()
        };
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for options in ["", "", "--rate 20M/s", "--rate 20M"] {
                let versions = check(options);
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

/// Waits until a command has ended; returns whether it succeeded.
fn wait_for(command: &mut Child) -> bool {
    let mut status = None;
    wait_until("the command ends", || {
        status = command.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().success()
}

fn make_pipe(s: &Sandbox) -> PathBuf {
    let pipe = s.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    pipe
}

/// Opens a pipe for both, so that neither end waits for the other.
fn hold(pipe: &Path) -> File {
    File::options().read(true).write(true).open(pipe).unwrap()
}

#[test]
fn a_disk_is_saved_to_a_named_pipe() {
    let s = Sandbox::new();
    create(&s, "");
    let data = pages(PAGES, 6);
    write(&mut connect(&s), &data);
    let (pipe, file) = (make_pipe(&s), s.path("saved"));
    let reader = pipe.clone();
    let reader = std::thread::spawn(move || std::fs::read(reader).unwrap());
    s.ok(&format!("disk save x {}", pipe.display()));
    std::fs::write(&file, reader.join().unwrap()).unwrap();
    saved(&s, &file, "--check");
    // That of the report on standard output, if this is the same pipe.
    let mut save =
        s.command("disk save x /dev/stdout").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut bytes = Vec::new();
    save.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    assert!(save.wait().unwrap().success());
    std::fs::write(&file, bytes).unwrap();
    saved(&s, &file, "--check");
}

/// Ctrl-C ends a save to a named pipe that nobody reads, and the writes that wait for it.
#[test]
fn a_save_to_a_named_pipe_ends_with_its_command() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --name x --size 64M");
    let (before, after) = (noise(4, WAITING_BYTES), noise(5, WAITING_BYTES));
    write(&mut connect(&s), &before);
    let pipe = make_pipe(&s);
    let mut reader = hold(&pipe);
    let words = format!("disk save x {}", pipe.display());
    let mut save = s.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    reader.read_exact(&mut [0; 8]).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&mut connect(&s), &after));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!writer.is_finished());
        kill(save.id() as i32, "INT");
        assert!(!wait_for(&mut save));
        wait_until("the writes are done", || writer.is_finished());
    });
    s.ok(&format!("disk save x {}", s.path("saved").display()));
    assert_reads(&mut connect(&s), &after);
}

/// Bytes of which a part is written before writes wait for a save that nobody reads: 16 MiB can be captured, and buffers
/// on the way have some.
const WAITING_BYTES: usize = 32 << 20;

/// Removal with force disconnects the clients, whose writes wait for the save.
#[test]
fn a_disk_is_removed_while_writes_wait_for_a_save() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --name x --size 64M");
    write(&mut connect(&s), &noise(4, WAITING_BYTES));
    let server = s.server_pid("x");
    let mut save = s.command("disk save x -").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_begin(&mut save);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, data) = (connect(&s), noise(5, WAITING_BYTES));
            // NBD_CMD_WRITE, until the server closes the connection.
            for (at, part) in data.chunks(1 << 20).enumerate() {
                if client.try_request(1, (at as u64) << 20, 1 << 20, part).is_err() {
                    return;
                }
            }
        });
        std::thread::sleep(Duration::from_secs(1));
        assert!(!writer.is_finished());
        let removed = s.run("disk remove --force x");
        assert!(removed.code == 0 && !removed.err.contains("kill"), "{}", removed.err);
        wait_until("the writer is disconnected", || writer.is_finished());
    });
    wait_until("the server has exited", || !is_running(server));
    assert!(!wait_for(&mut save));
    assert!(s.left().is_empty());
}

/// All bytes are with the command, which waits for the reader.
#[test]
fn a_save_that_waits_for_its_reader_ends_with_a_signal() {
    let s = Sandbox::new();
    create(&s, "");
    // More than a pipe has, and less than the socket has as well.
    write(&mut connect(&s), &noise(4, 160 << 10));
    let mut save = s.command("disk save x -").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_begin(&mut save);
    let file = s.path("saved");
    wait_until("the server is done", || s.run(&format!("disk save x {}", file.display())).code == 0);
    assert!(save.try_wait().unwrap().is_none());
    kill(save.id() as i32, "INT");
    assert!(!wait_for(&mut save));
}

/// The device has no driver, so opening it would fail in another way.
#[test]
fn a_block_device_is_no_file_for_a_saved_disk() {
    let test = "a_block_device_is_no_file_for_a_saved_disk";
    let s = Sandbox::new();
    let device = s.path("device");
    let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    if let Err(e) = rustix::fs::mknodat(rustix::fs::CWD, &device, kind, mode, rustix::fs::makedev(60, 255)) {
        pagefold_testkit::skipped!("{test}: no device can be made: {e}");
        return;
    }
    create(&s, "");
    s.run(&format!("disk save x {}", device.display())).fails(2, "is a block device; a saved disk is a file");
}

/// The server waits for a pipe into which nobody writes: it ends with the command, and so do all of its processes.
#[test]
fn a_restore_ends_with_its_command() {
    let s = Sandbox::new();
    create(&s, "");
    write(&mut connect(&s), &pages(PAGES, 3));
    let (pipe, file) = (make_pipe(&s), s.path("saved"));
    s.ok(&format!("disk save x {}", file.display()));
    let bytes = std::fs::read(&file).unwrap();
    for signal in ["INT", "TERM", "KILL"] {
        let mut writer = hold(&pipe);
        let words = format!("disk create -q --export nbd --name y --restore {}", pipe.display());
        let mut restore = s.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The pipe has room for them, and they are not all.
        writer.write_all(&bytes[..20_000]).unwrap();
        // It does not answer yet.
        let state = s.runtime().join("y/state.json");
        let mut server = None;
        wait_until("the server has begun", || {
            let state = std::fs::read(&state).unwrap_or_default();
            let state: Option<serde_json::Value> = serde_json::from_slice(&state).ok();
            server = state.and_then(|state| state["server"]["pid"].as_i64());
            server.is_some()
        });
        let server = server.unwrap() as i32;
        kill(restore.id() as i32, signal);
        assert!(!wait_for(&mut restore), "{signal}");
        wait_until("the server has exited", || !is_running(server));
        wait_until("nothing is left", || {
            s.run("disk list");
            s.left() == ["x"]
        });
        // Another process may have the rest.
        drop(writer);
    }
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
        // The reader stays.
        assert!(!wait_for(&mut save), "{signal}");
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
    restore("--restore-now").fails(6, &format!("incomplete: it ends at byte {}", good.len() - 1));
    with(&|bytes| bytes[good.len() / 2] ^= 1);
    restore("--restore-now").fails(6, "damaged at byte");
    s.run(&format!("disk saved --check {}", bad.display())).fails(6, "damaged at byte");
    with(&|_| {});
    restore("--size 4M").fails(2, "--size");
    s.run(&format!(
        "disk create --export nbd --name y --memory 64K --restore-now --restore {}",
        bad.display()
    ))
    .fails(1, "raise --memory");
    assert_eq!(s.left(), ["x"]);
    assert!(!backing.exists());
    assert_eq!(restore("").code, 0);
    assert!(read_all(&mut nbd(&s, "y")) == read_all(&mut nbd(&s, "x")));
}
