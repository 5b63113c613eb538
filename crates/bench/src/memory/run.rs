//! Starting the measured processes, one after the other, and watching what they take.

use super::Role;
use super::cgroup::{Controller, Group};
use super::child::{ChildSpec, Meter, Task, Told};
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

/// How often the memory of a measured process is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// What all processes are measured with.
pub struct Bench {
    plan: MemoryPlan,
    pages: File,
    controller: Option<Controller>,
    group_prefix: String,
    started: Cell<u32>,
    // Last: the groups of processes are gone when it clears up.
    guard: Guard,
}

impl Bench {
    /// Takes what can be had. Returns notes on what is missing.
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
        let pages = in_memory(set.bytes()).context("putting the pages in memory")?;
        Ok((Bench { plan: *plan, pages, controller, group_prefix, started: Cell::new(0), guard }, notes))
    }

    /// The sides that can be measured.
    pub fn sides(&self) -> Vec<Side> {
        let kernel = self.guard.missing.is_none().then_some(Side::Kernel);
        [Side::Pagefold].into_iter().chain(kernel).collect()
    }

    /// Measures one side once, in a process and a cgroup of its own. `None` if the kernel, on its side,
    /// killed it for want of memory: reclaim within a cgroup sometimes gives up although there is swap left.
    pub fn measure(&self, side: Side, task: Task) -> anyhow::Result<Option<Told>> {
        space::touch(&self.plan)?;
        self.started.set(self.started.get() + 1);
        let name = format!("{}{}", self.group_prefix, self.started.get());
        let limit = (side == Side::Kernel).then_some(self.plan.limit_bytes);
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
        let most_bytes = watch(&mut process, &spec).with_context(what)?;
        let is_killed = process.wait()?.signal() == Some(rustix::process::Signal::KILL.as_raw());
        if is_killed && side == Side::Kernel {
            return Ok(None);
        }
        let mut told = answer(process).with_context(what)?;
        if let Some(group) = &spec.group {
            // The cgroup's own peak is exact, but does not know what zram holds.
            let most = group.peak_bytes().unwrap_or(0).max(most_bytes);
            let peak = most.saturating_sub(told.before_bytes) + spec.tables_bytes();
            told.figures.insert("peak_bytes".into(), peak as f64);
        }
        Ok(Some(told))
    }

    fn spec(&self, side: Side, task: Task, group: Option<&Group>) -> ChildSpec {
        let parent = std::process::id();
        let pages = PathBuf::from(format!("/proc/{parent}/fd/{}", self.pages.as_raw_fd()));
        ChildSpec { side, task, plan: self.plan, pages, group: group.map(Group::at), parent }
    }
}

/// A nameless file in memory, charged to this process.
fn in_memory(bytes: &[u8]) -> anyhow::Result<File> {
    let fd = rustix::fs::memfd_create("pagefold-bench-pages", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    Ok(file)
}

/// Waits for the process to end. Returns the most that it was charged with when looked at.
fn watch(process: &mut Child, spec: &ChildSpec) -> anyhow::Result<u64> {
    let meter = Meter { group: spec.group.as_ref(), side: spec.side };
    let mut most_bytes = 0;
    // What it prints fits in a pipe.
    while process.try_wait()?.is_none() {
        most_bytes = most_bytes.max(meter.bytes()?);
        std::thread::sleep(SAMPLE_EVERY);
    }
    Ok(most_bytes)
}

/// What an ended process told.
fn answer(mut process: Child) -> anyhow::Result<Told> {
    let status = process.wait()?;
    let (mut out, mut err) = (String::new(), String::new());
    process.stdout.take().context("no pipe")?.read_to_string(&mut out)?;
    process.stderr.take().context("no pipe")?.read_to_string(&mut err)?;
    anyhow::ensure!(status.success(), "{status}: {}", err.trim());
    serde_json::from_str(&out).with_context(|| format!("it told '{out}'"))
}
