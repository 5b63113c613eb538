//! The thread whose mount namespace is that of the shell.
//!
//! Only this thread, and the command that it starts, see the mounts. The threads that serve the tree do not: they read
//! the real sysfs, and the servers of new disks that they start do not depend on the shell. So the set-up goes to and
//! fro: this thread mounts the tree, another begins to serve it, and this thread mounts parts of the tree elsewhere.
//!
//! The mounts are shared, so that programs in the shell with mount namespaces of theirs see the files of devices that are made
//! later.
//!
//! All mounts are below, or over a path below:
//!
//! ```text
//! RUNTIME/.shell           a tmpfs with all that follows
//! RUNTIME/.shell/tree      the tree
//! RUNTIME/.shell/sys       the real sysfs
//! RUNTIME/.shell/dev       the changes of /dev
//! RUNTIME/.shell/bin       modprobe and rmmod
//! /sys/block               the links of the tree, with those of all other block devices
//! /sys/class/zram-control  hot_add and hot_remove
//! /sys/kernel/debug        block states and size classes, with links to what debugfs has, if the folder exists
//! /dev                     an overlay, with the nodes of disks
//! ```

use super::devices::{DeviceList, ShellDevices};
use super::modules;
use crate::cli::output;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_sys::mounts;
use pagefold_sys::signal::unblock_termination_in;
use pagefold_sys::{fusedev, mountns};
use pagefold_zram::disks::number_after;
use pagefold_zram::tree;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, SyncSender};

const SYS: &str = "/sys";
const DEV: &str = "/dev";
/// Where debugfs is, below `/sys` and below the tree. A kernel without debugfs has no such directory.
const DEBUG: &str = "kernel/debug";

/// A message to the thread.
pub enum Message {
    /// The disks, or their devices, have changed: make the shell's devices those, and reply.
    Follow(DeviceList, SyncSender<()>),
    /// The command has ended.
    End,
}

/// The parameters of the thread.
pub struct Namespace {
    /// The directory for the private mounts. It exists and is empty.
    pub private: PathBuf,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

impl Namespace {
    /// Where the tree is mounted.
    pub fn tree(&self) -> PathBuf {
        self.private.join("tree")
    }

    /// Where the real sysfs is visible.
    pub fn sysfs(&self) -> PathBuf {
        self.private.join("sys")
    }

    /// Makes the namespace and mounts the tree, which nobody serves yet.
    pub fn enter(&self, channel: &File) -> Result<()> {
        mountns::unshare()?;
        mountns::mount_tmpfs(&self.private)?;
        for dir in [self.tree(), self.sysfs()] {
            make_dir(&dir)?;
        }
        mountns::bind(Path::new(SYS), &self.sysfs())?;
        let debug = Path::new(SYS).join(DEBUG);
        if debug.is_dir() {
            mountns::bind(&debug, &self.sysfs().join(DEBUG))?;
        }
        Ok(fusedev::mount(channel, &self.tree(), &tree::request())?)
    }

    /// Mounts everything else, once the tree is served, and starts the command. `devices`: the disks that there are.
    pub fn start(&self, devices: DeviceList) -> Result<(Child, ShellDevices)> {
        mountns::bind(&self.tree().join("block"), &Path::new(SYS).join("block"))?;
        self.mount_class()?;
        let debug = Path::new(SYS).join(DEBUG);
        if debug.is_dir() {
            mountns::bind(&self.tree().join(DEBUG), &debug)?;
        }
        self.mount_dev()?;
        let programs = modules::replace(&self.private)?;
        let mut present = ShellDevices::new(self.tree(), self.sysfs());
        present.follow(devices).iter().for_each(|e| output::note(e));
        present.refuse_other_nodes()?;
        mountns::share()?;
        Ok((self.spawn(&programs)?, present))
    }

    /// Adds `zram-control` to the classes. A kernel with zram has a directory to mount it over. Otherwise all classes are
    /// mounted over empty directories of a tmpfs, so that links between them and the devices still lead to `/sys`.
    fn mount_class(&self) -> Result<()> {
        let (name, class) = ("zram-control", Path::new(SYS).join("class"));
        if !class.join(name).exists() {
            mountns::mount_tmpfs(&class)?;
            let classes = read_dir(&self.sysfs().join("class"))?;
            for entry in classes.into_iter().filter(|entry| !entry.ends_with(name)) {
                let at = class.join(entry.file_name().unwrap_or_default());
                make_dir(&at)?;
                mountns::bind(&entry, &at)?;
            }
            make_dir(&class.join(name))?;
        }
        Ok(mountns::bind(&self.tree().join("class").join(name), &class.join(name))?)
    }

