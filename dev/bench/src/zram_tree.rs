//! A file of statistics in the tree of `pagefold zram-tree`, against the same file in the kernel's sysfs.
//!
//! A read in sysfs is a function call in the kernel. One in the tree goes through FUSE to the process of the tree, and from
//! there through a socket to the server of the disk. The figures say what a program pays that looks at it often.

use super::plan::Plan;
use super::report::Report;
use super::stats::Rounds;
use super::table::{Table, number};
use crate::output;
use anyhow::Context;
use pagefold_sys::rundir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILE: &str = "mm_stat";
const CONTROL: &str = "/sys/class/zram-control";
/// The size of both devices, as zram takes it.
const SIZE: &str = "64M";
/// How long the tree may take to be mounted, and to end.
const TREE_LIMIT: Duration = Duration::from_secs(20);

/// Measures both and adds a table; notes what is missing.
pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let tree = match Tree::start() {
        Ok(tree) => tree,
        Err(e) => {
            report.note(format!("the files of zram-tree were not measured: {e:#}"));
            return Ok(());
        }
    };
    let kernel = match KernelDevice::add() {
        Ok(device) => Some(device),
        Err(e) => {
            report.note(format!("files of statistics were not compared with the kernel's: {e:#}"));
            None
        }
    };
    let kernels = kernel.as_ref().map(|device| device.attributes().join(FILE));
    let files: Vec<PathBuf> = std::iter::once(tree.attributes().join(FILE)).chain(kernels).collect();
    let mut rounds = vec![Rounds::default(); files.len()];
    for round in 0..plan.warm_up_rounds + plan.rounds {
        for i in 0..files.len() {
            let i = (i + round) % files.len();
            let us = us_per_read(&files[i], plan.file_reads)?;
            if round >= plan.warm_up_rounds {
                rounds[i].push(us);
            }
        }
    }
    let mut table = Table::new(
        format!("open, read and close {FILE}: us"),
        &["zram-tree", "kernel's sysfs", "zram-tree / kernel"],
    );
    let figure = |value: Option<f64>| value.map_or("-".to_string(), number);
    let (peer, ratio) =
        (rounds.get(1).map(Rounds::median), rounds.get(1).map(|p| rounds[0].over(p).median()));
    table.push([number(rounds[0].median()), figure(peer), figure(ratio)]);
    report.tables.push(table);
    Ok(())
}

fn us_per_read(file: &Path, reads: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    for _ in 0..reads {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        anyhow::ensure!(text.split_whitespace().count() == 9, "{} reads {text:?}", file.display());
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / reads as f64)
}

/// A running `pagefold zram-tree` with one disk.
struct Tree {
    process: Child,
    program: PathBuf,
    dir: TempDir,
}

impl Tree {
    fn start() -> anyhow::Result<Self> {
        anyhow::ensure!(rundir::effective_uid() == 0, "needs root");
        let program = std::env::current_exe()?.with_file_name("pagefold");
        anyhow::ensure!(
            program.is_file(),
            "there is no {} (cargo build --release -p pagefold)",
            program.display()
        );
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("tree"))?;
        let mut command = command(&program, &dir);
        command.arg("zram-tree").arg(dir.path().join("tree")).stdout(Stdio::null());
        let process = command.spawn().with_context(|| format!("running {}", program.display()))?;
        let mut tree = Tree { process, program, dir };
        let control = tree.path("class/zram-control/hot_add");
        let deadline = Instant::now() + TREE_LIMIT;
        while !control.exists() {
            anyhow::ensure!(tree.process.try_wait()?.is_none(), "zram-tree has ended");
            anyhow::ensure!(Instant::now() < deadline, "zram-tree is not mounted after {TREE_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let number = fs::read_to_string(&control).context("adding a device to zram-tree")?;
        anyhow::ensure!(number.trim() == "0", "the device of zram-tree has the number {number:?}");
        fs::write(tree.attributes().join("disksize"), SIZE).context("setting the size of the device")?;
        Ok(tree)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("tree").join(name)
    }

    fn attributes(&self) -> PathBuf {
        self.path("zram0")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Without a disk this fails, and there is nothing to remove.
        let _ = command(&self.program, &self.dir)
            .args(["disk", "remove", "zram0"])
            .stderr(Stdio::null())
            .status();
        let pid = i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw);
        let ended = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        if ended.is_none_or(|sent| sent.is_err()) || self.process.wait().is_err() {
            output::error("zram-tree could not be ended");
        }
    }
}

fn command(program: &Path, dir: &TempDir) -> Command {
    let mut command = Command::new(program);
    command.arg("-q").env("PAGEFOLD_RUNTIME_DIR", dir.path().join("run")).stdin(Stdio::null());
    command
}

/// A device of the kernel's zram that this process has added. Removed when dropped.
struct KernelDevice(String);

impl KernelDevice {
    fn add() -> anyhow::Result<Self> {
        let add = Path::new(CONTROL).join("hot_add");
        let number = fs::read_to_string(&add).with_context(|| format!("reading {}", add.display()))?;
        let device = KernelDevice(number.trim().to_string());
        fs::write(device.attributes().join("disksize"), SIZE)
            .context("setting the size of the kernel's device")?;
        Ok(device)
    }

    fn attributes(&self) -> PathBuf {
        Path::new("/sys/block").join(format!("zram{}", self.0))
    }
}

impl Drop for KernelDevice {
    fn drop(&mut self) {
        let reset = fs::write(self.attributes().join("reset"), "1");
        if let Err(e) = reset.and_then(|()| fs::write(Path::new(CONTROL).join("hot_remove"), &self.0)) {
            output::error(&format!("zram{} of the kernel could not be removed: {e}", self.0));
        }
    }
}
