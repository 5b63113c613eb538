//! The rows of `memory`: runs the rounds of both sides, and makes the figures with targets and a table per task.

use super::child::{ChildReport, Task};
use super::plan::{self, MemoryPlan};
use super::run::Bench;
use super::space::Side;
use super::{MemoryArgs, RowKind};
use crate::output;
use crate::pages::PageSet;
use crate::plan::Target;
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;

/// A row with a target, and the figure that it compares.
struct RowSpec {
    kind: RowKind,
    task: Task,
    what: &'static str,
    figure: &'static str,
    unit: &'static str,
    target: Target,
}

/// How often a process is started at most if the kernel kills it because of a lack of memory.
const ATTEMPTS: usize = 3;

/// The task whose peer is pagefold, too, without the check for same-filled pages.
const SAME_FILLED: Task = Task::SameFilled { check: true };

/// The task whose peer is ordinary memory.
const BELOW: Task = Task::Below { in_region: true };

const fn row(
    kind: RowKind,
    task: Task,
    what: &'static str,
    figure: &'static str,
    unit: &'static str,
    target: Target,
) -> RowSpec {
    RowSpec { kind, task, what, figure, unit, target }
}

#[rustfmt::skip]
const ROW_SPECS: [RowSpec; 14] = [
    row(RowKind::Fill, Task::Pass, "fill, per page", "fill_ns", "ns", plan::FILL),
    row(RowKind::Sequential, Task::Pass, "sequential read, per page", "sequential_ns", "ns", plan::SEQUENTIAL),
    row(RowKind::Random, Task::Random, "random read, per access", "random_ns", "ns", plan::RANDOM),
    row(RowKind::Job, Task::Job, "sort and group-by", "job_s", "s", plan::JOB),
    row(RowKind::Zipf, Task::Zipf, "two threads, Zipf 0.99", "zipf_ops_per_s", "/s", plan::ZIPF),
    row(RowKind::Blocks, Task::Blocks, "blocks of 1 KiB, Zipf 0.99", "blocks_change_ns", "ns", plan::BLOCKS),
    row(RowKind::Memory, Task::Pass, "memory held after both passes", "held_bytes", "B", plan::MEMORY),
    row(RowKind::Memory, Task::Pass, "memory held at most", "peak_bytes", "B", plan::MEMORY),
    row(RowKind::Below, BELOW, "fill below the limit, per page", "below_fill_ns", "ns", plan::BELOW),
    row(RowKind::Below, BELOW, "sort below the limit", "below_sort_s", "s", plan::BELOW),
    row(RowKind::SameFilled, SAME_FILLED, "page of zeroes: store", "store_zero_ns", "ns", plan::SAME_STORE),
    row(RowKind::SameFilled, SAME_FILLED, "page of zeroes: load", "load_zero_ns", "ns", plan::SAME_LOAD),
    row(RowKind::SameFilled, SAME_FILLED, "page of one word: store", "store_word_ns", "ns", plan::SAME_STORE),
    row(RowKind::SameFilled, SAME_FILLED, "page of one word: load", "load_word_ns", "ns", plan::SAME_LOAD),
];

/// Runs the chosen rows and adds rows, tables and notes to the report.
pub fn measure(
    set: &PageSet,
    plan: &MemoryPlan,
    args: &MemoryArgs,
    report: &mut Report,
) -> anyhow::Result<()> {
    let is_wanted = |w: &&RowSpec| args.only.is_empty() || args.only.contains(&w.kind);
    let (bench, notes) = Bench::new(set, plan)?;
    notes.into_iter().for_each(|note| report.note(note));
    let mut rounds = serde_json::Map::new();
    for task in [Task::Pass, Task::Random, Task::Job, Task::Zipf, Task::Blocks, BELOW, SAME_FILLED] {
        let wanted: Vec<_> = ROW_SPECS.iter().filter(is_wanted).filter(|w| w.task == task).collect();
        if wanted.is_empty() {
            continue;
        }
        let figures = rounds_of(&bench, task, plan.rounds, args)?;
        report.rows.extend(wanted.iter().filter_map(|w| figures.row(w, set)));
        report.tables.push(figures.table(task, set, plan));
        if figures.killed > 0 {
            let killed = figures.killed;
            report.note(format!(
                "{}: the kernel killed its side {killed} times: out of memory in its cgroup, with swap left",
                name(task)
            ));
        }
        rounds.insert(name(task).into(), serde_json::to_value(&figures)?);
    }
    report.rounds = rounds.into();
    Ok(())
}

/// Every round of one task.
#[derive(Default, Serialize)]
struct Figures {
    pagefold: BTreeMap<String, Rounds>,
    peer: BTreeMap<String, Rounds>,
    /// How often the kernel killed a process of its side.
    killed: usize,
    /// The counters of pagefold's side in the last round.
    statistics: serde_json::Value,
}

/// The processes of one round of a task: side, task, and whether the figures count as pagefold's in the report.
fn sides(bench: &Bench, task: Task) -> Vec<(Side, Task, bool)> {
    match task {
        SAME_FILLED => {
            vec![(Side::Pagefold, task, true), (Side::Pagefold, Task::SameFilled { check: false }, false)]
        }
        BELOW => {
            vec![(Side::Pagefold, task, true), (Side::Pagefold, Task::Below { in_region: false }, false)]
        }
        _ => bench.sides().into_iter().map(|side| (side, task, side == Side::Pagefold)).collect(),
    }
}

