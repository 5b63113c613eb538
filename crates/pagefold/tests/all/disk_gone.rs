//! Disks that go away: removed by another command, with their files, without their device, or by death.

use crate::support::{Sandbox, have, is_running, kill, no_loop, sh, wait_until};
use std::process::Stdio;

#[test]
fn a_disk_that_another_command_removes_has_not_died() {
    for _ in 0..8 {
        let s = Sandbox::new();
        s.ok("disk create -q --door nbd --size 8M --name x");
        let ask = |words: &str| {
            let mut command = s.command(words);
            (words.to_string(), command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
        };
        let mut asked = vec![];
        for i in 0..12 {
            if i == 4 {
                asked.push(ask("disk remove x"));
            }
            asked.extend([ask("disk show x"), ask("disk list")]);
        }
        for (words, child) in asked {
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
fn a_server_lives_though_the_files_of_its_folder_are_removed() {
    let s = Sandbox::new();
    s.ok("disk create -q --door nbd --size 8M --name x");
    let pid = s.server_pid("x");
    std::fs::remove_file(s.runtime().join("x/lock")).unwrap();
    assert!(s.ok("disk list").contains("nbd+unix://"));
    assert_eq!(s.server_pid("x"), pid);
    std::fs::remove_file(s.runtime().join("x/control.sock")).unwrap();
    s.run("disk show x").fails(4, &format!("process {pid}"));
    assert!(is_running(pid));
    kill(pid, "TERM");
    wait_until("the server has ended", || !is_running(pid));
    s.ok("disk list");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn a_server_in_the_foreground_ends_in_order_without_its_folder() {
    let s = Sandbox::new();
    let mut command = s.command("disk create -q --door nbd --size 8M --name x -f");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the disk is there", || s.run("disk show x").code == 0);
    std::fs::remove_dir_all(s.runtime()).unwrap();
    kill(child.id() as i32, "INT");
    wait_until("the command has ended", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !said.contains("died"), "{:?}: {said}", output.status);
}

#[test]
fn a_detached_loop_device_is_not_shown_and_not_touched() {
    let test = "a_detached_loop_device_is_not_shown_and_not_touched";
    let missing = (!have("losetup")).then(|| "needs losetup".to_string());
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let device = s.ok("disk create -q --door loop --size 8M --name x");
    let device = device.trim_end();
    sh("losetup", &["-d", device]);
    wait_until("it is detached", || s.show("x")["device"] == "");
    let (shown, listed) = (s.ok("disk show x"), s.ok("disk list"));
    assert!(shown.contains("detached: ") && !shown.contains(device), "{shown}");
    assert!(listed.trim_end().ends_with("detached") && !listed.contains(device), "{listed}");
    // The number belongs to somebody else now.
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
fn the_log_of_a_server_that_died_is_kept() {
    let s = Sandbox::new();
    s.ok("disk create -q --door nbd --size 8M --name x");
    let pid = s.server_pid("x");
    kill(pid, "KILL");
    wait_until("the server is gone", || !is_running(pid));
    let ran = s.run("disk list");
    let path = s.runtime().join(".logs/x.log");
    assert!(ran.err.contains(&format!("its log, now '{}', ends with: ", path.display())), "{ran:?}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("serving x as nbd+unix://"));
    // What is removed in order leaves nothing.
    s.ok("disk create -q --door nbd --size 8M --name y");
    s.ok("disk remove y");
    assert_eq!(std::fs::read_dir(s.runtime().join(".logs")).unwrap().count(), 1);
    assert_eq!(s.left(), Vec::<String>::new());
}
