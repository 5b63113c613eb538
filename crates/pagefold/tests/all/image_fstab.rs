//! Mounts by the line of /etc/fstab: the program as a helper of mount(8), and mount points of autofs.

use crate::image_mount::{MountSandbox, read_all, wait_until};
use pagefold_testkit::skipped;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the program as the helper `name`, in the group of this process, for at most a minute.
fn helper(sandbox: &MountSandbox, name: &Path, operands: &[&Path], options: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "60"]).arg(name).args(operands).args(["-o", options]);
    command.env("PAGEFOLD_RUNTIME_DIR", sandbox.inner.runtime()).output().unwrap()
}

#[test]
fn the_program_is_a_helper_of_mount() {
    let Some(sandbox) = MountSandbox::new("the_program_is_a_helper_of_mount") else { return };
    let (image, at) = (sandbox.image.as_path(), sandbox.at.as_path());
    let name = sandbox.inner.path("mount.pagefold");
    symlink(env!("CARGO_BIN_EXE_pagefold"), &name).unwrap();
    let mounted =
        helper(&sandbox, &name, &[image, at], "ro,nofail,allow_other,memory=32M,x-systemd.automount");
    // mount(8) prints what its helper prints.
    assert!(mounted.status.success() && mounted.stderr.is_empty(), "{mounted:?}");
    read_all(at);
    let stats = sandbox.stats();
    assert_eq!(stats["budget"]["limit_bytes"], 32 << 20, "{stats}");
    let again = helper(&sandbox, &name, &[image, at], "ro");
    assert_eq!(again.status.code(), Some(4), "{again:?}");
    sandbox.ok(&sandbox.words("unmount", ""));
    // As mount.fuse3 calls it.
    let program = Path::new(env!("CARGO_BIN_EXE_pagefold"));
    let mounted = helper(&sandbox, program, &[image, at], "rw,dev,suid");
    assert!(mounted.status.success(), "{mounted:?}");
    read_all(at);
    sandbox.ok(&sandbox.words("unmount", ""));
    let missing = sandbox.inner.path("missing");
    assert!(helper(&sandbox, &name, &[&missing, at], "nofail").status.success());
    assert_eq!(helper(&sandbox, &name, &[&missing, at], "ro").status.code(), Some(3));
    let refused = helper(&sandbox, &name, &[image, at], "noexec");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!sandbox.is_mounted());
}

#[test]
fn an_image_is_mounted_on_a_mount_point_of_autofs() {
    let test = "an_image_is_mounted_on_a_mount_point_of_autofs";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let (_requests, pipe) = rustix::pipe::pipe().unwrap();
    // Only processes of this group, which the commands are not in, look at the directory without waiting for the mount.
    let options = format!("fd={},pgrp=1,minproto=5,maxproto=5,direct", pipe.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    if mount("none", &sandbox.at, "autofs", MountFlags::empty(), options.as_c_str()).is_err() {
        skipped!("{test}: this kernel has no autofs");
        return;
    }
    let name = sandbox.inner.path("mount.pagefold");
    symlink(env!("CARGO_BIN_EXE_pagefold"), &name).unwrap();
    let mounted = helper(&sandbox, &name, &[&sandbox.image, &sandbox.at], "ro");
    assert!(mounted.status.success(), "{mounted:?}");
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", ""));
    // The mount of autofs is there again.
    let table = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = sandbox.at.display().to_string();
    wait_until(|| table().lines().filter(|line| line.contains(&at)).count() == 1);
    unmount(&sandbox.at, UnmountFlags::DETACH).unwrap();
}

/// While an access waits for the mount, the kernel lets only the group of the daemon pass, as which this process acts.
#[test]
fn an_image_is_mounted_while_an_access_waits() {
    let test = "an_image_is_mounted_while_an_access_waits";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let (requests, pipe) = rustix::pipe::pipe().unwrap();
    let group = rustix::process::getpgrp().as_raw_nonzero();
    let options = format!("fd={},pgrp={group},minproto=5,maxproto=5,direct", pipe.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    if mount("none", &sandbox.at, "autofs", MountFlags::empty(), options.as_c_str()).is_err() {
        skipped!("{test}: this kernel has no autofs");
        return;
    }
    let mut waits =
        Command::new("ls").arg(&sandbox.at).process_group(0).stdout(Stdio::null()).spawn().unwrap();
    let mut packet = [0; 512];
    assert!(rustix::io::read(&requests, &mut packet).unwrap() > 0);
    let name = sandbox.inner.path("mount.pagefold");
    symlink(env!("CARGO_BIN_EXE_pagefold"), &name).unwrap();
    let mounted = helper(&sandbox, &name, &[&sandbox.image, &sandbox.at], "ro");
    let _ = waits.kill();
    assert!(mounted.status.success(), "{mounted:?}");
    read_all(&sandbox.at);
    sandbox.ok(&sandbox.words("unmount", ""));
    waits.wait().unwrap();
    unmount(&sandbox.at, UnmountFlags::DETACH).unwrap();
}
