//! Disks that outlive their servers: servers and keepers that are killed, `disk restart`, servers that die again and again,
//! settings.

use crate::support::{Nbd, Ran, Sandbox, is_root, is_running, kill, no_loop, wait_until};
use pagefold_testkit::{noise, skipped};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FAILED: i32 = 1;
const UNAVAILABLE: i32 = 5;
const PAGE: usize = 4096;
/// Pages of the part of the disk that one thread writes.
const PART: u64 = 2048;
const WRITERS: u64 = 3;

/// A sandbox with a loop disk `x` that outlives its server; `None`, after printing the reason, if that is not possible here.
fn loop_disk(test: &str, words: &str) -> Option<(Sandbox, PathBuf)> {
    if let Some(why) = no_loop() {
        skipped!("{test}: {why}");
        return None;
    }
    let s = Sandbox::new();
    let out = s.ok(&format!("disk create -q --size 64M --name x --export loop {words}"));
    if let Some(why) = s.show("x")["keeper"]["without_keeper"].as_str() {
        skipped!("{test}: {why}");
        return None;
    }
    Some((s, out.trim_end().into()))
}

/// The number of kills: a few; more if `PAGEFOLD_FULL` is set.
fn kills() -> u64 {
    if std::env::var_os("PAGEFOLD_FULL").is_some() { 100 } else { 8 }
}

/// Kills the server of `x`, and waits for another; starts one if servers have died too often.
fn kill_server(s: &Sandbox) {
    let former = s.server_pid("x");
    kill(former, "KILL");
    wait_for_another(s, former);
}

fn wait_for_another(s: &Sandbox, former: i32) {
    wait_until("another server serves", || {
        let ran = s.run("disk show x --json");
        match ran.code {
            // One command: its server may die before another one asks it.
            0 => pid_in(&ran) != former,
            FAILED if ran.err.contains("died 4 times") => {
                s.ok("disk restart x");
                true
            }
            _ => false,
        }
    });
}

/// The server that has printed its report.
fn pid_in(ran: &Ran) -> i32 {
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    report["server"]["pid"].as_i64().unwrap() as i32
}

/// A page that only the seed decides; of 0, zeroes. Some compress, and some do not.
fn page(seed: u64) -> Vec<u8> {
    match seed {
        0 => vec![0; PAGE],
        _ if seed.is_multiple_of(5) => vec![seed as u8 | 1; PAGE],
        _ if seed.is_multiple_of(3) => noise(seed, PAGE),
        _ => [noise(seed, PAGE / 4), vec![seed as u8; PAGE - PAGE / 4]].concat(),
    }
}

/// Memory for direct I/O.
struct Aligned(Vec<u8>);

impl Aligned {
    fn of_page() -> Self {
        Aligned(vec![0; 2 * PAGE])
    }

    fn page(&mut self) -> &mut [u8] {
        let at = self.0.as_ptr().align_offset(PAGE);
        &mut self.0[at..at + PAGE]
    }
}

fn open_direct(device: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(device).unwrap()
}

/// Writes, discards and reads pages of one part of the device until `stop` is set, and compares them with what was written.
fn write_until(device: &Path, part: u64, stop: &AtomicBool) -> u64 {
    let (file, mut buffer) = (open_direct(device), Aligned::of_page());
    let mut seeds = vec![0u64; PART as usize];
    let mut random = part * 7919 + 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = next() % PART;
        let offset = (part * PART + at) * PAGE as u64;
        match next() % 8 {
            0 => {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, offset, PAGE as u64).unwrap();
                seeds[at as usize] = 0;
            }
            1..5 => {
                let seed = next() | 1;
                buffer.page().copy_from_slice(&page(seed));
                file.write_all_at(buffer.page(), offset).unwrap();
                seeds[at as usize] = seed;
            }
            _ => {
                file.read_exact_at(buffer.page(), offset).unwrap();
                assert!(buffer.page() == page(seeds[at as usize]), "part {part}, page {at} after {done}");
            }
        }
        done += 1;
    }
    for (at, seed) in seeds.iter().enumerate() {
        file.read_exact_at(buffer.page(), (part * PART + at as u64) * PAGE as u64).unwrap();
        assert!(buffer.page() == page(*seed), "part {part}, page {at} at the end");
    }
    done
}

