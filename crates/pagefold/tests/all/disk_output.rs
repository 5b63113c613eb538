//! Disks whose commands or servers cannot write their output: closed pipes, full file systems, blocked terminals.

use crate::support::{Ran, Sandbox, have, is_running, kill, no_loop, sh, wait_until};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The writing end of a pipe whose reading end is closed.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full_device() -> Stdio {
    std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn create_fails_and_leaves_nothing_if_the_device_cannot_be_printed() {
    for words in ["disk create --size 8M --export nbd", "disk create --size 8M --export nbd -f"] {
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
        let mut command = s.command("disk create --size 8M --name x --export nbd -f");
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

/// Writes to a full pipe that nobody reads block for ever, as to a stopped terminal.
#[test]
fn a_server_exits_though_its_standard_error_blocks() {
    let s = Sandbox::new();
    let (reader, writer) = std::io::pipe().unwrap();
    // Fill it by a thread, which then blocks.
    let mut filler = writer.try_clone().unwrap();
    std::thread::spawn(move || while std::io::Write::write_all(&mut filler, &[b'x'; 4096]).is_ok() {});
    wait_until("the pipe is full", || rustix::io::ioctl_fionread(&reader).unwrap() >= 65536);
    let mut command = s.command("disk create -q --size 8M --name x --export nbd -f");
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    wait_until("the disk exists", || s.run("disk show x").code == 0);
    let pid = s.server_pid("x");
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(s.left(), Vec::<String>::new());
    drop(reader);
}

/// A runtime folder on a small tmpfs, which is unmounted when dropped.
struct SmallFolder(PathBuf);

impl SmallFolder {
    fn new(s: &Sandbox) -> Self {
        std::fs::create_dir(s.runtime()).unwrap();
        sh("mount", &["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", s.runtime().to_str().unwrap()]);
        SmallFolder(s.runtime())
    }

    /// Fills the file system to the last byte.
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
fn a_mounted_disk_works_though_its_log_cannot_be_written() {
    let test = "a_mounted_disk_works_though_its_log_cannot_be_written";
    let missing = ["mkfs.ext4", "mount"].iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        pagefold_testkit::skipped!("{test}: {why}");
        return;
    }
    let s = Sandbox::new();
    let folder = SmallFolder::new(&s);
    let device = s.ok("disk create --size 64M --name x --export loop");
    let (device, mount) = (device.trim_end(), s.path("mnt"));
    std::fs::create_dir(&mount).unwrap();
    sh("mkfs.ext4", &["-q", device]);
    sh("mount", &[device, mount.to_str().unwrap()]);
    std::fs::write(mount.join("file"), "some text").unwrap();
    let pid = s.server_pid("x");
    folder.fill();
    // The server logs a line for each signal, because the disk is in use. The last page of the log has space for some of
    // them.
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
    // The server marks its orderly end though the file system is full.
    kill(pid, "TERM");
    wait_until("the server has exited", || !is_running(pid));
    let ran = s.run("disk list");
    assert!(ran.code == 0 && ran.err.contains("has ended; cleaned up"), "{ran:?}");
    assert!(!s.runtime().join(".logs").exists());
    std::fs::remove_file(s.runtime().join("filler")).unwrap();
    assert_eq!(s.left(), Vec::<String>::new());
    drop(folder);
}
