//! Restores that go on while the disk is used: contents, deaths of the server, files that are damaged, changed or removed.

use crate::support::writeback::{connect, no_devices, pages, write};
use crate::support::{Nbd, Sandbox, is_running, kill, wait_until};
use pagefold_testkit::noise;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const PAGES: usize = 2048;
const PAGE: usize = 4096;

/// A saved disk, in a chain of files, and its contents.
fn saved(s: &Sandbox) -> (PathBuf, Vec<u8>) {
    let folder = s.path("saves");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("work.saved");
    let mut data = noise(3, PAGES * PAGE);
    // Zeroes and pages that compress, too.
    data[PAGES / 2 * PAGE..PAGES * 3 / 4 * PAGE].copy_from_slice(&pages(PAGES / 4, 5));
    data[PAGES * 7 / 8 * PAGE..].fill(0);
    s.ok("disk create -q --export nbd --name x --size 8M");
    write(&mut connect(s), &data);
    for round in 0..3 {
        s.ok(&format!("disk save x {} --incremental", file.display()));
        for at in 0..40 {
            let page = (at * 47 + round * 13) % PAGES;
            // Also back to zeroes, which are in the file before.
            let new = if at % 4 == 0 { vec![0; PAGE] } else { noise((at + round) as u64 + 9, PAGE) };
            connect(s).write((page * PAGE) as u64, &new);
            data[page * PAGE..][..PAGE].copy_from_slice(&new);
        }
    }
    s.ok(&format!("disk save x {} --incremental", file.display()));
    s.ok("disk remove --force x");
    (file, data)
}

fn nbd(s: &Sandbox) -> Nbd {
    Nbd::connect(&s.runtime().join("y/nbd.sock"))
}

/// The pages that have other contents than `data`, and those that cannot be read.
fn compare(s: &Sandbox, data: &[u8]) -> (Vec<usize>, Vec<usize>) {
    let (mut client, mut read) = (nbd(s), vec![1; PAGE]);
    let (mut wrong, mut failed) = (vec![], vec![]);
    for (at, page) in data.chunks(PAGE).enumerate() {
        match client.try_read((at * PAGE) as u64, &mut read) {
            Ok(()) if read == page => {}
            Ok(()) => wrong.push(at),
            Err(_) => failed.push(at),
        }
    }
    (wrong, failed)
}

fn assert_same(s: &Sandbox, data: &[u8]) {
    assert_eq!(compare(s, data), (vec![], vec![]));
}

/// Kills the server, and waits for the next one.
fn replace(s: &Sandbox) {
    let server = s.server_pid("y");
    kill(server, "KILL");
    wait_until("the server has exited", || !is_running(server));
    wait_until("another server serves", || s.run("disk show y").code == 0 && s.server_pid("y") != server);
}

fn restoring(s: &Sandbox) -> serde_json::Value {
    s.show("y")["restoring"].clone()
}

/// Whether a process has a file open whose path contains `name`.
fn has_open(pid: i32, name: &str) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|path| path.to_string_lossy().contains(name))
}