fn rounds_of(bench: &Bench, task: Task, rounds: usize, args: &MemoryArgs) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    let mut checksum = None;
    for round in 0..rounds {
        let mut sides = sides(bench, task);
        let first = round % sides.len();
        sides.rotate_left(first);
        let mut reports = Vec::new();
        for (side, task, is_ours) in sides {
            if !args.quick && std::io::stderr().is_terminal() {
                let (name, round) = (name(task), round + 1);
                output::diagnostics(&format!("measuring {name}, round {round} of {rounds}, {side:?} ...\n"));
            }
            let one = figures.try_to_measure(bench, side, task)?;
            reports.extend(one.map(|one| (one, is_ours)));
        }
        for (one, is_ours) in reports {
            let wanted = *checksum.get_or_insert(one.checksum);
            anyhow::ensure!(one.checksum == wanted, "{}: the sides have different results", name(task));
            figures.add(one, is_ours);
        }
    }
    Ok(figures)
}

fn name(task: Task) -> &'static str {
    match task {
        Task::Pass => "pass",
        Task::Random => "random",
        Task::Job => "job",
        Task::Zipf => "zipf",
        Task::Blocks => "blocks",
        Task::SameFilled { .. } => "same-filled",
        Task::Below { .. } => "below",
    }
}

impl Figures {
    /// Measures once; repeats if the kernel kills the process, up to [`ATTEMPTS`] times in all.
    fn try_to_measure(
        &mut self,
        bench: &Bench,
        side: Side,
        task: Task,
    ) -> anyhow::Result<Option<ChildReport>> {
        for _ in 0..ATTEMPTS {
            if let Some(report) = bench.measure(side, task)? {
                return Ok(Some(report));
            }
            self.killed += 1;
        }
        Ok(None)
    }

    fn add(&mut self, report: ChildReport, is_ours: bool) {
        let to = if is_ours { &mut self.pagefold } else { &mut self.peer };
        for (name, value) in report.figures {
            to.entry(name).or_default().push(value);
        }
        if is_ours {
            self.statistics = report.statistics;
        }
    }

    /// Makes the row. `None` if neither side reported the figure: without cgroups the memory in use is unknown.
    fn row(&self, wanted: &RowSpec, set: &PageSet) -> Option<Row> {
        let (ours, peer) = (self.pagefold.get(wanted.figure), self.peer.get(wanted.figure));
        if ours.is_none() && peer.is_none() {
            return None;
        }
        let against = match wanted.task {
            SAME_FILLED => "check off",
            BELOW => "ordinary memory",
            Task::Blocks => "malloc, kernel swap",
            _ => "kernel swap to zram",
        };
        let row = Row::new(wanted.what, set, wanted.unit, against, wanted.target);
        Some(Row {
            ours: ours.map_or(f64::NAN, Rounds::median),
            peer: peer.map(Rounds::median),
            ratio: ours.zip(peer).map(|(ours, peer)| ours.over(peer).median()),
            ..row
        })
    }

    fn table(&self, task: Task, set: &PageSet, plan: &MemoryPlan) -> Table {
        let size = match task {
            Task::Zipf => plan.zipf_size_bytes(),
            _ => plan.size_bytes,
        };
        let human = pagefold_page::size::Human;
        let what = match task {
            Task::Pass => "fill and sequential read",
            Task::Random => "fill and random reads",
            Task::Job => "sort and group-by",
            Task::Zipf => "two threads, 70 % reads, Zipf 0.99",
            Task::Blocks => "allocating blocks of 1 KiB, and changing them, Zipf 0.99",
            Task::SameFilled { .. } => "store and load of same-filled pages",
            Task::Below { .. } => "fill, and sort of an eighth, below the limit",
        };
        let content = match task {
            Task::Job => "a table",
            Task::Blocks => "records",
            Task::SameFilled { .. } => "zeroes, then of another word",
            Task::Below { .. } => "numbers",
            _ => &set.name,
        };
        let title = format!("{what}: {} of {content}, limit {}", human(size), human(plan.limit_bytes));
        let peer = match task {
            SAME_FILLED => "check off",
            BELOW => "ordinary memory",
            _ => "kernel",
        };
        let columns = ["figure: median (min-max)", "pagefold", peer, "ratio"];
        let mut table = Table::new(title, &columns);
        let names: std::collections::BTreeSet<_> = self.pagefold.keys().chain(self.peer.keys()).collect();
        for name in names {
            let (ours, peer) = (self.pagefold.get(name), self.peer.get(name));
            let ratio = ours.zip(peer).map(|(ours, peer)| number(ours.over(peer).median()));
            table.push([name.clone(), spread(ours), spread(peer), ratio.unwrap_or("-".into())]);
        }
        table
    }
}

fn spread(rounds: Option<&Rounds>) -> String {
    let text = |r: &Rounds| format!("{} ({}-{})", number(r.median()), number(r.min()), number(r.max()));
    rounds.map_or("-".into(), text)
}