    /// Mounts an overlay on `/dev`, and what was mounted below `/dev` on top of it. Where overlays are refused, a tmpfs
    /// takes its place. Nodes of the kernel's zram are not mounted: the command must not reach the host's devices.
    fn mount_dev(&self) -> Result<()> {
        let (dev, own) = (Path::new(DEV), self.private.join("dev"));
        let [upper, work, old] = ["upper", "work", "old"].map(|name| own.join(name));
        for dir in [&own, &upper, &work, &old] {
            make_dir(dir)?;
        }
        mountns::bind_with_submounts(dev, &old)?;
        let submounts = submounts(&old)?;
        match mountns::mount_overlay(dev, &upper, &work, dev) {
            Ok(()) => {}
            Err(e) => {
                output::note(&format!("{e}; using a tmpfs with the same entries"));
                mountns::mount_tmpfs(dev)?;
                copy_entries(&old, dev)?;
            }
        }
        for submount in submounts.into_iter().filter(|path| !is_zram_of(path, &old)) {
            let relative = submount.strip_prefix(&old).unwrap_or(&submount);
            mountns::bind_with_submounts(&submount, &dev.join(relative))?;
        }
        Ok(())
    }

    fn spawn(&self, programs: &Path) -> Result<Child> {
        let (program, arguments) = self.command.split_first().ok_or_else(|| CliError::usage("no command"))?;
        let path = modules::search_path();
        let dirs = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(dirs).map_err(|e| CliError::failed(format!("setting PATH: {e}")))?;
        let mut command = Command::new(program);
        command.args(arguments).env("PATH", path);
        // systemd's programs refuse devices whose directory in sysfs is another file system, unless told not to look.
        command.env("SYSTEMD_DEVICE_VERIFY_SYSFS", "0");
        let what = || format!("running '{}'", Path::new(program).display());
        let started = unblock_termination_in(&mut command).spawn();
        started.map_err(|e| CliError { exit: not_started(&e), ..CliError::io(what(), &e) })
    }
}

/// The exit code for a command that could not be started.
fn not_started(e: &std::io::Error) -> Exit {
    match e.kind() {
        std::io::ErrorKind::NotFound => Exit::NoCommand,
        _ => Exit::NotExecutable,
    }
}

/// Follows the disks until the command has ended.
pub fn serve(mut devices: ShellDevices, messages: &Receiver<Message>) {
    while let Ok(Message::Follow(list, done)) = messages.recv() {
        devices.follow(list).iter().for_each(|e| output::note(e));
        // The sender may have given up waiting.
        let _ = done.try_send(());
    }
}

fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|e| CliError::io(format!("making '{}'", path.display()), &e))
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(path).map_err(|e| CliError::io(format!("reading '{}'", path.display()), &e))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// The mount points below `dir` that are below no other of them, each once.
fn submounts(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for mount in mounts::all()? {
        let is_below = mount.mount_point.starts_with(dir) && mount.mount_point != dir;
        if is_below && !found.iter().any(|known| mount.mount_point.starts_with(known)) {
            found.push(mount.mount_point);
        }
    }
    Ok(found)
}

/// Whether a path is that of a zram device in `dev`.
fn is_zram_of(path: &Path, dev: &Path) -> bool {
    path.parent() == Some(dev) && path.file_name().is_some_and(|name| number_after("zram", name).is_some())
}

/// Makes an entry in `to` for each in `from` that is no zram device: links as they are, and everything else mounted
/// over an empty file or directory.
fn copy_entries(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path, e| CliError::io(format!("making '{}'", path.display()), &e);
    for entry in read_dir(from)?.into_iter().filter(|entry| !is_zram_of(entry, from)) {
        let at = to.join(entry.file_name().unwrap_or_default());
        let meta = entry.symlink_metadata().map_err(|e| failed(&at, e))?;
        if meta.is_symlink() {
            let target = fs::read_link(&entry).map_err(|e| failed(&at, e))?;
            std::os::unix::fs::symlink(target, &at).map_err(|e| failed(&at, e))?;
            continue;
        }
        match meta.is_dir() {
            true => make_dir(&at)?,
            false => fs::write(&at, "").map_err(|e| failed(&at, e))?,
        }
        mountns::bind_with_submounts(&entry, &at)?;
    }
    Ok(())
}
