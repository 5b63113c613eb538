//! `pagefold bench memory`: that it runs, says what is missing, and gives back what it took.

use crate::support::{Ran, Sandbox, is_root, wait_until};
use pagefold_testkit::skipped;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard};

const ZRAM: &str = "/sys/block/zram0/initstate";
/// Another user than the one that runs the tests, if that is root.
const NOBODY: u32 = 65534;

/// There is one zram device for all tests here.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether the machine has what our side needs; says so if not.
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

/// Control groups that a process with this number has made.
fn groups_of(pid: u32) -> Vec<String> {
    let prefix = format!("pagefold-bench-{pid}-");
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let entries = roots.into_iter().flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Why no memory control group can be made here, if so.
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

fn json(ran: &Ran) -> serde_json::Value {
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn a_quick_run_measures_every_row() {
    let _alone = alone();
    if !has_userfaultfd("a_quick_run_measures_every_row") {
        return;
    }
    let s = Sandbox::new();
    let was_free = is_zram_free();
    let mut command = s.command("bench memory --quick --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let told = json(&Ran::new("bench memory --quick --json", child.wait_with_output().unwrap()));
    let rows = told["rows"].as_array().unwrap();
    let what: Vec<_> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    for wanted in
        ["fill", "sequential read", "random read", "sort and group-by", "two threads", "page of zeroes"]
    {
        assert!(what.iter().any(|what| what.starts_with(wanted)), "{wanted} is not in {what:?}");
    }
    for row in rows {
        assert!(row["ours"].as_f64().is_some_and(|ours| ours > 0.0), "{row}");
        assert_eq!(row["verdict"], "not_comparable", "a quick run has no verdict");
    }
    assert!(told["rounds"]["pass"]["pagefold"]["fill_ns"][0].is_number(), "{told}");
    assert_eq!(groups_of(pid), Vec::<String>::new());
    assert_eq!(is_zram_free(), was_free);
}

#[test]
fn without_rights_it_says_what_is_missing_and_measures_ours() {
    let test = "without_rights_it_says_what_is_missing_and_measures_ours";
    if !has_userfaultfd(test) {
        return;
    }
    if !is_root() {
        skipped!("{test}: only root can run it as somebody else");
        return;
    }
    let s = Sandbox::for_user(NOBODY);
    let told = json(&s.run("bench memory --quick --only fill --json"));
    let notes = told["notes"].to_string();
    assert!(
        notes.contains("no meter of memory") && notes.contains("not compared with the kernel"),
        "{notes}"
    );
    let row = &told["rows"][0];
    assert!(row["ours"].as_f64().is_some_and(|ours| ours > 0.0) && row["peer"].is_null(), "{row}");
}

#[test]
fn everything_is_given_back_when_it_is_killed() {
    let _alone = alone();
    let test = "everything_is_given_back_when_it_is_killed";
    if !is_root() || !is_zram_free() {
        skipped!("{test}: it needs root and a zram device that nobody uses");
        return;
    }
    if let Some(why) = no_groups() {
        skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let mut child = s.quietly("bench memory --quick --size 256M --rounds 100 --only fill").spawn().unwrap();
    let swaps = || std::fs::read_to_string("/proc/swaps").unwrap().contains("zram0");
    wait_until("it swaps and measures", || swaps() && !groups_of(child.id()).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("all is given back", || !swaps() && is_zram_free() && groups_of(child.id()).is_empty());
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let s = Sandbox::new();
    for words in ["--size 12", "--limit 4K", "--size lots"] {
        let ran = s.run(&format!("bench memory --quick {words}"));
        assert_ne!(ran.code, 0, "{ran:?}");
        assert!(ran.err.contains("too little") || ran.err.contains("not a size"), "{ran:?}");
    }
}