/// Runs `disturb` some times while threads write, discard and read, and compares everything. Then removes the disk.
fn write_while(s: &Sandbox, device: &Path, times: u64, disturb: impl Fn(u64)) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|part| {
                let stop = &stop;
                scope.spawn(move || write_until(device, part, stop))
            })
            .collect();
        // A disturbance that fails ends the writers too.
        let disturbed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..times {
                std::thread::sleep(Duration::from_millis(11 * (n * 13 % 17)));
                disturb(n);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let done: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        disturbed.unwrap();
        assert!(done.iter().all(|done| *done > 0), "{done:?}");
    });
    let shown = s.show("x");
    assert_eq!((&shown["events"]["failed_reads"], &shown["events"]["failed_writes"]), (&0.into(), &0.into()));
    remove(s);
}

/// Removes the disk `x`, and expects that nothing of it is left.
fn remove(s: &Sandbox) {
    let processes = [s.server_pid("x"), s.keeper_pid("x")];
    s.ok("disk remove x");
    assert_eq!(s.left(), Vec::<String>::new());
    assert!(processes.iter().all(|pid| !is_running(*pid)));
}

#[test]
fn writers_notice_nothing_of_servers_that_are_killed() {
    let test = "writers_notice_nothing_of_servers_that_are_killed";
    let Some((s, device)) = loop_disk(test, "") else { return };
    write_while(&s, &device, kills(), |_| kill_server(&s));
}

#[test]
fn writers_notice_nothing_of_servers_that_are_killed_while_pages_are_written_back() {
    let test = "writers_notice_nothing_of_servers_that_are_killed_while_pages_are_written_back";
    if let Some(why) = no_loop() {
        return skipped!("{test}: {why}");
    }
    let backing = tempfile::tempdir().unwrap();
    let words =
        format!("--memory 4M --backing {}/file --recompress-after 1s=zstd:3", backing.path().display());
    let Some((s, device)) = loop_disk(test, &words) else { return };
    write_while(&s, &device, kills(), |_| kill_server(&s));
    assert!(!backing.path().join("file").exists());
}

#[test]
fn writers_notice_nothing_of_keepers_that_are_killed() {
    let test = "writers_notice_nothing_of_keepers_that_are_killed";
    let Some((s, device)) = loop_disk(test, "") else { return };
    write_while(&s, &device, kills(), |n| {
        let former = s.keeper_pid("x");
        kill(former, "KILL");
        wait_until("another keeper is there", || s.keeper_pid("x") != former);
        if n % 3 == 2 {
            kill_server(&s);
        }
    });
}

#[test]
fn writers_notice_nothing_of_a_restart() {
    let test = "writers_notice_nothing_of_a_restart";
    let Some((s, device)) = loop_disk(test, "") else { return };
    write_while(&s, &device, kills(), |n| {
        let former = s.server_pid("x");
        // The new server has a setting that changes while it prepares.
        std::thread::scope(|scope| {
            let set = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3 * (n % 8)));
                s.run(&format!("disk set x mem_limit={}M", 70 + n))
            });
            s.ok(["disk restart x", "disk upgrade --all"][n as usize % 2]);
            let set = set.join().unwrap();
            match set.code {
                0 => assert_eq!(s.show("x")["attributes"]["mem_limit"], ((70 + n) << 20).to_string()),
                _ => set.fails(FAILED, "whether it did what was requested is not known"),
            }
        });
        assert_ne!(s.server_pid("x"), former);
    });
}

/// A client that connects anew after each death of the server.
fn read_anew(s: &Sandbox, offset: u64, len: usize) -> Vec<u8> {
    let (socket, mut read) = (s.runtime().join("x/nbd.sock"), vec![0; len]);
    // The server that is being killed may have accepted the connection.
    let mut client = loop {
        match Nbd::try_connect(&socket) {
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => {}
            connected => break connected.unwrap(),
        }
    };
    client.read(offset, &mut read);
    read
}

