//! Starts the measured processes, one after the other, and samples their memory use.

use super::Role;
use super::blocks;
use super::cgroup::{Controller, Group};
use super::child::{ChildReport, ChildSpec, Meter, Task};
use super::guard::{self, Guard};
use super::plan::{MemoryPlan, SWAP_TIMES_DATA};
use super::space::{self, Side};
use crate::pages::PageSet;
use anyhow::Context;
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Interval between two samples of the memory of a measured process.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// The setup that all measured processes share: pages, cgroup controller, swap area.
pub struct Bench {
    plan: MemoryPlan,
    pages: File,
    controller: Option<Controller>,
    group_prefix: String,
    started: Cell<u32>,
    // The last field, so that it is dropped last, after all cgroups of processes.
    guard: Guard,
}

impl Bench {
    /// Sets up what is available: a cgroup controller and, by the guard process, the swap area. Returns notes on what
    /// is missing.
    pub fn new(set: &PageSet, plan: &MemoryPlan) -> anyhow::Result<(Self, Vec<String>)> {
        let mut notes = Vec::new();
        let group_prefix = format!("pagefold-bench-{}-", std::process::id());
        let mut controller =
            Controller::find().map_err(|e| notes.push(format!("no meter of memory: {e:#}"))).ok();
        if let Some(found) = &controller
            && let Err(e) = found.make(&format!("{group_prefix}try"), None)
        {
            notes.push(format!("no meter of memory: {e:#}"));
            controller = None;
        }
        let swap_bytes = SWAP_TIMES_DATA * plan.largest_bytes();
        let guard = Guard::start(controller.as_ref(), &group_prefix, swap_bytes)?;
        if let Some(missing) = &guard.missing {
            notes.push(format!("not compared with the kernel: {missing}"));
        }
        let pages = in_memory(set.bytes()).context("copying the pages to a file in memory")?;
        Ok((Bench { plan: *plan, pages, controller, group_prefix, started: Cell::new(0), guard }, notes))
    }

    /// The sides that can be measured.
    pub fn sides(&self) -> Vec<Side> {
        let kernel = self.guard.missing.is_none().then_some(Side::Kernel);
        [Side::Pagefold].into_iter().chain(kernel).collect()
    }

    /// Measures one side once, in a new process and a new cgroup. Returns `None` if the kernel killed the process of
    /// the kernel's side because of a lack of memory: reclaim in a cgroup sometimes fails although there is free swap.
    pub fn measure(&self, side: Side, task: Task) -> anyhow::Result<Option<ChildReport>> {
        space::touch(&self.plan)?;
        self.started.set(self.started.get() + 1);
        let name = format!("{}{}", self.group_prefix, self.started.get());
        // The tables of a work are outside of pagefold's region.
        let tables_bytes = if task == Task::Blocks { blocks::table_bytes(&self.plan) } else { 0 };
        let limit = (side == Side::Kernel).then_some(self.plan.limit_bytes + tables_bytes);
        let group = self.controller.as_ref().map(|controller| controller.make(&name, limit)).transpose()?;
        let spec = || self.spec(side, task, group.as_ref());
        let what = || format!("the process that measures {task:?} of {side:?}");
        let mut process = guard::command(&Role::Child(spec()))?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(what)?;
        let spec = spec();
        let peak_sample_bytes = watch(&mut process, &spec).with_context(what)?;
        let is_killed = process.wait()?.signal() == Some(rustix::process::Signal::KILL.as_raw());
        if is_killed && side == Side::Kernel {
            return Ok(None);
        }
        let mut report = read_report(process).with_context(what)?;
        if let Some(group) = &spec.group {
            // The peak that the cgroup reports is exact, but excludes the memory of zram.
            let measured_bytes = group.peak_bytes().unwrap_or(0).max(peak_sample_bytes);
            let peak = measured_bytes.saturating_sub(report.before_bytes) + spec.tables_bytes();
            report.figures.insert("peak_bytes".into(), peak as f64);
        }
        Ok(Some(report))
    }

    fn spec(&self, side: Side, task: Task, group: Option<&Group>) -> ChildSpec {
        let parent = std::process::id();
        let pages = PathBuf::from(format!("/proc/{parent}/fd/{}", self.pages.as_raw_fd()));
        ChildSpec { side, task, plan: self.plan, pages, group: group.map(Group::to_path), parent }
    }
}

/// Copies bytes to an anonymous file in memory, charged to this process.
fn in_memory(bytes: &[u8]) -> anyhow::Result<File> {
    let fd = rustix::fs::memfd_create("pagefold-bench-pages", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    Ok(file)
}

/// Waits for the process to end. Returns the largest sample of its memory, bytes.
fn watch(process: &mut Child, spec: &ChildSpec) -> anyhow::Result<u64> {
    let meter = Meter { group: spec.group.as_ref(), side: spec.side };
    let mut peak_bytes = 0;
    // The output fits in the pipe, so the process never blocks on it.
    while process.try_wait()?.is_none() {
        peak_bytes = peak_bytes.max(meter.bytes()?);
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    Ok(peak_bytes)
}

/// Reads the report of a process that has ended.
fn read_report(mut process: Child) -> anyhow::Result<ChildReport> {
    let status = process.wait()?;
    let (mut out, mut err) = (String::new(), String::new());
    process.stdout.take().context("no pipe")?.read_to_string(&mut out)?;
    process.stderr.take().context("no pipe")?.read_to_string(&mut err)?;
    anyhow::ensure!(status.success(), "{status}: {}", err.trim());
    serde_json::from_str(&out).with_context(|| format!("its output is '{out}'"))
}
