//! What becomes of disks when nobody receives what commands and servers print.

use crate::support::{Ran, Sandbox, have, is_running, kill, no_loop, sh, wait_until};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The end of a pipe for writing, whose other end is closed.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full_device() -> Stdio {
    std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn a_disk_whose_device_nobody_hears_of_is_not_made() {
    for words in ["disk create --size 8M --door nbd", "disk create --size 8M --door nbd -f"] {
        for (target, says) in [(closed_pipe(), "Broken pipe"), (full_device(), "No space left on device")] {
            let s = Sandbox::new();
            let mut command = s.command(words);
            command.stdout(target).stderr(Stdio::piped());
            let ran = Ran::new(words, command.spawn().unwrap().wait_with_output().unwrap());
            ran.fails(1, says);
            assert_eq!(s.left(), Vec::<String>::new(), "{ran:?}");
        }
    }
}

#[test]
fn a_server_in_the_foreground_does_not_need_its_standard_error() {
    for broken in [closed_pipe, full_device] {
        let s = Sandbox::new();
        let mut command = s.command("disk create --size 8M --name x --door nbd -f");
        let mut child = command.stdout(Stdio::piped()).stderr(broken()).spawn().unwrap();
        let mut device = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut device).unwrap();
        assert!(device.starts_with("nbd+unix://"), "{device:?}");
        let pid = s.server_pid("x");
        kill(child.id() as i32, "INT");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(!is_running(pid));
        assert_eq!(s.left(), Vec::<String>::new());
    }
}

/// As when a terminal is stopped: what is written waits for ever.
#[test]
fn a_standard_error_that_takes_nothing_does_not_keep_a_server_from_ending() {
    let s = Sandbox::new();
    let (reader, writer) = std::io::pipe().unwrap();
    // It is full when a thread that writes to it stands still.
    let mut filler = writer.try_clone().unwrap();
    std::thread::spawn(move || while std::io::Write::write_all(&mut filler, &[b'x'; 4096]).is_ok() {});
    wait_until("the pipe is full", || rustix::io::ioctl_fionread(&reader).unwrap() >= 65536);
    let mut command = s.command("disk create -q --size 8M --name x --door nbd -f");
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    wait_until("the disk is there", || s.run("disk show x").code == 0);
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has ended", || !is_running(pid));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(s.left(), Vec::<String>::new());
    drop(reader);
}

/// A runtime folder with hardly any room, which is unmounted in the end.
struct SmallFolder(PathBuf);

impl SmallFolder {
    fn new(s: &Sandbox) -> Self {
        std::fs::create_dir(s.runtime()).unwrap();
        sh("mount", &["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", s.runtime().to_str().unwrap()]);
        SmallFolder(s.runtime())
    }

    /// Leaves no room for a single byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallFolder {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", self.0.to_str().unwrap()]).status();
    }
}

#[test]
fn a_mounted_disk_outlives_a_log_without_room() {
    let test = "a_mounted_disk_outlives_a_log_without_room";
    let missing = ["mkfs.ext4", "mount"].iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let folder = SmallFolder::new(&s);
    let device = s.ok("disk create --size 64M --name x --door loop");
    let (device, mount) = (device.trim_end(), s.path("mnt"));
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device]);
    sh("mount", &[device, mount.to_str().unwrap()]);
    std::fs::write(mount.join("file"), "some text").unwrap();
    let pid = s.server_pid("x");
    folder.fill();
    // Each signal is answered by a line in the log, because the disk is in use. The last page of the log has
    // room for some of them.
    for _ in 0..100 {
        kill(pid, "TERM");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    s.ok("disk show x");
    assert!(is_running(pid));
    sh("umount", &[mount.to_str().unwrap()]);
    sh("mount", &[device, mount.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(mount.join("file")).unwrap(), "some text");
    sh("umount", &[mount.to_str().unwrap()]);
    // It ends in order, and says so without room, too.
    kill(pid, "TERM");
    wait_until("the server has ended", || !is_running(pid));
    let ran = s.run("disk list");
    assert!(ran.code == 0 && ran.err.contains("has ended; cleaned up"), "{ran:?}");
    assert!(!s.runtime().join(".logs").exists());
    std::fs::remove_file(s.runtime().join("filler")).unwrap();
    assert_eq!(s.left(), Vec::<String>::new());
    drop(folder);
}
