//! Disks that park pages on a file: made, parked to, read back, and gone with the disk.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Nbd, Sandbox, is_root, is_running, kill, wait_until};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Creates disk `x` with a new file `park`, and returns the file's path.
fn create(s: &Sandbox, words: &str) -> PathBuf {
    let file = s.path("park");
    s.ok(&format!("disk create -q --door nbd --name x --backing {} {words}", file.display()));
    file
}

fn connect(s: &Sandbox) -> Nbd {
    Nbd::connect(&s.runtime().join("x/nbd.sock"))
}

/// `count` pages of which the first quarter does not compress, the next half does, and the last repeats a
/// word.
fn pages(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut data = vec![0; count * PAGE];
    for (i, page) in data.chunks_exact_mut(PAGE).enumerate() {
        let random = match i * 4 / count {
            0 => PAGE,
            1 | 2 => PAGE / 4,
            _ => 0,
        };
        page[random..].fill(0xa5);
        page[..random].chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&next().to_le_bytes()));
    }
    data
}

/// Writes it from the start of the disk on, in requests of 1 MiB.
fn write(client: &mut Nbd, data: &[u8]) {
    for (i, part) in data.chunks(MIB as usize).enumerate() {
        client.write(i as u64 * MIB, part);
    }
}

fn is_there(client: &mut Nbd, data: &[u8]) {
    let mut back = vec![0; MIB as usize];
    for (i, part) in data.chunks(MIB as usize).enumerate() {
        client.read(i as u64 * MIB, &mut back[..part.len()]);
        assert!(back[..part.len()] == *part, "MiB {i} differs");
    }
}

/// The columns of `bd_stat`: parked now, read back, parked so far.
fn bd_stat(s: &Sandbox) -> [u64; 3] {
    let text = s.ok("disk show x -a bd_stat");
    let columns: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    columns.try_into().unwrap()
}

fn park(s: &Sandbox, words: &str) -> serde_json::Value {
    serde_json::from_str(&s.ok(&format!("disk park x --json {words}"))).unwrap()
}

