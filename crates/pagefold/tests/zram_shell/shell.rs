//! `zram-shell` and `zram-tree`: disks at the paths of the kernel's zram. They need root, FUSE and loop devices.

use crate::support::{Ran, Sandbox, have, kill, no_loop, wait_until};
use pagefold_testkit::skipped;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A sandbox; `None`, after printing the reason, if the test cannot run here.
pub fn sandbox(test: &str, tools: &[&str]) -> Option<Sandbox> {
    let missing = tools.iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        skipped!("{test}: {why}");
        return None;
    }
    Some(Sandbox::new())
}

/// Runs a script in a zram shell.
pub fn shell(s: &Sandbox, options: &str, script: &str) -> Ran {
    let mut command = s.command(&format!("zram-shell {options} -- sh -c"));
    command.arg(script);
    Ran::new(script, command.output().unwrap())
}

/// The output of a script that succeeds in a zram shell.
pub fn shell_ok(s: &Sandbox, options: &str, script: &str) -> String {
    let ran = shell(s, options, script);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
fn devices_are_created_and_removed_by_the_files_of_zram_control() {
    let Some(s) = sandbox("devices_are_created_and_removed_by_the_files_of_zram_control", &[]) else {
        return;
    };
    let out = shell_ok(
        &s,
        "",
        r#"set -e
        test ! -e /sys/block/zram0
        test ! -e /dev/zram0
        a=$(cat /sys/class/zram-control/hot_add)
        b=$(cat /sys/class/zram-control/hot_add)
        echo $a $b
        test -b /dev/zram0
        test -b /dev/zram1
        echo 64M > /sys/block/zram1/disksize
        cat /sys/block/zram1/disksize /sys/block/zram1/size
        head -c 4096 /dev/zero | tr '\0' x > /dev/zram1
        sync
        set -- $(cat /sys/block/zram1/mm_stat)
        echo $# $1
        cat /sys/block/zram0/initstate /sys/block/zram1/initstate
        echo 0 > /sys/class/zram-control/hot_remove
        test ! -e /sys/block/zram0
        test ! -e /dev/zram0
        cat /sys/class/zram-control/hot_add"#,
    );
    assert_eq!(out, "0 1\n67108864\n131072\n9 4096\n0\n1\n0\n");
    // The disks stay, and have the same numbers in the next shell.
    assert_eq!(s.left(), ["zram0", "zram1"]);
    let script = "head -c 3 /dev/zram1; ls -d /sys/block/zram*; cat /sys/class/zram-control/hot_add";
    assert_eq!(shell_ok(&s, "--rm", script), "xxx/sys/block/zram0\n/sys/block/zram1\n2\n");
    // A shell removes only its own disks.
    assert_eq!(s.left(), ["zram0", "zram1"]);
    shell_ok(&s, "--rm", "rmmod zram");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_device_is_reset_and_gets_another_size() {
    let Some(s) = sandbox("a_device_is_reset_and_gets_another_size", &[]) else { return };
    let out = shell_ok(
        &s,
        "--rm",
        r#"set -e
        modprobe zram
        cd /sys/block/zram0
        echo zstd > comp_algorithm
        grep -o '\[.*\]' comp_algorithm
        echo 32M > disksize
        echo x > /dev/zram0
        echo 1 > reset
        cat disksize initstate size
        echo 16M > disksize
        cat disksize"#,
    );
    assert_eq!(out, "[zstd]\n0\n0\n0\n16777216\n");
}

#[test]
fn errors_are_those_of_zram() {
    let Some(s) = sandbox("errors_are_those_of_zram", &["python3"]) else { return };
    let script = r#"
import errno, os
def store(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
        return 'ok'
    except OSError as e:
        return errno.errorcode[e.errno]
    finally:
        os.close(fd)
def opened(path, flags):
    try:
        os.close(os.open(path, flags))
        return 'ok'
    except OSError as e:
        return errno.errorcode[e.errno]
control = '/sys/class/zram-control/'
n = open(control + 'hot_add').read().strip()
disk = '/sys/block/zram' + n + '/'
print(store(disk + 'disksize', '0'), store(disk + 'disksize', '8M'), store(disk + 'disksize', '8M'))
print(store(disk + 'reset', '0'), store(disk + 'mem_used_max', '5'), store(disk + 'writeback', 'idle'))
print(opened(disk + 'mm_stat', os.O_WRONLY), opened(disk + 'reset', os.O_RDONLY), opened(disk + 'x', os.O_RDONLY))
print(store(control + 'hot_remove', '77'), store(control + 'hot_remove', '-1'), store(control + 'hot_remove', 'x'))
device = os.open('/dev/zram' + n, os.O_RDWR)
print(store(control + 'hot_remove', n), store(disk + 'reset', '1'))
os.close(device)
print(store(disk + 'reset', '1'), store(control + 'hot_remove', n + '\n'))
"#;
    let mut command = s.command("zram-shell -- python3 -c");
    let ran = Ran::new("python3", command.arg(script).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!(lines[0], "EINVAL ok EBUSY");
    assert_eq!(lines[1], "EINVAL EINVAL ENODEV");
    assert_eq!(lines[2], "EACCES EACCES ENOENT");
    assert_eq!(lines[3], "ENODEV EINVAL EINVAL");
    assert_eq!(lines[4], "EBUSY EBUSY");
    assert_eq!(lines[5], "ok ok");
    assert!(ran.err.contains("open in process"), "{ran:?}");
}

#[test]
fn debugfs_has_the_states_of_pages_and_the_classes_of_pools() {
    let test = "debugfs_has_the_states_of_pages_and_the_classes_of_pools";
    let Some(s) = sandbox(test, &["yes"]) else { return };
    if !Path::new("/sys/kernel/debug").is_dir() {
        return skipped!("{test}: the kernel has no debugfs");
    }
    let out = shell_ok(
        &s,
        "--rm",
        r#"set -e
        modprobe zram
        cd /sys/kernel/debug
        ls zram zsmalloc
        cat zram/zram0/block_state 2>/dev/null || echo none
        echo 64M >/sys/block/zram0/disksize
        yes some text | head -c 40960 >/dev/zram0
        sync
        cut -c 1-13,34- zram/zram0/block_state | tail -n 1
        awk '$1 == "Total" { print $14 }' zsmalloc/zram0/classes"#,
    );
    assert_eq!(out, "zram:\nzram0\n\nzsmalloc:\nnone\n           9 ......\n10\n");
}

#[test]
fn modprobe_and_rmmod_create_and_remove_disks() {
    let Some(s) = sandbox("modprobe_and_rmmod_create_and_remove_disks", &[]) else { return };
    let out = shell_ok(
        &s,
        "",
        r#"set -e
        modprobe zram num_devices=2
        modprobe zram num_devices=7
        ls -d /sys/block/zram*
        exec 3< /dev/zram1
        if rmmod zram 2>/dev/null; then echo removed; fi
        ls -d /sys/block/zram*
        exec 3<&-
        modprobe -qr zram
        ls -d /sys/block/zram* 2>/dev/null || echo none
        modprobe -a -- zram num_devices=000
        if modprobe zram num_devices=8x 2>/dev/null; then echo loaded; fi
        if modprobe -rx zram 2>/dev/null; then echo removed; fi
        ls -d /sys/block/zram* 2>/dev/null || echo none
        modprobe -b zram num_devices=08
        set -- /sys/block/zram*
        echo $#
        rmmod -f zram"#,
    );
    assert_eq!(out, "/sys/block/zram0\n/sys/block/zram1\n/sys/block/zram1\nnone\nnone\n8\n");
    assert_eq!(s.left(), Vec::<String>::new());
    let mut command = s.command("zram-shell -- sh -c");
    let ran = Ran::new("PATH", command.arg("echo $PATH").env("PATH", "").output().unwrap());
    assert!(
        ran.code == 0
            && ran.out.ends_with("/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"),
        "{ran:?}"
    );
    // Other modules are for the real program.
    let other = shell(&s, "", "modprobe pagefold_no_such_module");
    assert!(other.code != 0 && !other.err.is_empty(), "{other:?}");
}

#[test]
fn other_devices_and_classes_are_as_outside() {
    let Some(s) = sandbox("other_devices_and_classes_are_as_outside", &[]) else { return };
    let script =
        "for e in /sys/block/*; do echo $e $(readlink $e); done; ls /sys/class /dev; ls -d /dev/pts/ptmx";
    let wanted = |text: String| -> Vec<String> {
        let lines = text.lines().filter(|l| !l.contains("zram")).map(str::to_string);
        // A test that runs at the same time may add a loop device.
        lines.filter(|l| !l.contains("loop")).collect()
    };
    let outside = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
    let outside = wanted(String::from_utf8(outside.stdout).unwrap());
    assert_eq!(wanted(shell_ok(&s, "--rm", &format!("modprobe zram; {script}"))), outside);
}

#[test]
fn a_shell_does_without_zram_in_the_kernel_and_without_overlays() {
    let test = "a_shell_does_without_zram_in_the_kernel_and_without_overlays";
    let Some(s) = sandbox(test, &["unshare", "mount"]) else { return };
    // The kernel refuses an overlay over two others.
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = format!(
        "set -e
        mkdir sys dev class && mount --bind /sys sys && mount -t tmpfs none dev && mount -t tmpfs none class
        for c in block mem; do mkdir class/$c; mount --bind /sys/class/$c class/$c; done
        mount --rbind class /sys/class
        for i in 1 2; do
            mkdir dev/upper$i dev/work$i
            mount -t overlay -o lowerdir=/dev,upperdir=$PWD/dev/upper$i,workdir=$PWD/dev/work$i none /dev
        done
        # A device of the kernel's zram, and another that is a mount.
        rm -f /dev/zram0 /dev/zram1
        mknod /dev/zram0 b 240 77
        touch /dev/zram1
        mount --bind /dev/zram0 /dev/zram1
        exec {program} zram-shell --rm -- sh -ec '
            test ! -e /sys/class/zram-control/uevent
            test ! -e /dev/zram0
            test ! -e /dev/zram1
            modprobe zram
            test $(stat -c %t /dev/zram0) = 7
            echo 1M >/sys/block/zram0/disksize
            cat /sys/class/block/loop0/size >/dev/null
            head -c 2 /dev/zram0 >/dev/null
            test -c /dev/null && test -d /dev/pts && echo done'"
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env("PAGEFOLD_RUNTIME_DIR", s.runtime());
    let ran = Ran::new("unshare", command.current_dir(s.path("")).output().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{ran:?}");
    assert!(ran.err.contains("using a tmpfs"), "{ran:?}");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_devices_of_the_host_are_not_in_a_shell() {
    let test = "the_devices_of_the_host_are_not_in_a_shell";
    let Some(s) = sandbox(test, &["unshare", "mount"]) else { return };
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = format!(
        "set -e
        mkdir dev && mount -t tmpfs none dev && mkdir dev/upper dev/work
        mount -t overlay -o lowerdir=/dev,upperdir=$PWD/dev/upper,workdir=$PWD/dev/work none /dev
        rm -f /dev/zram*
        mknod /dev/zram0 b 240 77
        touch /dev/zram1
        mount --bind /dev/zram0 /dev/zram1
        {program} zram-shell -- sh -c 'test ! -e /dev/zram0 && test ! -e /dev/zram1 && echo none'
        # An entry that the shell cannot remove.
        mkdir /dev/zram7
        {program} zram-shell -- echo started || echo $?"
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env("PAGEFOLD_RUNTIME_DIR", s.runtime());
    let ran = Ran::new("unshare", command.current_dir(s.path("")).output().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (0, "none\n125\n"), "{ran:?}");
    assert!(ran.err.contains("/dev/zram7 is not the device of a disk"), "{ran:?}");
}

#[test]
fn nothing_of_a_shell_is_seen_outside() {
    let Some(s) = sandbox("nothing_of_a_shell_is_seen_outside", &[]) else { return };
    let mut child = start(&s, "zram-shell -- sh -c", Some("modprobe zram && touch ready && exec sleep 1000"));
    wait_until("the disk is there", || s.path("ready").exists());
    let runtime = s.runtime();
    assert!(!mounts().contains(runtime.join(".shell").to_str().unwrap()), "{}", mounts());
    assert_eq!(std::fs::read_dir(runtime.join(".shell")).unwrap().count(), 0);
    let device = PathBuf::from(s.show("zram0")["device"].as_str().unwrap());
    let name = device.file_name().unwrap();
    assert!(!Path::new("/sys/devices/virtual/block").join(name).join("disksize").exists());
    // SIGTERM is passed on to the command.
    kill(child.id() as i32, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(s.left(), ["zram0"]);
    s.ok("disk remove zram0");
}

#[test]
fn disks_of_other_commands_appear_and_disappear() {
    let Some(s) = sandbox("disks_of_other_commands_appear_and_disappear", &[]) else { return };
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = format!(
        "{program} -q disk create --export loop --size 8M --name zram4 >/dev/null
        {program} -q disk create --export loop --size 8M --name other >/dev/null
        n=0; until test -b /dev/zram4; do n=$((n+1)); test $n -lt 600 || exit 1; sleep 0.1; done
        cat /sys/block/zram4/disksize; ls -d /sys/block/zram*
        {program} -q disk remove zram4 other || exit 2
        n=0; while test -b /dev/zram4; do n=$((n+1)); test $n -lt 600 || exit 3; sleep 0.1; done"
    );
    assert_eq!(shell_ok(&s, "", &script), "8388608\n/sys/block/zram4\n");
    assert_eq!(s.left(), Vec::<String>::new());
}

/// A command that holds the lock of the runtime folder reads `/sys/block`, so the tree must not wait for that lock.
#[test]
fn the_tree_can_be_read_by_the_holder_of_the_lock() {
    let test = "the_tree_can_be_read_by_the_holder_of_the_lock";
    let Some(s) = sandbox(test, &["flock"]) else { return };
    let lock = s.runtime().join(".lock");
    let script = format!(
        "cat /sys/class/zram-control/hot_add
        flock {} sh -c 'ls -d /sys/block/zram*; cat /sys/block/zram0/disksize'",
        lock.display()
    );
    assert_eq!(shell_ok(&s, "--rm", &script), "0\n/sys/block/zram0\n0\n");
}

#[test]
fn a_device_that_fails_is_reported_once_and_tried_again() {
    let Some(s) = sandbox("a_device_that_fails_is_reported_once_and_tried_again", &[]) else { return };
    let program = env!("CARGO_BIN_EXE_pagefold");
    // The sleep lets the shell look for disks a few times.
    let script = format!(
        "mkdir /dev/zram4
        {program} -q disk create --export loop --size 8M --name zram4 >/dev/null
        sleep 3.5
        rmdir /dev/zram4
        n=0; until test -b /dev/zram4; do n=$((n+1)); test $n -lt 600 || exit 1; sleep 0.1; done
        cat /sys/block/zram4/disksize"
    );
    let ran = shell(&s, "", &script);
    assert_eq!((ran.code, ran.out.as_str()), (0, "8388608\n"), "{ran:?}");
    assert_eq!(ran.err.matches("removing /dev/zram4").count(), 1, "{ran:?}");
    s.ok("disk remove zram4");
}

#[test]
fn the_death_of_a_shells_tree_leaves_the_disk_working() {
    let Some(s) = sandbox("the_death_of_a_shells_tree_leaves_the_disk_working", &[]) else { return };
    let script = "modprobe zram && echo 8M > /sys/block/zram0/disksize && touch ready && exec sleep 1000";
    let mut child = start(&s, "zram-shell -- sh -c", Some(script));
    wait_until("the disk has a size", || s.path("ready").exists());
    let device = PathBuf::from(s.show("zram0")["device"].as_str().unwrap());
    let mut sleeping = None;
    wait_until("the shell runs sleep", || {
        sleeping = sleep_of(child.id());
        sleeping.is_some()
    });
    let sleeping = sleeping.unwrap();
    kill(child.id() as i32, "KILL");
    child.wait().unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&device).unwrap();
    file.write_all_at(&[7; 4096], 8192).unwrap();
    file.sync_all().unwrap();
    let mut back = [0; 4096];
    file.read_exact_at(&mut back, 8192).unwrap();
    assert_eq!(back, [7; 4096]);
    drop(file);
    kill(sleeping, "KILL");
    assert_eq!(shell_ok(&s, "", "cat /sys/block/zram0/disksize; rmmod zram"), "8388608\n");
    assert_eq!(s.left(), Vec::<String>::new());
}

/// As `bwrap` and `PrivateMounts=` of systemd make them.
#[test]
fn a_program_with_mounts_of_its_own_sees_the_files_of_new_devices() {
    let test = "a_program_with_mounts_of_its_own_sees_the_files_of_new_devices";
    let Some(s) = sandbox(test, &["unshare"]) else { return };
    let script = "unshare -m --propagation slave sh -ec '
        cat /sys/class/zram-control/hot_add
        echo 8M >/sys/block/zram0/disksize
        cat /sys/block/zram0/disksize
        echo 0 >/sys/class/zram-control/hot_remove
        test ! -e /sys/block/zram0'";
    assert_eq!(shell_ok(&s, "", script), "0\n8388608\n");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_tree_is_served_at_a_directory_until_a_signal() {
    let Some(s) = sandbox("the_tree_is_served_at_a_directory_until_a_signal", &[]) else { return };
    let dir = s.path("tree");
    std::fs::create_dir(&dir).unwrap();
    let words = format!("zram-tree {}", dir.display());
    let mut child = start(&s, &words, None);
    wait_until("the tree is mounted", || dir.join("class/zram-control/hot_add").exists());
    assert_eq!(std::fs::read_to_string(dir.join("class/zram-control/hot_add")).unwrap(), "0\n");
    std::fs::write(dir.join("zram0/disksize"), "1M").unwrap();
    assert_eq!(std::fs::read_to_string(dir.join("block/zram0/disksize")).unwrap(), "1048576\n");
    assert_eq!(std::fs::read_to_string(dir.join("zram0/size")).unwrap(), "2048\n");
    s.run(&words).fails(4, "mounted");
    // Any user may read here: the process that serves has no rights.
    let found = std::process::Command::new("pgrep")
        .args(["-P", &child.id().to_string(), "pagefold-tree"])
        .output()
        .unwrap();
    let pid = String::from_utf8(found.stdout).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap();
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    assert!(!status.contains("\nUid:\t0"), "{status}");
    kill(child.id() as i32, "TERM");
    assert!(child.wait().unwrap().success());
    assert!(!mounts().contains(dir.to_str().unwrap()));
    s.ok("disk remove zram0");

    // After SIGKILL the mount is dead. It is cleared as any dead FUSE mount.
    let mut child = start(&s, &words, None);
    wait_until("the tree is mounted", || dir.join("class").exists());
    kill(child.id() as i32, "KILL");
    child.wait().unwrap();
    crate::support::sh("umount", &[dir.to_str().unwrap()]);
}

#[test]
fn an_open_device_is_not_removed_without_force() {
    let Some(s) = sandbox("an_open_device_is_not_removed_without_force", &[]) else { return };
    let device = s.ok("disk create --size 8M --name x --export loop");
    let file = std::fs::File::open(device.trim_end()).unwrap();
    let refused = s.run("disk remove x");
    refused.fails(4, &format!("open in process {}", std::process::id()));
    s.ok("disk remove x --force");
    drop(file);
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_exit_code_and_errors_of_a_shell() {
    let Some(s) = sandbox("the_exit_code_and_errors_of_a_shell", &[]) else { return };
    assert_eq!(shell(&s, "", "exit 17").code, 17);
    assert_eq!(shell(&s, "", "kill -9 $$").code, 137);
    s.run("zram-shell -- /nonexistent/program").fails(127, "/nonexistent/program");
    s.run("zram-shell -- /dev/null").fails(126, "/dev/null");
    let program = env!("CARGO_BIN_EXE_pagefold");
    let nested = shell(&s, "", &format!("{program} zram-shell -- true"));
    nested.fails(125, "zram shell already");
    let user = Sandbox::for_user(12345);
    user.run("zram-shell").fails(125, "root");
    user.run("zram-tree /mnt").fails(5, "root");
}

/// Starts a command in the directory of the sandbox.
fn start(s: &Sandbox, words: &str, script: Option<&str>) -> Child {
    let mut command = s.command(words);
    command.args(script).current_dir(s.path("")).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// The child of a process that runs `sleep`.
fn sleep_of(pid: u32) -> Option<i32> {
    let mut children = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
    }
    let is_sleep =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c == "sleep\n");
    children.into_iter().find(is_sleep)
}
