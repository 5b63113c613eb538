//! Disks at their memory limit, and swapoff under the limit of a memory control group.

use crate::support::writeback::{connect, pages};
use crate::support::{Sandbox, alone_with_swap, have, is_running, no_loop, sh, wait_until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn log(s: &Sandbox) -> String {
    std::fs::read_to_string(s.runtime().join("x/log")).unwrap()
}

#[test]
fn a_disk_at_its_limit_reports_that_writes_fail() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --name x --size 8M --memory 256K");
    assert_eq!(s.show("x")["state"], "ok");
    assert!(s.ok("disk list").trim_end().ends_with("ok"));
    let mut client = connect(&s);
    // The first quarter does not compress.
    let data = pages(1024, 1);
    let mut refused = data[..1 << 20].chunks(4096).enumerate().map(|(i, page)| {
        let at = i as u64 * 4096;
        client.try_write(at, page)
    });
    assert!(refused.any(|stored| !stored), "no write was refused");
    let report = s.show("x");
    assert_eq!(report["state"], "limit_reached", "{report}");
    assert!(report["events"]["last_refused_write_unix_s"].as_u64().unwrap() > 1_700_000_000);
    let shown = s.ok("disk show x");
    for says in ["limit reached: writes fail", "disk set x mem_limit=", ", the last "] {
        assert!(shown.contains(says), "{shown}");
    }
    let listed = s.ok("disk list");
    assert!(listed.trim_end().ends_with("limit reached: writes fail"), "{listed}");
    wait_until("the log has the line", || log(&s).contains("error: limit reached: writes fail: page "));
    // A lower limit than what is stored is taken, with a note.
    let ran = s.run("disk set x mem_limit=64K same_filled_pages_enabled=1");
    assert!(ran.code == 0 && ran.err.contains("note: mem_limit is 64 KiB now, and "), "{ran:?}");
    let ran = s.run("disk set x mem_limit=8M");
    assert!(ran.code == 0 && ran.err.is_empty(), "{ran:?}");
    // The state is ok, and does not forget that the contents may be damaged.
    assert_eq!(s.show("x")["state"], "ok");
    assert_eq!(s.show("x")["events"]["refused_writes"], 1);
    assert!(s.ok("disk list").contains("ok, 1 write was refused, the last "));
    assert!(s.ok("disk show x").contains("ok, but 1 write was refused, the last "));
    std::thread::sleep(std::time::Duration::from_millis(200));
    client.write(0, &data[..1 << 20]);
    wait_until("the log has the line", || log(&s).contains("writes succeed again; "));
    assert!(s.show("x")["events"]["failed_writes"].as_u64().unwrap() > 0);
}

#[test]
fn memory_for_less_than_a_page_is_refused_with_the_smallest_limit() {
    let s = Sandbox::new();
    s.run("disk create --export nbd --name x --size 8M --memory 1").fails(2, "the smallest limit is 8 KiB");
    assert_eq!(s.left(), Vec::<String>::new());
    s.ok("disk create -q --export nbd --name x --size 8M --memory 8K");
    connect(&s).write(0, &pages(4, 1)[..4096]);
    s.run("disk set x mem_limit=8191").fails(2, "the smallest limit is 8 KiB");
    assert_eq!(s.ok("disk show x -a mem_limit").trim(), "8192");
    s.ok("disk set x mem_limit=0");
}