#[test]
fn a_client_of_nbd_that_connects_again_finds_what_was_acknowledged() {
    let s = Sandbox::new();
    s.ok("disk create -q --size 16M --name x --export nbd");
    let contents = noise(7, 1 << 20);
    // Three deaths: after the fourth, clients would wait for a command.
    for n in 0..4 {
        let mut client = Nbd::connect(&s.runtime().join("x/nbd.sock"));
        client.write(n << 20, &contents);
        let former = s.server_pid("x");
        match n {
            2 => _ = s.ok("disk restart x"),
            _ => kill(former, "KILL"),
        }
        if n > 3 {
            // Servers have died too often.
            wait_for_another(&s, former);
        }
        for at in 0..=n {
            assert!(read_anew(&s, at << 20, contents.len()) == contents, "{at} of {n}");
        }
        wait_for_another(&s, former);
    }
    let shown = s.show("x");
    assert_eq!((&shown["keeper"]["without_keeper"], &shown["size_bytes"]), (&().into(), &(16 << 20).into()));
    remove(&s);
}

/// The attributes that a new server has from the former one: settings, not counters.
fn settings(s: &Sandbox) -> Vec<(String, String)> {
    let shown = s.show("x");
    let counters = ["_stat", "latency", "mem_used_max"];
    let all = shown["attributes"].as_object().unwrap().iter();
    let all = all.filter(|(name, _)| !counters.iter().any(|counter| name.contains(counter)));
    let all = all.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string()));
    let others = ["codec", "recompression", "size_bytes", "created_unix_s"];
    all.chain(others.map(|name| (name.to_string(), shown[name].to_string()))).collect()
}

#[test]
fn settings_survive_their_server() {
    let s = Sandbox::new();
    let dictionary = s.path("dictionary");
    fs::write(&dictionary, noise(1, 20_000)).unwrap();
    let [dictionary, backing] = [dictionary, s.path("backing")].map(|path| path.display().to_string());
    let create = format!(
        "disk create -q --size 16M --name x --export nbd --codec zstd:5 --dictionary {dictionary} \
         --recompress-after 10m=zstd:9 --recompress-codec lz4hc --memory 8M --backing {backing} --writeback-daily 5G"
    );
    s.ok(&create);
    let contents = [noise(3, 300_000), vec![5; 300_000]].concat();
    Nbd::connect(&s.runtime().join("x/nbd.sock")).write(0, &contents);
    s.ok("disk writeback x --all");
    let changes = "mem_limit=6M same_filled_pages_enabled=0 writeback_limit=77 writeback_limit_enable=1 \
                   writeback_batch_size=9 promote=0 promote_window=7m writeback_high=81 writeback_low=55 writeback_age=2h \
                   writeback_rate=3M writeback_busy=17 recompress_busy=23";
    for changes in ["", changes, "writeback_daily=7G mem_limit=0"] {
        if !changes.is_empty() {
            s.ok(&format!("disk set x {changes}"));
        }
        let before = settings(&s);
        kill_server(&s);
        assert_eq!(settings(&s), before);
        let written_back = s.show("x")["pages"]["written_back"].as_u64().unwrap();
        assert!(written_back > 0);
        assert!(read_anew(&s, 0, contents.len()) == contents);
    }
    // The next keeper has them too.
    let keeper = s.keeper_pid("x");
    kill(keeper, "KILL");
    wait_until("another keeper is there", || s.keeper_pid("x") != keeper);
    let before = settings(&s);
    kill_server(&s);
    assert_eq!(settings(&s), before);
    remove(&s);
    assert!(!Path::new(&backing).exists());
}

#[test]
fn a_new_size_and_a_reset_survive_their_server() {
    let test = "a_new_size_and_a_reset_survive_their_server";
    let Some((s, device)) = loop_disk(test, "") else { return };
    let mut buffer = Aligned::of_page();
    buffer.page().copy_from_slice(&page(1));
    for size in ["8M", "24M"] {
        open_direct(&device).write_all_at(buffer.page(), 0).unwrap();
        s.ok("disk set x reset=1");
        let before = settings(&s);
        kill_server(&s);
        assert_eq!(settings(&s), before);
        assert_eq!(s.show("x")["size_bytes"], 0);
        s.ok(&format!("disk set x comp_algorithm=zstd disksize={size}"));
        let file = open_direct(&device);
        file.read_exact_at(buffer.page(), 0).unwrap();
        assert!(buffer.page() == page(0));
        buffer.page().copy_from_slice(&page(1));
        file.write_all_at(buffer.page(), 0).unwrap();
        let before = settings(&s);
        kill_server(&s);
        assert_eq!(settings(&s), before);
        buffer.page().fill(0);
        file.read_exact_at(buffer.page(), 0).unwrap();
        assert!(buffer.page() == page(1));
    }
    remove(&s);
}

