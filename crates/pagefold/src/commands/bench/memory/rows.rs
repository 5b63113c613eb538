//! The rows: rounds of both sides, ratios, and the table of what has no target.

use super::child::{Task, Told};
use super::plan::{self, MemoryPlan};
use super::run::Bench;
use super::space::Side;
use super::{MemoryArgs, Part};
use crate::commands::bench::pages::PageSet;
use crate::commands::bench::plan::Target;
use crate::commands::bench::report::{Report, Row};
use crate::commands::bench::stats::Rounds;
use crate::commands::bench::table::{Table, number};
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

const WANTED: [Wanted; 7] = [
    Wanted {
        part: Part::Fill,
        task: Task::Pass,
        what: "fill, per page",
        figure: "fill_ns",
        unit: "ns",
        target: plan::FILL,
    },
    Wanted {
        part: Part::Sequential,
        task: Task::Pass,
        what: "sequential read, per page",
        figure: "sequential_ns",
        unit: "ns",
        target: plan::SEQUENTIAL,
    },
    Wanted {
        part: Part::Random,
        task: Task::Random,
        what: "random read, per access",
        figure: "random_ns",
        unit: "ns",
        target: plan::RANDOM,
    },
    Wanted {
        part: Part::Job,
        task: Task::Job,
        what: "sort and group-by",
        figure: "job_s",
        unit: "s",
        target: plan::JOB,
    },
    Wanted {
        part: Part::Zipf,
        task: Task::Zipf,
        what: "two threads, Zipf 0.99",
        figure: "zipf_ops_per_s",
        unit: "/s",
        target: plan::ZIPF,
    },
    Wanted {
        part: Part::Memory,
        task: Task::Pass,
        what: "memory held after both passes",
        figure: "held_bytes",
        unit: "B",
        target: plan::MEMORY,
    },
    Wanted {
        part: Part::Memory,
        task: Task::Pass,
        what: "memory held at most",
        figure: "peak_bytes",
        unit: "B",
        target: plan::MEMORY,
    },
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
    for task in [Task::Pass, Task::Random, Task::Job, Task::Zipf] {
        let wanted: Vec<_> = WANTED.iter().filter(is_wanted).filter(|w| w.task == task).collect();
        if wanted.is_empty() {
            continue;
        }
        let figures = rounds_of(&bench, task, plan.rounds, args)?;
        report.rows.extend(wanted.iter().filter_map(|w| figures.row(w, set)));
        report.tables.push(figures.table(task, set, plan));
        rounds.insert(format!("{task:?}").to_lowercase(), serde_json::to_value(&figures)?);
    }
    report.rounds = rounds.into();
    Ok(())
}

/// Every round of one task.
#[derive(Default, Serialize)]
struct Figures {
    pagefold: BTreeMap<String, Rounds>,
    kernel: BTreeMap<String, Rounds>,
    /// What our side counted in the last round.
    statistics: serde_json::Value,
}

fn rounds_of(bench: &Bench, task: Task, rounds: usize, args: &MemoryArgs) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    let mut checksum = None;
    for round in 0..rounds {
        let mut sides = bench.sides();
        let first = round % sides.len().max(1);
        sides.rotate_left(first);
        for side in sides {
            if !args.quick && std::io::stderr().is_terminal() {
                eprintln!("measuring {task:?}, round {} of {rounds}, {side:?} ...", round + 1);
            }
            let told = bench.measure(side, task)?;
            let wanted = *checksum.get_or_insert(told.checksum);
            anyhow::ensure!(told.checksum == wanted, "{task:?}: {side:?} came to another result");
            figures.add(side, told);
        }
    }
    Ok(figures)
}

impl Figures {
    fn add(&mut self, side: Side, told: Told) {
        let to = match side {
            Side::Pagefold => &mut self.pagefold,
            Side::Kernel => &mut self.kernel,
        };
        for (name, value) in told.figures {
            to.entry(name).or_default().push(value);
        }
        if side == Side::Pagefold {
            self.statistics = told.statistics;
        }
    }

    /// `None` if nobody has the figure: without a meter nobody knows what memory is held.
    fn row(&self, wanted: &Wanted, set: &PageSet) -> Option<Row> {
        let (ours, peer) = (self.pagefold.get(wanted.figure), self.kernel.get(wanted.figure));
        if ours.is_none() && peer.is_none() {
            return None;
        }
        let row = Row::new(wanted.what, set, wanted.unit, "kernel swap to zram", wanted.target);
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
        };
        let content = if task == Task::Job { "a table" } else { &set.name };
        let title = format!("{what}: {} of {content}, limit {}", human(size), human(plan.limit_bytes));
        let columns = ["figure: median (min-max)", "pagefold", "kernel", "ratio"];
        let mut table = Table::new(title, &columns);
        let names: std::collections::BTreeSet<_> = self.pagefold.keys().chain(self.kernel.keys()).collect();
        for name in names {
            let (ours, peer) = (self.pagefold.get(name), self.kernel.get(name));
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
