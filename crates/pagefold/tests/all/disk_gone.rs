//! Disks that disappear: removed by another command, without their files or their device, or with a killed server.

use crate::support::{Sandbox, have, is_running, kill, no_loop, sh, wait_until};
use std::process::Stdio;

#[test]
fn commands_do_not_report_a_disk_that_is_being_removed_as_died() {
    for _ in 0..8 {
        let s = Sandbox::new();
        s.ok("disk create -q --export nbd --size 8M --name x");
        let start = |words: &str| {
            let mut command = s.command(words);
            (words.to_string(), command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
        };
        let mut started = vec![];
        for i in 0..12 {
            if i == 4 {
                started.push(start("disk remove x"));
            }
            started.extend([start("disk show x"), start("disk list")]);
        }
        for (words, child) in started {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!said.contains("died") && !said.contains("lost"), "{words}: {said}");
            let may_fail = words != "disk remove x";
            let code = output.status.code();
            assert!(code == Some(0) || may_fail && matches!(code, Some(3 | 4)), "{words}: {code:?} {said}");
        }
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

#[test]
fn a_server_survives_the_removal_of_its_files() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --size 8M --name x");
    let pid = s.server_pid("x");
    std::fs::remove_file(s.runtime().join("x/lock")).unwrap();
    assert!(s.ok("disk list").contains("nbd+unix://"));
    assert_eq!(s.server_pid("x"), pid);
    std::fs::remove_file(s.runtime().join("x/control.sock")).unwrap();
    s.run("disk show x").fails(4, &format!("process {pid}"));
    assert!(is_running(pid));
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    s.ok("disk list");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_foreground_command_exits_cleanly_though_its_folder_was_removed() {
    let s = Sandbox::new();
    let mut command = s.command("disk create -q --export nbd --size 8M --name x -f");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the disk exists", || s.run("disk show x").code == 0);
    std::fs::remove_dir_all(s.runtime()).unwrap();
    kill(child.id() as i32, "INT");
    wait_until("the command has ended", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !said.contains("died"), "{:?}: {said}", output.status);
}

#[test]
fn a_loop_device_that_was_detached_is_neither_shown_nor_touched() {
    let test = "a_loop_device_that_was_detached_is_neither_shown_nor_touched";
    let missing = (!have("losetup")).then(|| "needs losetup".to_string());
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let device = s.ok("disk create -q --export loop --size 8M --name x");
    let device = device.trim_end();
    sh("losetup", &["-d", device]);
    wait_until("the loop device is detached", || s.show("x")["device"] == "");
    let (shown, listed) = (s.ok("disk show x"), s.ok("disk list"));
    assert!(shown.contains("detached: ") && !shown.contains(device), "{shown}");
    assert!(listed.trim_end().ends_with("detached") && !listed.contains(device), "{listed}");
    // Another program uses the number now.
    let file = s.path("other");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    sh("losetup", &[device, file.to_str().unwrap()]);
    let removed = s.run("disk remove x --force");
    let name = device.rsplit('/').next().unwrap();
    let backing = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    sh("losetup", &["-d", device]);
    assert!(removed.code == 0 && backing.unwrap().trim_end().ends_with("/other"), "{removed:?}");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_name_of_a_dead_disk_that_is_in_use_is_refused_with_advice_that_works() {
    let test = "the_name_of_a_dead_disk_that_is_in_use_is_refused_with_advice_that_works";
    let missing = (!have("mkfs.ext4")).then(|| "needs mkfs.ext4".to_string());
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let device = s.ok("disk create -q --export loop --size 16M --name x");
    let mount = s.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device.trim_end()]);
    sh("mount", &[device.trim_end(), mount.to_str().unwrap()]);
    s.kill_disk("x");
    let refused = s.run("disk create -q --export loop --size 16M --name x");
    let advice = format!("umount '{}'", mount.display());
    refused.fails(4, &advice);
    assert!(!refused.err.contains("remove it first"), "{refused:?}");
    sh("umount", &[mount.to_str().unwrap()]);
    s.ok("disk create -q --export loop --size 16M --name x");
    s.ok("disk remove x");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_log_of_a_server_that_died_is_saved() {
    let s = Sandbox::new();
    s.ok("disk create -q --export nbd --size 8M --name x");
    // A thread of the server writes it, perhaps after the disk is ready.
    let log = s.runtime().join("x/log");
    wait_until("the log has a line", || std::fs::read_to_string(&log).is_ok_and(|log| log.ends_with('\n')));
    s.kill_disk("x");
    let ran = s.run("disk list");
    let path = s.runtime().join(".logs/x.log");
    // A line of the log says nothing of a process that was killed.
    assert!(ran.err.contains(&format!("; its log is '{}' now\n", path.display())), "{ran:?}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("serving x as nbd+unix://"));
    // Removing a disk saves no log.
    s.ok("disk create -q --export nbd --size 8M --name y");
    s.ok("disk remove y");
    assert_eq!(std::fs::read_dir(s.runtime().join(".logs")).unwrap().count(), 1);
    assert_eq!(s.left(), Vec::<String>::new());
}