#[test]
fn a_new_file_is_private_sparse_and_gone_with_the_disk() {
    let s = Sandbox::new();
    let file = s.path("park");
    let words = "disk create --door nbd --name x --size 64M --backing";
    let ran = s.run(&format!("{words} {}", file.display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("plain text") && ran.err.contains("removed with the disk"), "{ran:?}");
    let meta = std::fs::metadata(&file).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    assert_eq!(meta.len(), 88 * MIB);
    assert!(meta.blocks() * 512 < 4 * MIB, "{} blocks", meta.blocks());
    assert_eq!(s.ok("disk show x -a backing_dev"), format!("{}\n", file.display()));
    let shown = s.show("x");
    assert_eq!(shown["parking"]["path"], file.to_str().unwrap());
    assert_eq!((&shown["parking"]["layout"], &shown["parking"]["created"]), (&"log".into(), &true.into()));
    s.ok("disk remove x");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());

    let file = create(&s, "--size 64M --backing-size 10M --compressed-writeback off");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 10 * MIB);
    assert_eq!(s.ok("disk show x -a compressed_writeback"), "0\n");
    assert_eq!(s.show("x")["parking"]["layout"], "blocks");
    // Told to end, the server leaves the file to the next command: it has no right to a path.
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has ended", || !is_running(pid));
    let ran = s.run("disk list");
    assert!(ran.err.contains("has ended; cleaned up"), "{ran:?}");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_disk_in_the_foreground_takes_its_file_away() {
    let s = Sandbox::new();
    let file = s.path("park");
    let words = format!("disk create --door nbd --size 8M --name x -f --backing {}", file.display());
    let mut child = s.quietly(&words).spawn().unwrap();
    wait_until("the disk is there", || s.run("disk show x").code == 0);
    assert!(file.exists());
    kill(child.id() as i32, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn what_is_no_backing_is_refused_and_stays_as_it_is() {
    let s = Sandbox::new();
    let at = |name: &str| s.path(name).display().to_string();
    std::fs::write(s.path("foreign"), "x".repeat(8 << 20)).unwrap();
    std::fs::write(s.path("small"), "").unwrap();
    let large = std::fs::File::create(s.path("large")).unwrap();
    large.set_len(32 * MIB).unwrap();
    std::fs::create_dir(s.path("folder")).unwrap();
    symlink(s.path("large"), s.path("link")).unwrap();
    symlink(s.path("nowhere"), s.path("dangling")).unwrap();
    for (words, code, says) in [
        (at("foreign"), 2, "--force-backing"),
        (at("small"), 2, "at least"),
        (at("folder"), 2, "a folder"),
        (at("link"), 2, "symbolic link"),
        (at("dangling"), 2, "symbolic link"),
        (at("no/such/folder"), 1, "No such file"),
        (format!("{} --backing-size 1M", at("new")), 2, "at least"),
        (format!("{} --backing-size lots", at("new")), 2, "--backing-size"),
        (format!("{} --backing-size 16M", at("large")), 2, "32 MiB"),
        (format!("{} --park-rate x", at("new")), 2, "--park-rate"),
        (format!("{} --compressed-writeback maybe", at("new")), 2, "on"),
        ("/dev/null".to_string(), 2, "character device"),
    ] {
        s.run(&format!("disk create --door nbd --size 8M --name x --backing {words}")).fails(code, says);
        assert_eq!(s.left(), Vec::<String>::new(), "{words}");
    }
    s.run("disk create --size 8M --park-rate 1M").fails(2, "--backing");
    assert!(!s.path("new").exists() && !s.path("nowhere").exists());
    assert_eq!(std::fs::metadata(s.path("foreign")).unwrap().len(), 8 << 20);
    assert!(s.path("link").is_symlink());
}

#[test]
fn a_file_that_may_not_be_written_is_refused() {
    if !is_root() {
        pagefold_testkit::skipped!("a_file_that_may_not_be_written_is_refused: needs root to own the file");
        return;
    }
    let s = Sandbox::for_user(65534);
    let file = s.path("park");
    std::fs::File::create(&file).unwrap().set_len(32 * MIB).unwrap();
    let words = format!("disk create --door nbd --size 8M --name x --backing {}", file.display());
    s.run(&words).fails(5, "cannot be opened");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn an_existing_file_is_used_as_it_is_and_stays() {
    let s = Sandbox::new();
    let file = s.path("park");
    std::fs::write(&file, "x".repeat(16 << 20)).unwrap();
    let words = "disk create --door nbd --size 8M --name x --force-backing --backing";
    let ran = s.run(&format!("{words} {}", file.display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("it stays when the disk is removed"), "{ran:?}");
    let data = pages(256, 1);
    let mut client = connect(&s);
    write(&mut client, &data);
    park(&s, "--all");
    is_there(&mut client, &data);
    drop(client);
    wait_until("the disk can be removed", || s.run("disk remove x").code == 0);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 16 << 20);
    // Ours by now: no force is needed.
    create(&s, "--size 8M --backing-size 16M");
    s.ok("disk remove x");
    assert!(file.exists());
}

#[test]
fn one_backing_is_for_one_disk() {
    let s = Sandbox::new();
    let file = create(&s, "--size 8M");
    for force in ["", "--force-backing"] {
        let words = format!("disk create --door nbd --size 8M --name y {force} --backing {}", file.display());
        s.run(&words).fails(4, "in use by another pagefold disk");
    }
    assert_eq!(s.left(), ["x"]);
    assert!(file.exists());
}

#[test]
fn a_failed_create_takes_its_file_away() {
    let s = Sandbox::new();
    let file = s.path("park");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let words = format!("disk create --size 8M --name x --listen {address} --backing {}", file.display());
    s.run(&words).fails(1, "listening on");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn an_interrupted_create_leaves_no_file() {
    for moment in 0..20u64 {
        let s = Sandbox::new();
        let file = s.path("park");
        let words = format!("disk create --door nbd --size 8M --name x -q --backing {}", file.display());
        let mut child = s.quietly(&words).spawn().unwrap();
        // The moment is what is varied: there is nothing to wait for.
        std::thread::sleep(std::time::Duration::from_micros(moment * 700));
        kill(child.id() as i32, "INT");
        if !child.wait().unwrap().success() {
            wait_until("nothing is left", || s.left().is_empty() && !file.exists());
        }
    }
}

#[test]
fn after_kill_9_the_next_command_takes_the_file_away() {
    let s = Sandbox::new();
    let file = create(&s, "--size 8M");
    kill(s.server_pid("x"), "KILL");
    let ran = s.run("disk list");
    assert!(ran.code == 0 && ran.err.contains("cleaned up"), "{ran:?}");
    assert!(!file.exists());

    // What has the file's name by then is not the file.
    let file = create(&s, "--size 8M");
    std::fs::rename(&file, s.path("moved")).unwrap();
    std::fs::write(&file, "mine").unwrap();
    kill(s.server_pid("x"), "KILL");
    s.ok("disk list");
    assert_eq!(s.left(), Vec::<String>::new());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn the_server_needs_no_right_to_the_path() {
    if !is_root() {
        pagefold_testkit::skipped!(
            "the_server_needs_no_right_to_the_path: needs root, whose server has fewer rights than the command"
        );
        return;
    }
    let s = Sandbox::new();
    let folder = s.path("closed");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    let file = folder.join("park");
    s.ok(&format!("disk create -q --door nbd --size 8M --name x --backing {}", file.display()));
    // Without capabilities, the folder of another user is closed to the server.
    let status = std::fs::read_to_string(format!("/proc/{}/status", s.server_pid("x"))).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let data = pages(512, 2);
    let mut client = connect(&s);
    write(&mut client, &data);
    assert_eq!(park(&s, "--all")["parked_pages"], 384);
    is_there(&mut client, &data);
    s.ok("disk remove x --force");
    assert!(!file.exists());
}

#[test]
fn every_way_to_choose_pages_parks_those() {
    let s = Sandbox::new();
    create(&s, "--size 16M");
    let mut client = connect(&s);
    // 256 raw, 512 folded and 256 same-filled pages; the last are never parked.
    let data = pages(1024, 3);
    for (words, parked) in [
        ("--pages 0-9 --pages 20 --pages 300-309", 21),
        ("--pages 900-1023", 0),
        ("--huge", 256),
        ("--huge-idle", 0),
        ("--incompressible", 256),
        ("--idle 0", 768),
        ("--idle 2h", 0),
        ("--all", 768),
    ] {
        write(&mut client, &data);
        assert_eq!(bd_stat(&s)[0], 0, "{words}");
        let report = park(&s, words);
        assert_eq!(report["parked_pages"], parked, "{words}: {report}");
        assert!(report["failure"].is_null(), "{report}");
        assert_eq!(bd_stat(&s)[0], parked, "{words}");
        is_there(&mut client, &data);
    }
    for (set, parked) in [
        ("writeback=idle", 0),
        ("idle=all writeback=huge_idle", 256),
        ("idle=all writeback=type=idle", 768),
        ("writeback=page_index=3", 1),
        ("writeback=page_indexes=250-261", 12),
    ] {
        write(&mut client, &data);
        assert_eq!(s.ok(&format!("disk set x {set}")), "", "{set}");
        assert_eq!(bd_stat(&s)[0], parked, "{set}");
    }
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_pagefold"))
        .args(["disk", "set", "x", "writeback=page_index=0 page_indexes=2-4 page_index=1"])
        .env("PAGEFOLD_RUNTIME_DIR", s.runtime())
        .status()
        .unwrap();
    assert!(ran.success());
    assert_eq!(bd_stat(&s)[0], 12 + 5);
    is_there(&mut client, &data);
}

#[test]
fn what_is_parked_is_read_back_shown_and_counted() {
    for layout in ["on", "off"] {
        let s = Sandbox::new();
        create(&s, &format!("--size 64M --compressed-writeback {layout}"));
        s.ok("disk set x promote=0");
        let data = pages(4096, 4);
        let mut client = connect(&s);
        write(&mut client, &data);
        let text = s.ok("disk park x --all");
        assert!(text.starts_with("parked 3 072 pages (") && text.ends_with(")\n"), "{text}");
        let shown = s.show("x");
        let p = &shown["parking"];
        assert_eq!((&p["pages"], &shown["pages"]["parked"]), (&3072.into(), &3072.into()));
        assert_eq!(shown["pages"]["stored"], 4096);
        assert_eq!(shown["pages"]["folded"], 0);
        let number = |name: &str| p[name].as_u64().unwrap_or_else(|| panic!("{name} in {p}"));
        match layout {
            // Raw pages as they are, and a quarter of the others.
            "on" => assert!(number("written_bytes") < 3072 * 3000, "{p}"),
            _ => assert_eq!(number("written_bytes"), 3072 * 4096, "{p}"),
        }
        assert!(number("payload_bytes") <= number("written_bytes"), "{p}");
        assert!(number("free_bytes") < number("capacity_bytes"), "{p}");
        is_there(&mut client, &data);
        assert_eq!(bd_stat(&s), [3072, 3072, 3072]);
        let text = s.ok("disk show x");
        for words in ["Parked", "3 072 pages in", "parked pages too", "removed with the disk", "read back"] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        client.write(0, &vec![0; 16 << 20]);
        assert_eq!(bd_stat(&s)[0], 0);
    }
}

#[test]
fn parking_that_cannot_be_says_why_and_how_far_it_came() {
    let s = Sandbox::new();
    s.ok("disk create -q --door nbd --size 8M --name plain");
    s.run("disk park plain --all").fails(5, "ENODEV");
    s.run("disk set plain writeback=idle").fails(5, "--backing");
    s.run("disk show plain -a bd_stat").fails(5, "ENODEV");
    assert_eq!(s.ok("disk show plain -a backing_dev"), "none\n");
    assert!(s.show("plain")["parking"].is_null());
    assert!(!s.ok("disk show plain").contains("Parked"));

    create(&s, "--size 8M");
    let data = pages(1024, 5);
    let mut client = connect(&s);
    write(&mut client, &data);
    for (words, code, says) in [
        ("disk park x", 2, "--all"),
        ("disk park x --all --huge", 2, "cannot be used with"),
        ("disk park nosuch --all", 3, "no disk"),
        ("disk park x --pages 0-2048", 2, "ERANGE"),
        ("disk park x --pages 5-4", 2, "ERANGE"),
        ("disk park x --pages some", 2, "range of pages"),
        ("disk park x --idle soon", 2, "10m"),
        ("disk set x writeback=page_index=2048", 2, "ERANGE"),
        ("disk set x writeback=old", 2, "EINVAL"),
        ("disk set x writeback_batch_size=0", 2, "EINVAL"),
    ] {
        s.run(words).fails(code, says);
    }
    assert_eq!(bd_stat(&s), [0, 0, 0]);

    // The budget is exact, and what it allows is parked.
    s.ok("disk set x writeback_limit=100 writeback_limit_enable=1 writeback_batch_size=7");
    let ran = s.run("disk park x --all");
    ran.fails(1, "EIO");
    assert!(ran.out.starts_with("parked 100 pages"), "{ran:?}");
    assert_eq!(bd_stat(&s), [100, 0, 100]);
    assert_eq!(s.ok("disk show x -a writeback_limit"), "0\n");
    s.run("disk set x writeback=huge").fails(1, "0 pages were parked");
    assert_eq!(s.show("x")["parking"]["limit_left_pages"], 0);
    s.ok("disk set x writeback_limit=3");
    let ran = s.run("disk park x --all --json");
    assert_eq!(ran.code, 1);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["parked_pages"], &report["failure"]["exit"]), (&3.into(), &"failed".into()));
    s.ok("disk set x writeback_limit_enable=0");
    assert_eq!(s.ok("disk park x --all --quiet"), "");
    is_there(&mut client, &data);
}

#[test]
fn reset_forgets_what_is_parked_but_not_under_a_client() {
    let s = Sandbox::new();
    create(&s, "--size 8M");
    let mut client = connect(&s);
    write(&mut client, &pages(1024, 6));
    park(&s, "--pages 0-500");
    s.run("disk set x reset=1").fails(4, "EBUSY");
    assert_eq!(bd_stat(&s)[0], 501);
    drop(client);
    wait_until("the client is gone", || s.run("disk set x reset=1").code == 0);
    let shown = s.show("x");
    assert_eq!((&shown["pages"]["stored"], &shown["parking"]["pages"]), (&0.into(), &0.into()));
    is_there(&mut connect(&s), &vec![0; 8 << 20]);
}

/// A disk on a medium so slow that a pass over all of it takes a quarter of a minute, and a command that
/// parks all of it and has begun.
fn slow_pass(s: &Sandbox) -> (PathBuf, std::process::Child, Vec<u8>) {
    let file = create(s, "--size 64M --compressed-writeback off --backing-delay 2000");
    s.ok("disk set x writeback_batch_size=1");
    let data = pages(8192, 7);
    write(&mut connect(s), &data);
    let mut command = s.command("disk park x --all --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the pass has begun", || bd_stat(s)[0] > 0);
    (file, child, data)
}

fn ended(s: &Sandbox, child: std::process::Child) -> common::Ran {
    assert_eq!(s.left(), ["x"]);
    common::Ran::new("disk park x --all --json", child.wait_with_output().unwrap())
}

#[test]
fn others_are_answered_during_a_pass_and_ctrl_c_ends_it() {
    let s = Sandbox::new();
    let (_, child, data) = slow_pass(&s);
    for _ in 0..20 {
        s.show("x");
    }
    s.ok("disk list");
    s.ok("disk set x promote=0 mem_limit=1G");
    s.run("disk park x --huge").fails(4, "EBUSY");
    s.run("disk set x writeback=huge").fails(4, "EBUSY");
    assert!(bd_stat(&s)[0] < 6144, "the pass ended before others were answered");
    kill(child.id() as i32, "INT");
    let ran = ended(&s, child);
    ran.fails(1, "EINTR");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let parked = report["parked_pages"].as_u64().unwrap();
    assert!((1..6144).contains(&parked), "{report}");
    assert_eq!(bd_stat(&s)[0], parked);
    // Nothing of it is left: others can park, and what it parked can be read.
    s.ok("disk park x --pages 6140-6143");
    is_there(&mut connect(&s), &data[..MIB as usize]);
    s.ok("disk remove x --force");
}

#[test]
fn a_client_that_hangs_up_ends_its_pass() {
    let s = Sandbox::new();
    let (_, mut child, _) = slow_pass(&s);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("another pass may begin", || s.run("disk park x --pages 8191").code == 0);
    assert!(bd_stat(&s)[0] < 6144, "the pass went on to its end");
}

#[test]
fn a_disk_is_removed_during_a_pass() {
    for words in ["disk remove x", "disk remove x --force"] {
        let s = Sandbox::new();
        let (file, child, _) = slow_pass(&s);
        s.ok(words);
        assert!(!file.exists());
        assert_eq!(s.left(), Vec::<String>::new());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
    }
}

#[test]
fn a_signal_ends_a_server_during_a_pass() {
    let s = Sandbox::new();
    let (file, child, _) = slow_pass(&s);
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has ended", || !is_running(pid));
    assert!(!child.wait_with_output().unwrap().status.success());
    s.ok("disk list");
    assert!(!file.exists());
}

#[test]
fn a_server_that_dies_during_a_pass_leaves_nothing() {
    let s = Sandbox::new();
    let (file, child, _) = slow_pass(&s);
    kill(s.server_pid("x"), "KILL");
    let output = child.wait_with_output().unwrap();
    let ran = common::Ran::new("disk park", output);
    ran.fails(3, "has died");
    assert!(!file.exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

/// A loop device on a file, taken away when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn on(file: &Path) -> Self {
        let output = std::process::Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        LoopDevice(String::from_utf8(output.stdout).unwrap().trim().to_string())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("swapoff").arg(&self.0).stderr(Stdio::null()).status();
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Why devices and mounts cannot be tested here.
fn no_devices(tools: &[&str]) -> Option<String> {
    let missing = tools.iter().find(|t| !common::have(t)).map(|t| format!("needs {t}"));
    common::no_loop().map(str::to_string).or(missing)
}

#[test]
fn a_block_device_is_a_backing_unless_it_is_in_use() {
    let tools = ["losetup", "mkfs.ext4", "mount", "mkswap", "swapon"];
    if let Some(why) = no_devices(&tools) {
        pagefold_testkit::skipped!("a_block_device_is_a_backing_unless_it_is_in_use: {why}");
        return;
    }
    let s = Sandbox::new();
    let file = s.path("device");
    std::fs::File::create(&file).unwrap().set_len(64 * MIB).unwrap();
    let device = LoopDevice::on(&file);
    let name = device.0.as_str();
    let words = format!("disk create --door nbd --size 16M --name x --backing {name}");

    let ran = s.run(&words);
    assert!(ran.code == 0 && ran.err.contains("it stays"), "{ran:?}");
    let data = pages(1024, 8);
    let mut client = connect(&s);
    write(&mut client, &data);
    assert_eq!(park(&s, "--all")["parked_pages"], 768);
    is_there(&mut client, &data);
    assert!(s.show("x")["parking"]["medium"].as_str().unwrap().contains("block device"));
    s.run(&words.replace("--name x", "--name y")).fails(4, "in use");
    s.ok("disk remove x --force");

    common::sh("mkswap", &["-q", name]);
    s.run(&words).fails(2, "--force-backing");
    common::sh("swapon", &[name]);
    s.run(&format!("{words} --force-backing")).fails(4, "swap");
    common::sh("swapoff", &[name]);

    common::sh("mkfs.ext4", &["-q", "-F", name]);
    s.run(&words).fails(2, "--force-backing");
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    common::sh("mount", &[name, mount.to_str().unwrap()]);
    s.run(&format!("{words} --force-backing")).fails(4, mount.to_str().unwrap());
    common::sh("umount", &[mount.to_str().unwrap()]);
    assert_eq!(s.left(), Vec::<String>::new());
    s.ok(&format!("{words} --force-backing -q"));
    s.ok("disk remove x");
    assert!(Path::new(name).exists());
}

#[test]
fn a_file_system_without_room_loses_no_page() {
    if let Some(why) = no_devices(&["mount"]) {
        pagefold_testkit::skipped!("a_file_system_without_room_loses_no_page: {why}");
        return;
    }
    let s = Sandbox::new();
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    common::sh("mount", &["-t", "tmpfs", "-o", "size=8m", "none", mount.to_str().unwrap()]);
    let file = mount.join("park");
    s.ok(&format!("disk create -q --door nbd --size 64M --name x --backing {}", file.display()));
    // 16 MiB that do not compress, and twice that.
    let data = pages(16384, 9);
    let mut client = connect(&s);
    write(&mut client, &data);
    let ran = s.run("disk park x --all");
    ran.fails(1, "ENOSPC");
    assert!(ran.out.contains("stayed: their write failed"), "{ran:?}");
    let shown = s.show("x");
    let failed = shown["parking"]["failed_pages"].as_u64().unwrap();
    assert!(failed > 0 && shown["parking"]["pages"].as_u64().unwrap() > 0, "{}", shown["parking"]);
    assert!(s.ok("disk show x").contains("stayed in memory because their write failed"));
    is_there(&mut client, &data);
    s.ok("disk remove x --force");
    assert!(!file.exists());
    common::sh("umount", &[mount.to_str().unwrap()]);
}
