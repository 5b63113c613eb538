//! Mounts that outlive their servers: servers and keepers that are killed, `image restart`, servers that die again and
//! again.

use crate::image_mount::{MountSandbox, contents, fetcher, keeper, server, wait_until, wait_until_gone};
use crate::image_remote::{PATH, serving};
use pagefold_sys::pidfd;
use pagefold_testkit::{noise, skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const USAGE: i32 = 2;
const FAILED: i32 = 1;
/// Files of the tree that is read while servers die.
const FILES: u64 = 120;

/// Whether this kernel can give the requests of a dead server to another; says so if it cannot.
fn sandbox(test: &str) -> Option<MountSandbox> {
    let sandbox = MountSandbox::new(test)?;
    sandbox.ok(&sandbox.words("mount", ""));
    let keeper = &sandbox.stats()["keeper"];
    if let Some(why) = keeper["without_keeper"].as_str() {
        skipped!("{test}: {why}");
        return None;
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    Some(sandbox)
}

/// Replaces the image by one of many files with contents that compress and contents that do not.
fn large_image(sandbox: &MountSandbox) -> PathBuf {
    let tree = sandbox.inner.path("many");
    for n in 0..FILES {
        let dir = tree.join(format!("d{}", n % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{n}")), file(n)).unwrap();
    }
    sandbox.ok(&format!("image build -q {} {}", tree.display(), sandbox.image.display()));
    tree
}

/// The contents of file `n`.
fn file(n: u64) -> &'static [u8] {
    static ALL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| (0..FILES).map(make_file).collect());
    &ALL[n as usize]
}

fn make_file(n: u64) -> Vec<u8> {
    match n % 3 {
        0 => noise(n, 150_000 + 4096 * n as usize),
        1 => contents()[..300_000 + 977 * n as usize].to_vec(),
        _ => [noise(n, 70_000), contents()[..200_000].to_vec()].concat(),
    }
}

fn kill(pid: Pid) {
    // It may have been killed by its keeper.
    let _ = kill_process(pid, Signal::KILL);
}

/// Waits until another server serves than `former`, and starts it again if servers have died too often.
fn wait_for_another(sandbox: &MountSandbox, former: Pid) {
    wait_until(|| {
        let (code, said) = sandbox.run(&sandbox.words("stats", "--json"));
        match code {
            0 => server(sandbox) != former,
            FAILED if said.contains("died 4 times") => {
                sandbox.ok(&sandbox.words("restart", ""));
                true
            }
            _ => false,
        }
    });
}

/// Lets the kernel forget what it has read, so that readers ask the server.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// The number of kills: a few; more if `PAGEFOLD_FULL` is set.
fn kills() -> u64 {
    if std::env::var_os("PAGEFOLD_FULL").is_some() { 100 } else { 12 }
}

/// Reads the files in different orders until `stop` is set. Returns how often all of them were right.
fn read_until(at: &Path, first: u64, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        for n in (0..FILES).map(|n| (n * (2 * first + 1) + first) % FILES) {
            let path = at.join(format!("d{}", n % 7)).join(format!("f{n}"));
            let read = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(read == file(n), "{} has wrong contents", path.display());
        }
        rounds += 1;
    }
    rounds
}

/// Runs `disturb` while eight threads read all files and a ninth archives them, and compares everything.
fn read_while(sandbox: &MountSandbox, times: u64, disturb: impl Fn(u64)) {
    let tree = large_image(sandbox);
    sandbox.ok(&sandbox.words("mount", "--memory 8M"));
    let stop = AtomicBool::new(false);
    let archive = |of: &Path| {
        let words = ["--sort=name", "--format=posix", "--pax-option=delete=atime,delete=ctime", "-cC"];
        Command::new("tar").args(words).arg(of).arg(".").output().unwrap()
    };
    let expected = archive(&tree);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|first| {
                scope.spawn({
                    let (at, stop) = (&sandbox.at, &stop);
                    move || read_until(at, first, stop)
                })
            })
            .collect();
        let archiver = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let archived = archive(&sandbox.at);
                assert!(archived.stderr.is_empty(), "{}", String::from_utf8_lossy(&archived.stderr));
                assert!(archived.status.success() && archived.stdout == expected.stdout);
            }
        });
        // A disturbance that fails ends the readers too.
        let disturbed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..times {
                forget();
                std::thread::sleep(Duration::from_millis(7 * (n * 13 % 17)));
                disturb(n);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let rounds: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        archiver.join().unwrap();
        disturbed.unwrap();
        assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    });
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn readers_notice_nothing_of_servers_that_are_killed() {
    let Some(sandbox) = sandbox("readers_notice_nothing_of_servers_that_are_killed") else { return };
    read_while(&sandbox, kills(), |_| {
        let former = server(&sandbox);
        kill(former);
        wait_for_another(&sandbox, former);
    });
}