/// Without memory for all pages the restore goes on for as long as the test wants.
#[test]
fn a_restore_outlives_the_server_and_the_names_of_its_files() {
    let s = Sandbox::new();
    let (file, mut data) = saved(&s);
    let words = format!("disk create --export nbd --name y --memory 1M --restore {}", file.display());
    let ran = s.run(&words);
    assert!(ran.code == 0 && ran.err.contains("leave '"), "{ran:?}");
    wait_until("the memory is full", || restoring(&s)["waits_for_memory"] == true);
    assert!(s.ok("disk show y").contains("the memory limit is reached"));
    assert_same(&s, &data);
    let save = format!("disk save y {} --incremental", file.display());
    s.run(&save).fails(4, "still being restored");
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    // The keeper gives up after four deaths within a minute.
    for round in 0..2u8 {
        let (mut client, mut changed) = (nbd(&s), 0);
        for at in 0..60 {
            let page = (at * 31 + usize::from(round) * 7) % PAGES;
            let offset = (page * PAGE) as u64;
            // Both need no memory for objects, but perhaps for a part of the table.
            if at % 2 == 0 && client.try_write(offset, &[round + 1; PAGE]) {
                data[page * PAGE..][..PAGE].fill(round + 1);
                changed += 1;
            } else if at % 2 == 1 && client.try_zero(offset, PAGE as u32) {
                data[page * PAGE..][..PAGE].fill(0);
                changed += 1;
            }
        }
        drop(client);
        assert!(changed > 10, "{changed}");
        replace(&s);
        assert!(restoring(&s).is_object());
        assert_same(&s, &data);
    }
    let (server, keeper) = (s.server_pid("y"), s.keeper_pid("y"));
    assert!(has_open(server, "work.saved") && has_open(keeper, "work.saved"));
    s.ok("disk set y mem_limit=64M");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    // It waits for the rest.
    s.ok(&save);
    assert!(restoring(&s).is_null());
    wait_until("the files are closed", || !has_open(server, "work.saved") && !has_open(keeper, "work.saved"));
    assert_same(&s, &data);
    replace(&s);
    assert!(restoring(&s).is_null());
    assert_same(&s, &data);
    s.ok("disk remove --force y");
    // The save has all pages.
    s.ok(&format!("disk create -q --export nbd --name y --restore-now --restore {}", file.display()));
    assert_same(&s, &data);
}

/// Programs read and write a loop device while servers die in the middle of the restore.
#[test]
fn programs_notice_nothing_of_servers_that_die_in_a_restore() {
    let test = "programs_notice_nothing_of_servers_that_die_in_a_restore";
    if let Some(why) = no_devices(&[]) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let (file, data) = saved(&s);
    // It goes on until there is memory.
    let words = format!("--memory 1M --restore {}", file.display());
    let device = s.ok(&format!("disk create -q --export loop --name y {words}")).trim_end().to_string();
    let ended = AtomicBool::new(false);
    let mut contents: Vec<Vec<u8>> = Vec::new();
    std::thread::scope(|scope| {
        // Each thread has its pages.
        let threads: Vec<_> = (0..3usize)
            .map(|thread| {
                let (device, ended, mut own) = (&device, &ended, data.clone());
                scope.spawn(move || {
                    let file =
                        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(device);
                    let file = file.unwrap();
                    let mut memory = vec![0; 2 * PAGE];
                    let start = memory.as_ptr().align_offset(PAGE);
                    let buffer = &mut memory[start..start + PAGE];
                    let mut at = thread;
                    while !ended.load(SeqCst) {
                        at = (at + 3 * 101) % (PAGES - 2) / 3 * 3 + thread;
                        file.read_exact_at(buffer, (at * PAGE) as u64).unwrap();
                        assert!(buffer == &own[at * PAGE..][..PAGE], "page {at}");
                        if at % 5 == 0 {
                            buffer.copy_from_slice(&noise(at as u64, PAGE));
                            buffer[..8].copy_from_slice(&own[at * PAGE + 8..][..8]);
                            // Refused without memory, and then the page stays.
                            if file.write_all_at(buffer, (at * PAGE) as u64).is_ok() {
                                own[at * PAGE..][..PAGE].copy_from_slice(buffer);
                            }
                        }
                    }
                    own
                })
            })
            .collect();
        for _ in 0..3 {
            assert!(restoring(&s).is_object());
            replace(&s);
        }
        s.ok("disk set y mem_limit=64M");
        wait_until("the restore has ended", || restoring(&s).is_null());
        ended.store(true, SeqCst);
        contents = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    });
    let file = File::open(&device).unwrap();
    let mut page = vec![1; PAGE];
    for at in 0..PAGES {
        file.read_exact_at(&mut page, (at * PAGE) as u64).unwrap();
        assert!(page == contents[at % 3][at * PAGE..][..PAGE], "page {at}");
    }
    drop(file);
    s.ok("disk remove y");
}

