//! The frozen file system of `disk save`: complete in the save, and never left frozen, also if a process is killed.

use crate::support::writeback::no_devices;
use crate::support::{Sandbox, have, kill, sh, wait_until};
use pagefold_sys::freeze::FROZEN_MAX;
use pagefold_testkit::noise;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A sandbox with a loop disk `x` and a file system on it, mounted.
struct Mounted {
    s: Sandbox,
    at: PathBuf,
}

impl Mounted {
    /// `None`, after printing the reason, if that is not possible here.
    fn new(test: &str, mkfs: &str, tools: &[&str]) -> Option<Self> {
        let own = [mkfs, "mount", "umount", "fsfreeze"];
        let missing = tools.iter().chain(&own).find(|tool| !have(tool));
        if let Some(why) = no_devices(&[]).or(missing.map(|tool| format!("needs {tool}"))) {
            pagefold_testkit::skipped!("{test}: {why}");
            return None;
        }
        let s = Sandbox::new();
        let device = s.ok("disk create -q --export loop --size 1G --name x").trim_end().to_string();
        let at = s.path("mnt");
        std::fs::create_dir(&at).unwrap();
        sh(mkfs, &["-q", &device]);
        sh("mount", &[&device, at.to_str().unwrap()]);
        Some(Mounted { s, at })
    }

    fn is_frozen(&self) -> bool {
        // It ends a freeze, and fails if there is none.
        let ended = Command::new("fsfreeze").arg("-u").arg(&self.at).stderr(Stdio::null()).status().unwrap();
        ended.success()
    }

