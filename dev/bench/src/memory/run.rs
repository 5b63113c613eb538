//! Starts the measured processes, one after the other.

use super::cgroup::{self, OwnedGroup};
use super::child::{ChildReport, ChildSpec};
use super::guard::{Guard, GuardSpec};
use super::plan::{MemoryPlan, Subject, Task, figures};
use super::role::{Role, command};
use crate::report::Report;
use anyhow::Context;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::mem::Reservation;
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;

/// How often a process is started at most if the kernel kills it because of a lack of memory.
const ATTEMPTS: usize = 3;

/// The setup that all measured processes share: pages, folder of cgroups, swap area.
pub struct Bench {
    plan: MemoryPlan,
    pages: Option<PathBuf>,
    /// Prefix of the paths of the cgroups; `None` if none can be made.
    groups: Option<String>,
    /// The checksum of the task's data, as both sides must have it.
    pub checksum: Cell<Option<u64>>,
    /// Whether the memory of the machine is touched before each measurement.
    touches: bool,
    /// How often the kernel killed a process of its side.
    pub killed: Cell<usize>,
    /// Whether there is a swap area, so that the kernel's side can be measured.
    pub swaps: bool,
    // The last field, so that it is dropped last, after all cgroups of processes.
    _guard: Guard,
}

impl Bench {
    /// Sets up what is available: the folder of cgroups and, by the guard process, the swap area. Notes what is missing.
    pub fn new(plan: MemoryPlan, pages: Option<PathBuf>, report: &mut Report) -> anyhow::Result<Self> {
        let groups = cgroup::find_root().and_then(|root| {
            let prefix = format!("{}/pagefold-bench-{}-", root.display(), std::process::id());
            OwnedGroup::new(format!("{prefix}try").into(), None)?;
            Ok(prefix)
        });
        let groups = groups.map_err(|e| report.note(format!("no meter of memory: {e:#}"))).ok();
        // Twice the data, so that the device never becomes full.
        let swap_bytes = 2 * plan.size_bytes;
        let (guard, missing) =
            Guard::start(command(&Role::Guard(GuardSpec { groups: groups.clone(), swap_bytes }))?)?;
        let swaps = missing.is_none();
        missing.into_iter().for_each(|why| report.note(format!("not compared with the kernel: {why}")));
        let (killed, checksum) = Default::default();
        let touches = !report.quick;
        Ok(Bench { plan, pages, groups, checksum, touches, killed, swaps, _guard: guard })
    }

    /// Measures one side once. The checksum must be that of earlier calls. If the kernel kills the process of its side,
    /// starts it again; if it kills all of them, the values are unknown.
    pub fn round(&self, subject: Subject, task: Task) -> anyhow::Result<Vec<f64>> {
        for _ in 0..ATTEMPTS {
            let measured = self.measure(subject, task);
            let measured = measured.with_context(|| format!("measuring {task:?} of {subject:?}"))?;
            let Some((values, sum)) = measured else {
                self.killed.update(|killed| killed + 1);
                continue;
            };
            let is_same = self.checksum.replace(Some(sum)).is_none_or(|earlier| earlier == sum);
            anyhow::ensure!(is_same, "{task:?}: the sides have different results");
            return Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect());
        }
        Ok(vec![f64::NAN; figures(task).len()])
    }

    /// Measures in a new process and a new cgroup. Returns `None` if the kernel killed the process of its side because
    /// of a lack of memory: reclaim in a cgroup sometimes fails although there is free swap.
    fn measure(&self, subject: Subject, task: Task) -> anyhow::Result<Option<ChildReport>> {
        if self.touches {
            touch(self.plan.size_bytes)?;
        }
        let limit = (subject == Subject::Swap).then_some(self.plan.limit_bytes);
        let path = self.groups.as_ref().map(|prefix| format!("{prefix}measured").into());
        let group = path.map(|path| OwnedGroup::new(path, limit)).transpose()?;
        let spec = ChildSpec {
            subject,
            task,
            plan: self.plan,
            pages: self.pages.clone(),
            group: group.as_ref().map(|group| group.0.clone()),
            parent: std::process::id(),
        };
        let ran = command(&Role::Child(spec))?.stdin(Stdio::null()).output()?;
        let is_killed = ran.status.signal() == Some(rustix::process::Signal::KILL.as_raw());
        if is_killed && subject == Subject::Swap {
            return Ok(None);
        }
        let [out, err] = [&ran.stdout, &ran.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        anyhow::ensure!(ran.status.success(), "{}: {}", ran.status, err.trim());
        serde_json::from_str(&out).map(Some).with_context(|| format!("its output is '{out}'"))
    }
}

/// Touches as much memory as the data needs and 1 GiB more, and frees it: in a virtual machine, the first use of
/// a physical page costs a fault on the host. Touches at most half of the available memory.
fn touch(size_bytes: u64) -> anyhow::Result<()> {
    let available = pagefold_sys::swap::memory_available_bytes()? / 2;
    let len_bytes = available.min(size_bytes + (1 << 30)) as usize / PAGE_SIZE * PAGE_SIZE;
    Ok(Reservation::new(len_bytes)?.populate(0, len_bytes)?)
}