/// A damaged block takes its own pages, and only as long as they are not written.
#[test]
fn pages_of_a_damaged_block_are_errors_until_they_are_written() {
    let s = Sandbox::new();
    let (file, mut data) = saved(&s);
    let chain: serde_json::Value =
        serde_json::from_str(&s.ok(&format!("disk saved {} --json", file.display()))).unwrap();
    assert_eq!(chain["chain_files"], 4);
    // The full save is the largest file.
    let files = std::fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let full = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&full).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 4;
    std::fs::write(&full, bytes).unwrap();
    s.run(&format!("disk create -q --export nbd --name y --restore-now --restore {}", file.display()))
        .fails(6, "damaged at byte");
    s.ok(&format!("disk create -q --export nbd --name y --restore {}", file.display()));
    wait_until("all others are there", || restoring(&s)["unreadable_pages"].as_u64().is_some_and(|n| n > 0));
    let (wrong, failed) = compare(&s, &data);
    assert!(wrong.is_empty() && (10..200).contains(&failed.len()), "{} pages", failed.len());
    let shown = restoring(&s);
    assert_eq!(shown["unreadable_pages"], failed.len());
    assert!(shown["first_unreadable"].as_str().unwrap().contains("damaged at byte"), "{shown}");
    assert!(s.ok("disk show y").contains("cannot be read, the first"));
    s.run(&format!("disk save y {}", s.path("other").display())).fails(4, "cannot be read");
    let log = std::fs::read_to_string(s.runtime().join("y/log")).unwrap();
    assert!(log.contains("cannot be read, the first: page "), "{log}");
    replace(&s);
    assert_eq!(compare(&s, &data).1, failed);
    let mut client = nbd(&s);
    // A part of one cannot be written without the rest.
    assert!(!client.try_write((failed[0] * PAGE) as u64 + 5, &[1; 100]));
    for page in failed {
        client.write((page * PAGE) as u64, &[7; PAGE]);
        data[page * PAGE..][..PAGE].fill(7);
    }
    drop(client);
    // The next pass comes after a minute, or with the next server.
    replace(&s);
    wait_until("the restore has ended", || restoring(&s).is_null());
    assert_same(&s, &data);
}

/// A file that changes under the restore is noticed: pages are errors, and never have other contents.
#[test]
fn a_file_that_changes_is_not_read_as_another() {
    let s = Sandbox::new();
    let (file, data) = saved(&s);
    s.ok(&format!("disk create -q --export nbd --name z --restore {}", file.display()));
    // One full file, and another of the same form.
    let (one, other) = (s.path("one"), s.path("other"));
    s.ok(&format!("disk save z {}", one.display()));
    let mut client = Nbd::connect(&s.runtime().join("z/nbd.sock"));
    write(&mut client, &noise(77, PAGES / 2 * PAGE));
    drop(client);
    s.ok(&format!("disk save z {}", other.display()));
    s.ok(&format!("disk create -q --export nbd --name y --memory 1M --restore {}", one.display()));
    wait_until("the memory is full", || restoring(&s)["waits_for_memory"] == true);
    // The same bytes again are the same file.
    let (bytes, others) = (std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap());
    let in_place = OpenOptions::new().write(true).open(&one).unwrap();
    in_place.write_all_at(&bytes, 0).unwrap();
    assert_same(&s, &data);
    let half = bytes[..bytes.len() / 2].to_vec();
    let check = |contents: &[u8], is_replaced: bool, survives: bool| {
        in_place.set_len(contents.len() as u64).unwrap();
        in_place.write_all_at(contents, 0).unwrap();
        if is_replaced {
            replace(&s);
        }
        let (wrong, failed) = compare(&s, &data);
        assert!(wrong.is_empty() && failed.is_empty() == survives, "{} pages failed", failed.len());
    };
    check(&others, false, false);
    check(&bytes, false, true);
    check(&half, false, false);
    // The next server serves the disk all the same. One that has found another file does not look again.
    check(&others, true, false);
    check(&bytes, false, false);
    check(&bytes, true, true);
    s.ok("disk remove --force y z");
}