    fn save(&self) -> Child {
        let words = format!("disk save x {} --json", self.s.path("saved").display());
        let mut command = self.s.command(&words);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Calls `run` while a thread writes files and removes them.
    fn while_written<R>(&self, run: impl FnOnce() -> R) -> R {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let contents = noise(8, 300_000);
                for number in 0u32.. {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let path = self.at.join(format!("file{}", number % 16));
                    // A disk whose server is killed returns no errors, but waits.
                    std::fs::write(&path, &contents[..contents.len() - number as usize % 9000]).unwrap();
                    if number % 3 == 0 {
                        std::fs::remove_file(&path).unwrap();
                    }
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            stop.store(true, SeqCst);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn unmount(&self) {
        sh("umount", &[self.at.to_str().unwrap()]);
    }
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// The child processes of a command; its guard is the only one.
fn guard_of(command: &Child) -> Option<i32> {
    let id = command.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_frozen_file_system_is_complete_in_the_save() {
    let test = "a_frozen_file_system_is_complete_in_the_save";
    let cases: [(&str, &[&str], &str); 2] = [
        ("mkfs.ext4", &["e2fsck", "-fn"], "ro,noload"),
        // The freeze of xfs leaves its super block, with the counters of free blocks, in the log: it is replayed first.
        ("mkfs.xfs", &["xfs_repair", "-n"], "rw"),
    ];
    for (mkfs, check, options) in cases {
        let Some(mounted) = Mounted::new(test, mkfs, &[check[0], "dumpe2fs"]) else { return };
        let (s, at) = (&mounted.s, mounted.at.to_str().unwrap());
        let file = s.path("saved");
        let report = mounted.while_written(|| {
            wait_until("a file is written", || mounted.at.join("file5").exists());
            json(&s.ok(&format!("disk save x {} --json", file.display())))
        });
        assert_eq!(report["consistency"], "frozen", "{report}");
        assert!(report["frozen_ns"].as_u64().unwrap() > 0 && report["not_frozen"].is_null(), "{report}");
        assert!(!mounted.is_frozen());
        let line = s.ok(&format!("disk save {at} {}", file.display()));
        assert!(line.contains("was frozen for"), "{line}");
        mounted.unmount();
        s.ok("disk remove x");
        let restored = s.ok(&format!("disk create -q --export loop --name y --restore {}", file.display()));
        let device = restored.trim_end();
        if mkfs == "mkfs.xfs" {
            sh("mount", &[device, at]);
            mounted.unmount();
        }
        sh(check[0], &[check[1], device]);
        if mkfs == "mkfs.ext4" {
            let features = Command::new("dumpe2fs").args(["-h", device]).output().unwrap();
            let features = String::from_utf8(features.stdout).unwrap();
            assert!(features.contains("has_journal") && !features.contains("needs_recovery"), "{features}");
        }
        sh("mount", &["-o", options, device, at]);
        assert!(std::fs::read_dir(&mounted.at).unwrap().count() > 4);
        mounted.unmount();
        s.ok("disk remove y");
        assert!(s.left() == Vec::<String>::new(), "{:?}", s.left());
    }
}

#[test]
fn a_file_system_is_not_frozen_for_a_save_into_itself() {
    let test = "a_file_system_is_not_frozen_for_a_save_into_itself";
    let Some(mounted) = Mounted::new(test, "mkfs.ext4", &[]) else { return };
    let s = &mounted.s;
    let inside = mounted.at.join("saved");
    s.run(&format!("disk save x {}", inside.display())).fails(2, "--no-freeze");
    let file = std::fs::File::create(&inside).unwrap();
    let refused = s.command("disk save x -").stdout(file).stderr(Stdio::null()).status().unwrap();
    assert_eq!(refused.code(), Some(2));
    assert!(inside.metadata().unwrap().len() == 0);
    let report = json(&s.ok(&format!("disk save x {} --no-freeze --json", inside.display())));
    assert_eq!((&report["consistency"], &report["not_frozen"]), (&"crash".into(), &"--no-freeze".into()));
    let held = s.path("saved");
    sh("fsfreeze", &["-f", mounted.at.to_str().unwrap()]);
    let other = s.run(&format!("disk save x {} --json", held.display()));
    assert!(mounted.is_frozen(), "the freeze of another program was ended");
    assert!(json(&other.out)["not_frozen"].as_str().unwrap().contains("another program"), "{other:?}");
    mounted.unmount();
    let report = json(&s.ok(&format!("disk save x {} --json", held.display())));
    assert!(report["not_frozen"].as_str().unwrap().contains("no file system is mounted"), "{report}");
    s.ok("disk remove x");
}

/// Kills the processes of a save at random moments, of which some are in the freeze.
#[test]
fn no_file_system_stays_frozen_when_a_process_of_the_save_is_killed() {
    let test = "no_file_system_stays_frozen_when_a_process_of_the_save_is_killed";
    let Some(mounted) = Mounted::new(test, "mkfs.ext4", &["e2fsck"]) else { return };
    let moments = noise(3, 64);
    mounted.while_written(|| {
        for (round, moment) in moments.into_iter().take(24).enumerate() {
            let mut save = mounted.save();
            let mut guard = None;
            wait_until("the guard is there, or the end", || {
                guard = guard_of(&save);
                guard.is_some() || save.try_wait().unwrap().is_some()
            });
            std::thread::sleep(Duration::from_micros(u64::from(moment) * 500));
            match (round % 3, guard) {
                (0, _) => kill(save.id() as i32, "KILL"),
                // It may have ended.
                (1, Some(guard)) => drop(Command::new("kill").args(["-9", &guard.to_string()]).output()),
                // Servers that die four times within a minute are not started again.
                (2, _) if round < 9 => kill(mounted.s.server_pid("x"), "KILL"),
                _ => {}
            }
            save.wait().unwrap();
            let guard = guard.map(|guard| PathBuf::from(format!("/proc/{guard}/fd/0")));
            wait_until("the guard has ended", || !guard.as_deref().is_some_and(Path::exists));
            assert!(!mounted.is_frozen(), "round {round}, after {} us", u64::from(moment) * 500);
        }
    });
    let report = json(&mounted.s.ok(&format!("disk save x {} --json", mounted.s.path("saved").display())));
    assert_eq!(report["consistency"], "frozen");
    mounted.unmount();
    let show = mounted.s.show("x");
    sh("e2fsck", &["-fn", show["device"].as_str().unwrap()]);
    mounted.s.ok("disk remove x");
}

/// A command that is stopped does not thaw: its guard does, after a second.
#[test]
fn a_guard_thaws_when_its_command_is_stopped() {
    let test = "a_guard_thaws_when_its_command_is_stopped";
    let Some(mounted) = Mounted::new(test, "mkfs.ext4", &[]) else { return };
    mounted.while_written(|| {
        for moment in [10, 20, 30, 40] {
            let mut save = mounted.save();
            let mut guard = None;
            wait_until("the guard is there, or the end", || {
                guard = guard_of(&save);
                guard.is_some() || save.try_wait().unwrap().is_some()
            });
            std::thread::sleep(Duration::from_millis(moment));
            let id = save.id().to_string();
            let _ = Command::new("kill").args(["-STOP", &id]).output();
            let guard = guard.map(|guard| PathBuf::from(format!("/proc/{guard}/fd/0")));
            // A guard that was not asked to freeze yet stays, and has nothing to thaw.
            let stopped = Instant::now();
            while guard.as_deref().is_some_and(Path::exists) && stopped.elapsed() < 2 * FROZEN_MAX {
                std::thread::sleep(Duration::from_millis(10));
            }
            let is_frozen = mounted.is_frozen();
            let _ = Command::new("kill").args(["-CONT", &id]).output();
            assert!(save.wait().unwrap().success() && !is_frozen, "stopped after {moment} ms");
        }
    });
    mounted.unmount();
    mounted.s.ok("disk remove x");
}
