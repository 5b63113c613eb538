//! The rows: rounds of both sides, ratios, and the table of what has no target.

use super::child::{Task, Told};
use super::plan::{self, MemoryPlan};
use super::run::Bench;
use super::space::Side;
use super::{MemoryArgs, Part};
use crate::output;
use crate::pages::PageSet;
use crate::plan::Target;
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;

/// A row with a target: the figure it is about.
struct Wanted {
    part: Part,
    task: Task,
    what: &'static str,
    figure: &'static str,
    unit: &'static str,
    target: Target,
}

/// How often a side is started until the kernel lets it live.
const TRIES: usize = 3;

/// The row whose peer is our side, too, without the check.
const SAME_FILLED: Task = Task::SameFilled { check: true };

const fn row(
    part: Part,
    task: Task,
    what: &'static str,
    figure: &'static str,
    unit: &'static str,
    target: Target,
) -> Wanted {
    Wanted { part, task, what, figure, unit, target }
}

#[rustfmt::skip]
const WANTED: [Wanted; 11] = [
    row(Part::Fill, Task::Pass, "fill, per page", "fill_ns", "ns", plan::FILL),
    row(Part::Sequential, Task::Pass, "sequential read, per page", "sequential_ns", "ns", plan::SEQUENTIAL),
    row(Part::Random, Task::Random, "random read, per access", "random_ns", "ns", plan::RANDOM),
    row(Part::Job, Task::Job, "sort and group-by", "job_s", "s", plan::JOB),
    row(Part::Zipf, Task::Zipf, "two threads, Zipf 0.99", "zipf_ops_per_s", "/s", plan::ZIPF),
    row(Part::Memory, Task::Pass, "memory held after both passes", "held_bytes", "B", plan::MEMORY),
    row(Part::Memory, Task::Pass, "memory held at most", "peak_bytes", "B", plan::MEMORY),
    row(Part::SameFilled, SAME_FILLED, "page of zeroes: store", "store_zero_ns", "ns", plan::SAME_STORE),
    row(Part::SameFilled, SAME_FILLED, "page of zeroes: load", "load_zero_ns", "ns", plan::SAME_LOAD),
    row(Part::SameFilled, SAME_FILLED, "page of one word: store", "store_word_ns", "ns", plan::SAME_STORE),
    row(Part::SameFilled, SAME_FILLED, "page of one word: load", "load_word_ns", "ns", plan::SAME_LOAD),
];

/// Measures what was asked for and adds rows and tables.
pub fn measure(
    set: &PageSet,
    plan: &MemoryPlan,
    args: &MemoryArgs,
    report: &mut Report,
) -> anyhow::Result<()> {
    let is_wanted = |w: &&Wanted| args.only.is_empty() || args.only.contains(&w.part);
    let (bench, notes) = Bench::new(set, plan)?;
    notes.into_iter().for_each(|note| report.note(note));
    let mut rounds = serde_json::Map::new();
    for task in [Task::Pass, Task::Random, Task::Job, Task::Zipf, SAME_FILLED] {
        let wanted: Vec<_> = WANTED.iter().filter(is_wanted).filter(|w| w.task == task).collect();
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
    /// How often the kernel killed its side.
    killed: usize,
    /// What our side counted in the last round.
    statistics: serde_json::Value,
}

/// The two sides of a task: each a side, what it does, and whether it is ours in the report.
fn sides(bench: &Bench, task: Task) -> Vec<(Side, Task, bool)> {
    match task {
        SAME_FILLED => {
            vec![(Side::Pagefold, task, true), (Side::Pagefold, Task::SameFilled { check: false }, false)]
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
        let mut told = Vec::new();
        for (side, task, is_ours) in sides {
            if !args.quick && std::io::stderr().is_terminal() {
                let (name, round) = (name(task), round + 1);
                output::diagnostics(&format!("measuring {name}, round {round} of {rounds}, {side:?} ...\n"));
            }
            let one = figures.try_to_measure(bench, side, task)?;
            told.extend(one.map(|one| (one, is_ours)));
        }
        for (one, is_ours) in told {
            let wanted = *checksum.get_or_insert(one.checksum);
            anyhow::ensure!(one.checksum == wanted, "{}: the sides came to different results", name(task));
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
        Task::SameFilled { .. } => "same-filled",
    }
}

impl Figures {
    /// Measures until the kernel lets its side live, three times at most.
    fn try_to_measure(&mut self, bench: &Bench, side: Side, task: Task) -> anyhow::Result<Option<Told>> {
        for _ in 0..TRIES {
            if let Some(told) = bench.measure(side, task)? {
                return Ok(Some(told));
            }
            self.killed += 1;
        }
        Ok(None)
    }

    fn add(&mut self, told: Told, is_ours: bool) {
        let to = if is_ours { &mut self.pagefold } else { &mut self.peer };
        for (name, value) in told.figures {
            to.entry(name).or_default().push(value);
        }
        if is_ours {
            self.statistics = told.statistics;
        }
    }

    /// `None` if nobody has the figure: without a meter nobody knows what memory is held.
    fn row(&self, wanted: &Wanted, set: &PageSet) -> Option<Row> {
        let (ours, peer) = (self.pagefold.get(wanted.figure), self.peer.get(wanted.figure));
        if ours.is_none() && peer.is_none() {
            return None;
        }
        let against = if wanted.task == SAME_FILLED { "check off" } else { "kernel swap to zram" };
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
            Task::SameFilled { .. } => "store and load of same-filled pages",
        };
        let content = match task {
            Task::Job => "a table",
            Task::SameFilled { .. } => "zeroes, and of another word",
            _ => &set.name,
        };
        let title = format!("{what}: {} of {content}, limit {}", human(size), human(plan.limit_bytes));
        let peer = if task == SAME_FILLED { "check off" } else { "kernel" };
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