/// Kills servers of `x` until it is held. Returns how many.
fn hold(s: &Sandbox) -> u64 {
    for died in 1.. {
        let former = s.server_pid("x");
        kill(former, "KILL");
        let mut is_held = false;
        wait_until("another server serves, or none", || {
            let ran = s.run("disk show x --json");
            is_held = ran.code == FAILED && ran.err.contains("died 4 times");
            is_held || ran.code == 0 && s.server_pid("x") != former
        });
        if is_held {
            return died;
        }
    }
    unreachable!()
}

#[test]
fn a_disk_whose_servers_die_too_often_is_held_until_somebody_restarts_or_removes_it() {
    let test = "a_disk_whose_servers_die_too_often_is_held_until_somebody_restarts_or_removes_it";
    let Some((s, device)) = loop_disk(test, "") else { return };
    let mut buffer = Aligned::of_page();
    buffer.page().copy_from_slice(&page(1));
    let file = open_direct(&device);
    file.write_all_at(buffer.page(), 0).unwrap();
    assert_eq!(hold(&s), 4);
    let list = s.run("disk list");
    assert!(list.out.contains("held") && list.err.contains("'disk restart' starts it again"), "{list:?}");
    // A read waits, and goes on.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            file.read_exact_at(buffer.page(), 0).unwrap();
            buffer.page() == page(1)
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!reader.is_finished());
        s.ok("disk restart x");
        assert!(reader.join().unwrap());
    });
    drop(file);
    let text = s.ok("disk show x");
    assert!(text.contains("another one serves; 3 times so far") && text.contains("signal 9"), "{text}");
    // The restarts of the last minute count.
    for words in ["disk remove x", "disk remove x --force"] {
        assert!(hold(&s) <= 4);
        let keeper = s.keeper_pid("x");
        s.ok(words);
        assert_eq!(s.left(), Vec::<String>::new());
        assert!(!is_running(keeper));
        let attached = fs::read_to_string("/sys/block/loop0/loop/backing_file");
        assert!(attached.is_err() || !attached.unwrap().contains(s.runtime().to_str().unwrap()));
        s.ok("disk create -q --size 64M --name x --export loop");
    }
    remove(&s);
}

#[test]
fn a_program_that_cannot_take_over_leaves_the_former_server() {
    let s = Sandbox::new();
    s.ok("disk create -q --size 16M --name x --export nbd");
    let (keeper, former) = (s.keeper_pid("x"), s.server_pid("x"));
    let mut client = Nbd::connect(&s.runtime().join("x/nbd.sock"));
    let folder = s.runtime().join("x");
    let requests = || {
        let state: serde_json::Value =
            serde_json::from_slice(&fs::read(folder.join("keeper")).unwrap()).unwrap();
        (state["requests"].as_u64().unwrap(), state["failure"].to_string())
    };
    for (program, says) in [("/bin/false", "code 1"), ("/nowhere", "No such file"), ("/etc/passwd", "127")] {
        let before = requests().0;
        std::os::unix::fs::symlink(program, folder.join("program")).unwrap();
        let usr1 = rustix::process::Signal::USR1;
        rustix::process::kill_process(rustix::process::Pid::from_raw(keeper).unwrap(), usr1).unwrap();
        wait_until("the request is done", || requests().0 > before);
        assert!(requests().1.contains(says), "{program}: {}", requests().1);
        assert_eq!(s.server_pid("x"), former);
        let _ = fs::remove_file(folder.join("program"));
    }
    client.write(0, &[1; 512]);
    s.run("disk restart y").fails(3, "no disk 'y'");
    s.run("disk restart").fails(2, "DISK");
    drop(client);
    remove(&s);
}

#[test]
fn a_user_who_is_not_root_has_disks_that_outlive_their_servers() {
    if !is_root() {
        return skipped!("a_user_who_is_not_root_has_disks_that_outlive_their_servers: needs root");
    }
    let s = Sandbox::for_user(1000);
    s.ok("disk create -q --size 16M --name x");
    assert_eq!(s.show("x")["export"], "nbd");
    kill_server(&s);
    s.ok("disk restart x");
    let keeper = s.keeper_pid("x");
    kill(keeper, "KILL");
    wait_until("another keeper is there", || s.keeper_pid("x") != keeper);
    kill_server(&s);
    remove(&s);
}

