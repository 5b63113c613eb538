//! `disk unit`, and the options of `disk create` for its units. The units themselves run in `tests/guest/systemd-disk.sh`.

use crate::support::{Nbd, Sandbox, have};
use std::process::Command;

#[test]
fn a_saved_disk_is_restored_if_it_exists() {
    let s = Sandbox::new();
    let file = s.path("saved");
    let create =
        format!("disk create -q --export nbd --name x --size 8M --restore-if-exists {}", file.display());
    let client = || Nbd::connect(&s.runtime().join("x/nbd.sock"));
    s.ok(&create);
    client().write(4096, &[7; 4096]);
    s.ok(&format!("disk save x {}", file.display()));
    s.ok("disk remove --force x");
    s.ok(&create);
    let mut page = [0; 4096];
    client().read(4096, &mut page);
    assert_eq!(page, [7; 4096]);
    s.ok("disk remove --force x");
    // A save beside it, of which the file is the newest name, means that the file was there.
    let second = s.path("saved.0123456789abcdef0123456789abcdef");
    std::fs::rename(&file, &second).unwrap();
    s.run(&create).fails(6, "is missing, but");
    std::fs::rename(&second, &file).unwrap();
    // A damaged file is not taken for a missing one, and neither is one in a folder that is missing.
    std::fs::write(&file, "no saved disk").unwrap();
    s.run(&create).fails(2, "not a saved disk");
    let missing = s.path("missing/saved");
    let words = format!("disk create --name x --size 8M --restore-if-exists {}", missing.display());
    s.run(&words).fails(3, "missing/saved");
    assert!(s.left().is_empty());
}

#[test]
fn a_running_disk_of_the_same_control_group_is_used() {
    let s = Sandbox::new();
    let create = "disk create -q --export nbd --name x --size 8M --unless-running";
    let device = s.ok(create);
    let server = s.server_pid("x");
    assert_eq!((s.ok(create), s.server_pid("x")), (device, server));
    s.ok("disk remove x");
}

#[test]
fn a_disk_has_a_link_to_its_device() {
    if let Some(why) = crate::support::no_loop() {
        pagefold_testkit::skipped!("a_disk_has_a_link_to_its_device: {why}");
        return;
    }
    let s = Sandbox::new();
    let device = s.ok("disk create -q --export loop --name x --size 8M");
    let link = s.runtime().join("x/device");
    assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some(device.trim_end()));
    s.ok("disk remove x");
    assert!(s.left().is_empty());
}

#[test]
fn units_are_written_to_a_folder_and_systemd_accepts_them() {
    let s = Sandbox::new();
    let (folder, saves) = (s.path("units"), s.path("a $b %n"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::create_dir(&saves).unwrap();
    let install = format!("--install={}", folder.display());
    let save_to = format!("--save-to={}/saved", saves.display());
    let mut command = s.command("disk unit log --size 64M --every 10m --mount /var/log");
    let ran = command.args([&save_to, &install]).output().unwrap();
    let out = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success() && out.contains("systemctl enable --now var-log.mount"), "{out}");
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 4, "{names:?}");
    if !have("systemd-analyze") {
        pagefold_testkit::skipped!(
            "units_are_written_to_a_folder_and_systemd_accepts_them: needs systemd-analyze"
        );
        return;
    }
    let checked = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&names)
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.display()))
        .output()
        .unwrap();
    let err = String::from_utf8(checked.stderr).unwrap();
    let ours: Vec<_> =
        err.lines().filter(|line| line.contains("pagefold-") || line.contains("var-log")).collect();
    assert!(ours.is_empty() && checked.status.success(), "{err}");
}
