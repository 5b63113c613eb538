//! `pagefold-bench memory` runs, reports what is missing, and releases the swap area and the cgroups.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_testkit::skipped;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const ZRAM: &str = "/sys/block/zram0/initstate";
/// An unprivileged user.
const NOBODY: u32 = 65534;

/// The program with these arguments.
fn bench(words: &str) -> Command {
    command(env!("CARGO_BIN_EXE_pagefold-bench"), words)
}

fn command(program: &str, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.split_whitespace()).stdin(Stdio::null());
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Waits until a condition is true; fails after a minute.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Prevents other tests of this file from using the only zram device.
fn lock_zram() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether the machine has userfaultfd, which pagefold's side needs; if not, prints that the test is skipped.
fn has_userfaultfd(test: &str) -> bool {
    let features = pagefold_sys::uffd::kernel_features();
    if let Err(e) = &features {
        skipped!("{test}: {e}");
    }
    features.is_ok()
}

fn is_zram_free() -> bool {
    std::fs::read_to_string(ZRAM).is_ok_and(|state| state.trim() == "0")
}

/// Control groups that the process with this id has made.
fn groups_of(pid: u32) -> Vec<String> {
    let prefix = format!("pagefold-bench-{pid}-");
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let entries = roots.into_iter().flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// The reason why no memory control group can be made; `None` if one can.
fn no_groups() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts: Vec<Vec<_>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
    let one = mounts.iter().find(|m| m[2] == "cgroup" && m[3].split(',').any(|option| option == "memory"));
    let two = mounts.iter().find(|m| m[2] == "cgroup2");
    let root = match (one, two) {
        (Some(one), _) => one[1],
        (None, Some(two)) => {
            let enabled = std::fs::read_to_string(format!("{}/cgroup.subtree_control", two[1]));
            if !enabled.is_ok_and(|on| on.split_whitespace().any(|name| name == "memory")) {
                return Some("the memory controller is off".into());
            }
            two[1]
        }
        (None, None) => return Some("no memory cgroup is mounted".into()),
    };
    let group = format!("{root}/pagefold-test-{}", std::process::id());
    match std::fs::create_dir(&group).and_then(|()| std::fs::remove_dir(&group)) {
        Ok(()) => None,
        Err(e) => Some(format!("no group can be made in {root}: {e}")),
    }
}

fn json(ran: &Output) -> serde_json::Value {
    assert!(ran.status.success(), "{ran:?}");
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn a_quick_run_measures_every_row() {
    let _lock = lock_zram();
    if !has_userfaultfd("a_quick_run_measures_every_row") {
        return;
    }
    let was_free = is_zram_free();
    let mut command = bench("memory --quick --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let report = json(&child.wait_with_output().unwrap());
    let rows = report["rows"].as_array().unwrap();
    let what: Vec<_> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    for wanted in ["fill", "sequential read", "random read", "sort and group-by"] {
        assert!(what.iter().any(|what| what.starts_with(wanted)), "{wanted} is not in {what:?}");
    }
    for row in rows {
        assert!(row["ours"].as_f64().is_some_and(|ours| ours > 0.0), "{row}");
        assert_eq!(row["verdict"], "not_comparable", "a quick run has no verdict");
    }
    assert!(rows[0]["rounds"][0][0].is_number(), "{report}");
    assert_eq!(groups_of(pid), Vec::<String>::new());
    assert_eq!(is_zram_free(), was_free);
}

#[test]
fn without_root_it_reports_what_is_missing_and_measures_pagefold() {
    let test = "without_root_it_reports_what_is_missing_and_measures_pagefold";
    if !has_userfaultfd(test) {
        return;
    }
    if !is_root() {
        skipped!("{test}: only root can run it as another user");
        return;
    }
    // A copy that the user can execute. `cp` makes it, because a child that another test forks while this process has
    // the copy open for writing would make the execution fail (ETXTBSY).
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("pagefold-bench");
    assert!(
        Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_pagefold-bench"))
            .arg(&program)
            .status()
            .unwrap()
            .success()
    );
    let mut as_nobody = command(program.to_str().unwrap(), "memory --quick --only fill --json");
    let report = json(&as_nobody.uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap());
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("no meter of memory") && notes.contains("not compared with the kernel"),
        "{notes}"
    );
    let row = &report["rows"][0];
    assert!(row["ours"].as_f64().is_some_and(|ours| ours > 0.0) && row["peer"].is_null(), "{row}");
}

#[test]
fn the_swap_area_and_cgroups_are_removed_when_it_is_killed() {
    let _lock = lock_zram();
    let test = "the_swap_area_and_cgroups_are_removed_when_it_is_killed";
    if !is_root() || !is_zram_free() {
        skipped!("{test}: it needs root and a zram device that is not in use");
        return;
    }
    if let Some(why) = no_groups() {
        skipped!("{test}: {why}");
        return;
    }
    let mut command = bench("memory --quick --size 256M --rounds 100 --only fill");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let swaps = || std::fs::read_to_string("/proc/swaps").unwrap().contains("zram0");
    wait_until("it swaps and measures", || swaps() && !groups_of(child.id()).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("everything is removed", || !swaps() && is_zram_free() && groups_of(child.id()).is_empty());
}

#[test]
fn invalid_sizes_are_refused() {
    for words in ["--size 12", "--limit 4K", "--size lots"] {
        let ran = bench(&format!("memory --quick {words}")).output().unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert!(!ran.status.success(), "{stderr}");
        assert!(stderr.contains("too little") || stderr.contains("not a size"), "{stderr}");
    }
}