#[test]
fn readers_notice_nothing_of_keepers_that_are_killed() {
    let Some(sandbox) = sandbox("readers_notice_nothing_of_keepers_that_are_killed") else { return };
    read_while(&sandbox, kills(), |n| {
        let former = (keeper(&sandbox), server(&sandbox));
        if n % 3 == 2 {
            kill(former.1);
            wait_for_another(&sandbox, former.1);
        } else {
            kill(former.0);
            wait_until(|| keeper(&sandbox) != former.0);
        }
    });
}

#[test]
fn readers_notice_nothing_of_a_restart() {
    let Some(sandbox) = sandbox("readers_notice_nothing_of_a_restart") else { return };
    read_while(&sandbox, 20, |_| {
        let former = server(&sandbox);
        sandbox.ok(&sandbox.words("restart", ""));
        assert_ne!(server(&sandbox), former);
    });
}

#[test]
fn open_files_and_directories_survive_and_the_log_says_what_happened() {
    let Some(sandbox) = sandbox("open_files_and_directories_survive_and_the_log_says_what_happened") else {
        return;
    };
    sandbox.ok(&sandbox.words("mount", ""));
    let open = fs::File::open(sandbox.at.join("long")).unwrap();
    let mut user = Command::new("sh");
    let user = user.args(["-c", "read line; cat short"]).current_dir(sandbox.at.join("folder"));
    let mut user =
        user.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let image = sandbox.image.clone();
    // The next server opens no path.
    fs::rename(&image, image.with_extension("moved")).unwrap();
    let former = server(&sandbox);
    kill(former);
    wait_for_another(&sandbox, former);
    forget();
    let mut read = vec![0; contents().len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == contents());
    std::io::Write::write_all(&mut user.stdin.take().unwrap(), b"\n").unwrap();
    assert_eq!(user.wait_with_output().unwrap().stdout, b"short\n");
    let stats = sandbox.stats();
    assert_eq!(stats["keeper"]["restarts"], 1);
    assert_eq!(stats["keeper"]["end"]["signal"], 9);
    let shown = sandbox.ok(&sandbox.words("stats", ""));
    assert!(shown.contains("another one serves; 1 time so far") && shown.contains("signal 9"), "{shown}");
    let folder = fs::read_dir(sandbox.inner.runtime().join(".images")).unwrap();
    let folder = folder.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    let log = fs::read_to_string(folder.join("log")).unwrap();
    assert!(log.contains(&format!("process {}) has died", former.as_raw_nonzero())), "{log}");
    drop(open);
    fs::rename(image.with_extension("moved"), image).unwrap();
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_server_that_dies_too_often_is_held_until_somebody_restarts_or_unmounts_it() {
    let test = "a_server_that_dies_too_often_is_held_until_somebody_restarts_or_unmounts_it";
    let Some(sandbox) = sandbox(test) else { return };
    let hold = || {
        for died in 1.. {
            let former = server(&sandbox);
            kill(former);
            wait_until_gone(former);
            wait_until(|| {
                let (code, said) = sandbox.run(&sandbox.words("stats", "--json"));
                code == FAILED && said.contains("died 4 times") || code == 0 && server(&sandbox) != former
            });
            if sandbox.run(&sandbox.words("stats", "")).0 == FAILED {
                return died;
            }
        }
        unreachable!()
    };
    sandbox.ok(&sandbox.words("mount", ""));
    assert_eq!(hold(), 4);
    let list = sandbox.ok("image mounts");
    assert!(list.contains("'image restart' starts it again"), "{list}");
    // A read waits, and goes on.
    forget();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(sandbox.at.join("long")));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!reader.is_finished());
        sandbox.ok(&sandbox.words("restart", ""));
        assert!(reader.join().unwrap().unwrap() == contents());
    });
    sandbox.ok(&sandbox.words("stats", ""));
    // The restarts of the last minute count.
    assert!(hold() <= 4);
    let (code, said) = sandbox.run(&sandbox.words("unmount", "--force"));
    assert_eq!(code, 0, "{said}");
    sandbox.assert_nothing_left();
}