#[test]
fn a_command_in_the_foreground_waits_for_the_last_server() {
    let s = Sandbox::new();
    for kills_keeper in [false, true] {
        let create = "disk create -q --size 16M --name x --export nbd --foreground";
        let mut command = s.quietly(create).spawn().unwrap();
        wait_until("the disk is there", || s.run("disk show x").code == 0);
        if kills_keeper {
            let keeper = s.keeper_pid("x");
            kill(keeper, "KILL");
            wait_until("another keeper is there", || s.keeper_pid("x") != keeper);
        }
        kill_server(&s);
        assert!(command.try_wait().unwrap().is_none());
        match kills_keeper {
            true => remove(&s),
            false => kill(command.id() as i32, "INT"),
        }
        assert!(command.wait().unwrap().success(), "after the death of the keeper: {kills_keeper}");
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

#[test]
fn a_signal_to_the_keeper_ends_a_disk_that_is_not_in_use_and_it_stays_small() {
    let test = "a_signal_to_the_keeper_ends_a_disk_that_is_not_in_use_and_it_stays_small";
    let Some((s, device)) = loop_disk(test, "") else { return };
    let keeper = s.keeper_pid("x");
    let rollup = fs::read_to_string(format!("/proc/{keeper}/smaps_rollup")).unwrap();
    let dirty = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    let dirty_kib: u64 = dirty.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(dirty_kib < 2048, "{rollup}");
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    // CAP_KILL, CAP_SETGID and CAP_SETUID, for the next servers.
    assert!(status.contains("CapEff:\t00000000000000e0"), "{status}");
    // It keeps the server of a disk in use, after a signal too.
    crate::support::sh("mkfs.ext4", &["-q", device.to_str().unwrap()]);
    let mount = s.path("mnt");
    fs::create_dir(&mount).unwrap();
    crate::support::sh("mount", &[device.to_str().unwrap(), mount.to_str().unwrap()]);
    kill(keeper, "TERM");
    let log = s.runtime().join("x/log");
    wait_until("the server serves on", || fs::read_to_string(&log).unwrap().contains("serving on"));
    kill_server(&s);
    crate::support::sh("umount", &[mount.to_str().unwrap()]);
    kill(keeper, "TERM");
    wait_until("the keeper has exited", || !is_running(keeper));
    s.ok("disk list");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_disk_in_plain_memory_does_not_outlive_its_server() {
    let s = Sandbox::new();
    s.ok("disk create -q --size 16M --name x --export nbd --uncompressed");
    let shown = s.ok("disk show x");
    assert!(shown.contains("the contents are lost: its pages are in plain memory"), "{shown}");
    s.run("disk restart x").fails(UNAVAILABLE, "has no keeper");
    kill(s.server_pid("x"), "KILL");
    wait_until("it is cleaned up", || s.run("disk list").out.is_empty());
    let ran: Ran = s.run("disk show x");
    ran.fails(3, "no disk 'x'");
}

/// Creates a disk whose server panics at the places that the returned file names. `None`, after printing the reason, if this
/// build has no such places.
fn create_with_panics(test: &str, s: &Sandbox, words: &str) -> Option<PathBuf> {
    if !cfg!(debug_assertions) {
        skipped!("{test}: this build has no places where tests make it panic");
        return None;
    }
    let place = s.path("place");
    let mut create = s.quietly(&format!("disk create -q --name x {words}"));
    assert!(create.env("PAGEFOLD_INJECTED_PANIC", &place).status().unwrap().success());
    Some(place)
}

/// Whether a thread has panicked at a place in this file, once.
fn is_used(place: &Path) -> bool {
    fs::read_to_string(place).unwrap().is_empty()
}

/// The end of the last server of `x`, and whether its log has the panic.
fn assert_panicked(s: &Sandbox, name: &str) {
    assert_eq!(s.show("x")["keeper"]["end"]["code"], 101, "{name}");
    let log = fs::read_to_string(s.runtime().join("x/log")).unwrap();
    let line = format!(": a test asked for a panic at {name}\n");
    assert!(
        log.contains(" error: a panic at crates/sys/src/injected_panic.rs:") && log.contains(&line),
        "{log}"
    );
}

#[test]
fn users_of_a_loop_device_notice_nothing_of_a_panic() {
    let test = "users_of_a_loop_device_notice_nothing_of_a_panic";
    let Some((s, _)) = loop_disk(test, "") else { return };
    s.ok("disk remove x");
    let Some(place) = create_with_panics(test, &s, "--size 16M --export loop") else { return };
    let device = PathBuf::from(s.show("x")["device"].as_str().unwrap());
    let (file, mut buffer) = (open_direct(&device), Aligned::of_page());
    buffer.page().copy_from_slice(&page(7));
    file.write_all_at(buffer.page(), 0).unwrap();
    for name in ["Write", "Read", "FAllocate", "FSync"] {
        let former = s.server_pid("x");
        fs::write(&place, format!("{name} once")).unwrap();
        std::thread::scope(|scope| {
            let (file, mut buffer) = (&file, Aligned::of_page());
            let user = scope.spawn(move || {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                buffer.page().copy_from_slice(&page(9));
                match name {
                    "Write" => file.write_all_at(buffer.page(), PAGE as u64),
                    "Read" => file.read_exact_at(buffer.page(), PAGE as u64),
                    "FSync" => file.sync_data(),
                    _ => rustix::fs::fallocate(file, flags, PAGE as u64, PAGE as u64).map_err(Into::into),
                }
            });
            wait_for_another(&s, former);
            user.join().unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        });
        assert!(is_used(&place));
        assert_panicked(&s, name);
        file.read_exact_at(buffer.page(), 0).unwrap();
        assert!(buffer.page() == page(7));
        file.read_exact_at(buffer.page(), PAGE as u64).unwrap();
        let is_zeroed = matches!(name, "FAllocate" | "FSync");
        assert!(buffer.page() == page(if is_zeroed { 0 } else { 9 }), "{name}");
    }
    drop(file);
    remove(&s);
}

#[test]
fn a_panic_of_any_thread_ends_the_server_of_a_disk_and_another_one_serves() {
    let test = "a_panic_of_any_thread_ends_the_server_of_a_disk_and_another_one_serves";
    let s = Sandbox::new();
    let backing = s.path("backing").display().to_string();
    let words = format!(
        "--size 16M --export nbd --backing {backing} --recompress-codec zstd --recompress-after 10m=zstd"
    );
    let Some(place) = create_with_panics(test, &s, &words) else { return };
    let socket = s.runtime().join("x/nbd.sock");
    let contents = noise(7, 64 << 10);
    Nbd::connect(&socket).write(0, &contents);
    s.ok("disk writeback x --all");
    // Requests on the connection's thread (a write, a flush), on a thread beside it, of a command, and of threads of the store.
    for name in ["nbd 1", "nbd 3", "nbd job", "control Show", "writeback", "recompress"] {
        let former = s.server_pid("x");
        let mut client = Nbd::connect(&socket);
        fs::write(&place, format!("{name} once")).unwrap();
        match name {
            "nbd 1" => assert!(client.try_request(1, 1 << 20, 4096, &[1; 4096]).is_err()),
            "nbd 3" => assert!(client.try_request(3, 0, 0, &[]).is_err()),
            "nbd job" => assert!(client.try_request(0, 0, 4096, &[]).is_err()),
            "control Show" => assert_ne!(s.run("disk show x").code, 0),
            _ => {}
        }
        wait_until("a thread panicked", || is_used(&place));
        wait_for_another(&s, former);
        assert_panicked(&s, name);
        assert!(read_anew(&s, 0, contents.len()) == contents, "{name}");
    }
    remove(&s);
}

#[test]
fn a_panic_ends_a_disk_without_a_keeper() {
    let test = "a_panic_ends_a_disk_without_a_keeper";
    let s = Sandbox::new();
    let Some(place) = create_with_panics(test, &s, "--size 16M --export nbd --uncompressed") else { return };
    let mut client = Nbd::connect(&s.runtime().join("x/nbd.sock"));
    fs::write(&place, "nbd 1 once").unwrap();
    assert!(client.try_request(1, 0, 4096, &[1; 4096]).is_err());
    wait_until("it ended", || s.run("disk show x").code != 0);
    let said = s.run("disk list");
    let all = format!("{said:?}");
    assert!(all.contains("a panic at") || s.run("disk show x").code == 3, "{all}");
}