/// Runs as root without CAP_SYS_RESOURCE, as in most containers.
#[test]
fn create_and_show_warn_that_swapping_is_not_safe() {
    let test = "create_and_show_warn_that_swapping_is_not_safe";
    let missing = (!have("setpriv")).then(|| "needs setpriv".to_string());
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let create = s.command("disk create --export loop --name x --size 8M");
    let mut reduced = Command::new("setpriv");
    reduced.args(["--bounding-set", "-sys_resource", "--"]).arg(create.get_program()).args(create.get_args());
    let output = reduced.env("PAGEFOLD_RUNTIME_DIR", s.runtime()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let warning = "swapping to this disk is not safe here: ";
    assert!(
        said.contains("pagefold: note: not safe as swap here; 'pagefold disk show x' says why"),
        "{said}"
    );
    assert!(s.ok("disk show x").contains(warning));
    assert!(s.show("x")["warnings"][0].as_str().unwrap().starts_with(warning));
    s.ok("disk remove x");
}

/// A memory control group with a process that uses more memory than the limit of the group; removed when dropped.
struct Group {
    path: PathBuf,
    limit: &'static str,
    hog: Option<Child>,
}

impl Group {
    /// `None` if groups cannot be created here.
    fn new(limit_bytes: u64) -> Option<Self> {
        let name = format!("pagefold-test-{}", std::process::id());
        let roots = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ];
        roots.into_iter().find_map(|(root, limit)| {
            let path = PathBuf::from(root).join(&name);
            std::fs::create_dir(&path).ok()?;
            let group = Group { path, limit, hog: None };
            group.set_limit(limit_bytes).then_some(group)
        })
    }

    fn set_limit(&self, limit_bytes: u64) -> bool {
        std::fs::write(self.path.join(self.limit), limit_bytes.to_string()).is_ok()
    }

    /// Starts a process in the group that fills 96 MiB and then blocks on a pipe.
    fn start_hog(&mut self) {
        let script = "echo $$ > \"$0/cgroup.procs\" && { dd if=/dev/zero bs=96M count=1 2>&- | sleep 600; }";
        let mut command = Command::new("sh");
        self.hog = Some(command.args(["-c", script]).arg(&self.path).stdin(Stdio::null()).spawn().unwrap());
    }

    /// The processes of the group.
    fn pids(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for pid in self.pids() {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        if let Some(mut hog) = self.hog.take() {
            let _ = hog.wait();
        }
        let is_gone = || std::fs::remove_dir(&self.path).is_ok();
        let _ = (0..1000).any(|_| {
            is_gone() || {
                std::thread::sleep(std::time::Duration::from_millis(10));
                false
            }
        });
    }
}

#[test]
fn remove_force_is_refused_if_swapoff_would_exceed_the_limit_of_a_memory_group() {
    let test = "remove_force_is_refused_if_swapoff_would_exceed_the_limit_of_a_memory_group";
    let missing = ["mkswap", "swapon"].iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    let _alone = alone_with_swap();
    // The group could swap to another area what the swapoff brings back.
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    let other = (swaps.lines().count() > 1).then(|| "this machine has swap".to_string());
    if let Some(why) = no_loop().map(str::to_string).or(missing).or(other) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let Some(mut group) = Group::new(32 << 20) else {
        pagefold_testkit::skipped!("{test}: needs the memory controller of control groups");
        return;
    };
    let s = Sandbox::new();
    let device = s.ok("disk create -q --size 256M --name x --export loop");
    sh("mkswap", &["-q", device.trim_end()]);
    sh("swapon", &["-p", "32000", device.trim_end()]);
    let swapped = || {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
        let line = swaps.lines().find(|l| l.split_whitespace().next() == Some(device.trim_end()));
        line.and_then(|l| l.split_whitespace().nth(3)?.parse::<u64>().ok())
    };
    group.start_hog();
    wait_until("the group has swapped", || swapped().is_some_and(|kib| kib > 48 << 10));
    let pids = group.pids();
    let ran = s.run("disk remove x --force");
    assert!(pids.iter().all(|&pid| is_running(pid)), "a process of the group was killed: {ran:?}");
    ran.fails(4, "whose limit of 32 MiB is too low by");
    assert!(swapped().is_some_and(|kib| kib > 48 << 10));
    s.ok("disk show x");
    assert!(group.set_limit(512 << 20));
    s.ok("disk remove x --force");
    assert_eq!(swapped(), None);
    assert!(pids.iter().all(|&pid| is_running(pid)));
    assert_eq!(s.left(), Vec::<String>::new());
}