#[test]
fn a_program_that_cannot_take_over_leaves_the_former_server() {
    let Some(sandbox) = sandbox("a_program_that_cannot_take_over_leaves_the_former_server") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let (keeper, former) = (keeper(&sandbox), server(&sandbox));
    let folder = fs::read_dir(sandbox.inner.runtime().join(".images")).unwrap();
    let folder = folder.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    for (program, says) in [("/bin/false", "code 1"), ("/nowhere", "No such file"), ("/etc/passwd", "127")] {
        let requests = || {
            let state: serde_json::Value =
                serde_json::from_slice(&fs::read(folder.join("keeper")).unwrap()).unwrap();
            (state["requests"].as_u64().unwrap(), state["failure"].to_string())
        };
        let before = requests().0;
        std::os::unix::fs::symlink(program, folder.join("program")).unwrap();
        kill_process(keeper, Signal::USR1).unwrap();
        wait_until(|| requests().0 > before);
        assert!(requests().1.contains(says), "{program}: {}", requests().1);
        assert_eq!(server(&sandbox), former);
        let _ = fs::remove_file(folder.join("program"));
    }
    forget();
    assert!(fs::read(sandbox.at.join("long")).unwrap() == contents());
    let (code, said) = sandbox.run("image restart /nowhere");
    assert!(code == 3 && said.contains("no image is mounted"), "{code}, {said}");
    assert_eq!(sandbox.run("image restart").0, USAGE);
    sandbox.ok("image restart --all");
    assert_ne!(server(&sandbox), former);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_user_who_is_not_root_has_mounts_that_outlive_their_servers() {
    let test = "a_user_who_is_not_root_has_mounts_that_outlive_their_servers";
    if sandbox(test).is_none() {
        return;
    }
    let Some(sandbox) = MountSandbox::for_user(test) else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let former = server(&sandbox);
    kill(former);
    wait_for_another(&sandbox, former);
    sandbox.ok(&sandbox.words("restart", ""));
    let former = keeper(&sandbox);
    kill(former);
    wait_until(|| keeper(&sandbox) != former);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_command_in_the_foreground_waits_for_the_last_server() {
    let Some(sandbox) = sandbox("a_command_in_the_foreground_waits_for_the_last_server") else { return };
    let start = || {
        let child = sandbox.inner.quietly(&sandbox.words("mount", "--foreground")).spawn().unwrap();
        wait_until(|| sandbox.run(&sandbox.words("stats", "")).0 == 0);
        child
    };
    for kills_keeper in [false, true] {
        let mut command = start();
        let (keeper, former) = (keeper(&sandbox), server(&sandbox));
        kill(if kills_keeper { keeper } else { former });
        wait_until(|| match kills_keeper {
            true => crate::image_mount::keeper(&sandbox) != keeper,
            false => sandbox.run(&sandbox.words("stats", "")).0 == 0 && server(&sandbox) != former,
        });
        assert!(command.try_wait().unwrap().is_none());
        sandbox.ok(&sandbox.words("unmount", ""));
        assert!(command.wait().unwrap().success(), "after the death of the keeper: {kills_keeper}");
    }
    let mut command = start();
    let former = server(&sandbox);
    kill(former);
    wait_for_another(&sandbox, former);
    kill_process(Pid::from_child(&command), Signal::INT).unwrap();
    assert!(command.wait().unwrap().success());
    sandbox.assert_nothing_left();
}

#[test]
fn a_signal_to_the_keeper_ends_the_mount_and_it_stays_small() {
    let Some(sandbox) = sandbox("a_signal_to_the_keeper_ends_the_mount_and_it_stays_small") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    let keeper = keeper(&sandbox);
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", keeper.as_raw_nonzero())).unwrap();
    let dirty = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    let dirty_kib: u64 = dirty.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(dirty_kib < 2048, "{rollup}");
    let identity = pidfd::Identity::of(keeper.as_raw_nonzero().get()).unwrap();
    let process = pidfd::Process::open(&identity).unwrap().unwrap();
    kill_process(keeper, Signal::TERM).unwrap();
    assert!(process.wait(Duration::from_secs(20)).unwrap());
    sandbox.assert_nothing_left();
}

/// A mount whose server panics at the places that the returned file names.
fn mounted_with_panics(test: &str) -> Option<(MountSandbox, PathBuf)> {
    if !cfg!(debug_assertions) {
        skipped!("{test}: this build has no places where tests make it panic");
        return None;
    }
    let sandbox = sandbox(test)?;
    std::os::unix::fs::symlink("long", sandbox.inner.path("tree/link")).unwrap();
    let (tree, image) = (sandbox.inner.path("tree"), sandbox.image.display());
    sandbox.ok(&format!("image build -q {} {image}", tree.display()));
    let place = sandbox.inner.path("place");
    let mut mount = sandbox.inner.command(&sandbox.words("mount", ""));
    assert!(mount.env("PAGEFOLD_INJECTED_PANIC", &place).status().unwrap().success());
    Some((sandbox, place))
}

/// The log of the only mount.
fn log(sandbox: &MountSandbox) -> String {
    let folder = fs::read_dir(sandbox.inner.runtime().join(".images")).unwrap();
    let folder = folder.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    fs::read_to_string(folder.join("log")).unwrap()
}

#[test]
fn each_request_that_panics_fails_and_is_counted_and_logged() {
    let test = "each_request_that_panics_fails_and_is_counted_and_logged";
    let Some((sandbox, place)) = mounted_with_panics(test) else { return };
    let (at, former) = (&sandbox.at, server(&sandbox));
    let attr = || {
        let (flags, mask) = (rustix::fs::AtFlags::STATX_FORCE_SYNC, rustix::fs::StatxFlags::BASIC_STATS);
        rustix::fs::statx(rustix::fs::CWD, at, flags, mask)
    };
    let long = || at.join("long");
    type Access<'a> = Box<dyn Fn() -> std::io::Result<()> + 'a>;
    let accesses: [(&str, Access<'_>); 10] = [
        ("Lookup", Box::new(|| fs::metadata(long()).map(|_| ()))),
        ("GetAttr", Box::new(|| Ok(attr().map(|_| ())?))),
        ("Open", Box::new(|| fs::File::open(long()).map(|_| ()))),
        ("Read", Box::new(|| fs::read(long()).map(|_| ()))),
        ("OpenDir", Box::new(|| fs::read_dir(at).map(|_| ()))),
        ("ReadDirPlus", Box::new(|| fs::read_dir(at)?.try_for_each(|entry| entry.map(|_| ())))),
        ("ReadLink", Box::new(|| fs::read_link(at.join("link")).map(|_| ()))),
        ("GetXattr", Box::new(|| Ok(rustix::fs::getxattr(long(), "user.a", &mut [0; 8]).map(|_| ())?))),
        ("ListXattr", Box::new(|| Ok(rustix::fs::listxattr(long(), &mut [0; 8]).map(|_| ())?))),
        ("StatFs", Box::new(|| Ok(rustix::fs::statfs(at).map(|_| ())?))),
    ];
    let mut panics = 0;
    for (name, access) in accesses {
        forget();
        fs::write(&place, name).unwrap();
        let error = access().expect_err(name);
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}: {error}");
        fs::remove_file(&place).unwrap();
        let all = sandbox.stats()["panics"].as_u64().unwrap();
        assert!(all > panics, "{name}");
        panics = all;
        // Whether there are attributes or not is another matter.
        assert!(!access().is_err_and(|e| e.raw_os_error() == Some(libc::EIO)), "{name}");
        let line = format!(": a test asked for a panic at {name}\n");
        assert!(log(&sandbox).contains(&line), "{name}: {}", log(&sandbox));
    }
    assert!(log(&sandbox).contains(" error: a panic at crates/sys/src/injected_panic.rs:"));
    assert!(sandbox.ok(&sandbox.words("stats", "")).contains("requests; the log has the places"));
    assert_eq!(server(&sandbox), former);
    assert!(fs::read(long()).unwrap() == contents());
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_server_whose_requests_panic_a_hundred_times_is_replaced() {
    let test = "a_server_whose_requests_panic_a_hundred_times_is_replaced";
    let Some((sandbox, place)) = mounted_with_panics(test) else { return };
    let open = fs::File::open(sandbox.at.join("long")).unwrap();
    let mut byte = [0];
    forget();
    fs::write(&place, "Read").unwrap();
    for _ in 0..100 {
        assert_eq!(open.read_at(&mut byte, 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    fs::remove_file(&place).unwrap();
    wait_until(|| {
        let (code, _) = sandbox.run(&sandbox.words("stats", ""));
        code == 0 && sandbox.stats()["keeper"]["restarts"] == 1
    });
    let stats = sandbox.stats();
    // The next server gets the last request if the former one had not answered it.
    assert!(stats["keeper"]["end"]["code"] == 101 && stats["panics"].as_u64().unwrap() <= 1, "{stats}");
    open.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte[0], contents()[0]);
    assert!(log(&sandbox).contains("error: 100 requests panicked"), "{}", log(&sandbox));
    drop(open);
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_mount_outlives_its_broker() {
    let Some(sandbox) = sandbox("a_mount_outlives_its_broker") else { return };
    sandbox.ok(&sandbox.words("mount", ""));
    for _ in 0..2 {
        let former = server(&sandbox);
        let children = format!("/proc/{0}/task/{0}/children", former.as_raw_nonzero());
        let broker = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(broker).unwrap());
        wait_for_another(&sandbox, former);
        assert!(fs::read(sandbox.at.join("long")).unwrap() == contents());
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}

#[test]
fn a_mount_outlives_its_fetcher_and_reads_are_answered() {
    let Some(sandbox) = sandbox("a_mount_outlives_its_fetcher_and_reads_are_answered") else { return };
    let on_server = serving(&sandbox.image);
    sandbox.ok(&format!("image mount {} {}", on_server.url(PATH), sandbox.at.display()));
    for _ in 0..2 {
        let (former, fetcher) = (server(&sandbox), fetcher(&sandbox));
        let path = sandbox.at.join("long");
        let dont_need = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(fs::File::open(&path).unwrap(), 0, None, dont_need).unwrap();
        // The server finds a fetcher that does not answer while a program waits, and must not answer the program.
        kill_process(fetcher, Signal::STOP).unwrap();
        let reader = std::thread::spawn(move || fs::read(path));
        std::thread::sleep(Duration::from_millis(100));
        kill(fetcher);
        assert!(reader.join().unwrap().unwrap() == contents());
        wait_for_another(&sandbox, former);
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
}
