//! The engine of all measurements, and the report of a run: one table, or the same as JSON.
//!
//! A measurement compares pagefold with peers: each is a [`Side`], whose call does one round and returns the values of
//! all its [`Figure`]s. [`Report::compare`] lets the sides alternate and makes a row of each figure and peer.

use crate::output;
use crate::stats::Rounds;
use clap::ValueEnum;
use serde::Serialize;
use std::io::IsTerminal;

/// The subject of a row: its name, its unit, and the goal of the ratio of pagefold to the peer.
#[derive(Debug, Clone, Copy)]
pub struct Figure(pub &'static str, pub &'static str, pub Target);

/// The goal of a row. Its kind says which side of 1 is better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The ratio should be at most this.
    AtMost(f64),
    /// The ratio should be at least this.
    AtLeast(f64),
}

impl Target {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtMost(most) => ratio <= most,
            Target::AtLeast(least) => ratio >= least,
        }
    }
}

/// The parts of a command that run: those that `--only` names, or all.
pub fn chosen<T: ValueEnum + PartialEq>(only: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().cloned();
    all.filter(|part| only.is_empty() || only.contains(part)).collect()
}

type Round<'a> = Box<dyn FnMut(usize) -> anyhow::Result<Vec<f64>> + 'a>;

/// A side of a comparison.
pub struct Side<'a> {
    name: &'static str,
    round: Option<Round<'a>>,
}

impl<'a> Side<'a> {
    /// A side that returns the values of a round, given the round's number.
    pub fn new(name: &'static str, round: impl FnMut(usize) -> anyhow::Result<Vec<f64>> + 'a) -> Self {
        Side { name, round: Some(Box::new(round)) }
    }

    /// A side that cannot be measured here.
    pub fn missing(name: &'static str) -> Self {
        Side { name, round: None }
    }
}

/// The results of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether everything runs once and small.
    pub quick: bool,
    /// Whether figures are comparable with those of other runs.
    pub comparable: bool,
    notes: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    set: String,
    unit: &'static str,
    against: &'static str,
    target: Target,
    /// Pagefold's median.
    ours: f64,
    /// The peer's median; NaN, in JSON null, if it was not measured.
    peer: f64,
    /// The median of the rounds' ratios, which the target is compared with.
    ratio: f64,
    /// Every round of pagefold, then of the peer.
    rounds: [Rounds; 2],
    verdict: &'static str,
}

impl Report {
    /// An empty report. The figures of a quick run are never comparable.
    pub fn new(quick: bool) -> Self {
        Report { quick, comparable: !quick, notes: Vec::new(), rows: Vec::new() }
    }

    /// Adds a note, unless it is already there.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A number of the full plan, or that of `--quick`. Figures are comparable only if all these numbers are the same.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Measures `figures` of pagefold, the first side, and of its peers, all others; adds a row for each figure and
    /// peer. The rounds are those that do not count, and those that do.
    pub fn compare(
        &mut self,
        set: &str,
        figures: &[Figure],
        [warm_up, counted]: [usize; 2],
        mut sides: Vec<Side>,
    ) -> anyhow::Result<()> {
        let mut measured = vec![vec![Rounds::default(); figures.len()]; sides.len()];
        for round in 0..warm_up + counted {
            if !self.quick && std::io::stderr().is_terminal() {
                let (what, all) = (figures[0].0, warm_up + counted);
                output::diagnostics(&format!("measuring {what}, {set}: round {} of {all}\n", round + 1));
            }
            for i in 0..sides.len() {
                // The first side alternates, so that none always finds the caches as another left them.
                let i = (i + round) % sides.len();
                let Some(side) = &mut sides[i].round else { continue };
                let values = side(round)?;
                if round >= warm_up {
                    measured[i].iter_mut().zip(values).for_each(|(rounds, value)| rounds.push(value));
                }
            }
        }
        for (i, figure) in figures.iter().enumerate() {
            for (side, peer) in sides.iter().zip(&measured).skip(1) {
                self.add(set, *figure, side.name, [&measured[0][i], &peer[i]].map(Clone::clone));
            }
        }
        Ok(())
    }

    fn add(&mut self, set: &str, figure: Figure, against: &'static str, rounds: [Rounds; 2]) {
        let Figure(what, unit, target) = figure;
        let [ours, peer] = rounds.each_ref().map(Rounds::median);
        let ratio = rounds[0].over(&rounds[1]).median();
        // Without cgroups the memory in use is unknown.
        if ours.is_nan() && peer.is_nan() {
            return;
        }
        let verdict = match ratio {
            _ if !self.comparable => "not_comparable",
            _ if ratio.is_nan() => "no_peer",
            _ if target.is_met(ratio) => "met",
            _ => "missed",
        };
        let set = set.to_string();
        self.rows.push(Row { what, set, unit, against, target, ours, peer, ratio, rounds, verdict });
    }

    /// Formats everything as JSON, each round's figures included.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Formats the table and the notes as text.
    pub fn text(&self) -> String {
        let heading = ["median (min-max)", "set", "pagefold", "against", "peer", "ratio", "target", ""];
        let rows = self.rows.iter().map(Row::cells);
        let mut text = aligned(&[heading.map(str::to_string)].into_iter().chain(rows).collect::<Vec<_>>());
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        if self.quick {
            text += "note: this was a quick run, which only tests the program; its figures mean nothing\n";
        }
        text
    }
}

impl Row {
    fn cells(&self) -> [String; 8] {
        let [ours, peer] = self.rounds.each_ref().map(|rounds| spread(rounds, self.unit));
        let ratio = spread(&self.rounds[0].over(&self.rounds[1]), "");
        let target = match self.target {
            Target::AtMost(most) => format!("<= {most:.2}"),
            Target::AtLeast(least) => format!(">= {least:.2}"),
        };
        let verdict = match self.verdict {
            "missed" => "MISSED".into(),
            verdict => verdict.replace('_', " "),
        };
        [self.what.into(), self.set.clone(), ours, self.against.into(), peer, ratio, target, verdict]
    }
}

fn spread(rounds: &Rounds, unit: &str) -> String {
    let [median, min, max] = [rounds.median(), rounds.range()[0], rounds.range()[1]].map(number);
    if rounds.median().is_nan() { "-".into() } else { format!("{median} ({min}-{max}) {unit}") }
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats rows of cells; each column is as wide as its widest cell.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const TIME: Figure = Figure("x", "ns", Target::AtMost(0.9));

    /// The verdict of a comparison whose rounds all have this value on pagefold's side, and 1 on the other.
    fn verdict(ours: f64, peer: Option<f64>, comparable: bool) -> &'static str {
        let mut report = Report { comparable, ..Report::new(false) };
        let peer = peer.map_or(Side::missing("peer"), |value| Side::new("peer", move |_| Ok(vec![value])));
        report.compare("set", &[TIME], [0, 1], vec![Side::new("ours", |_| Ok(vec![ours])), peer]).unwrap();
        report.rows[0].verdict
    }

    #[test]
    fn a_verdict_needs_a_peer_and_comparable_pages() {
        assert_eq!(verdict(0.9, Some(1.0), true), "met");
        assert_eq!(verdict(0.91, Some(1.0), true), "missed");
        assert_eq!(verdict(0.9, None, true), "no_peer");
        assert_eq!(verdict(0.1, Some(1.0), false), "not_comparable");
        assert!(Target::AtLeast(1.03).is_met(1.03) && !Target::AtLeast(1.03).is_met(1.0299));
    }

    #[test]
    fn sides_alternate_and_only_rounds_after_the_warm_up_count() {
        let order = RefCell::new(String::new());
        let side = |name: &'static str, value: f64| {
            let order = &order;
            Side::new(name, move |round| {
                order.borrow_mut().push_str(name);
                Ok(vec![value * round as f64])
            })
        };
        let mut report = Report::new(false);
        report.compare("set", &[TIME], [1, 3], vec![side("a", 1.0), side("b", 2.0)]).unwrap();
        assert_eq!(order.take(), "abbaabba");
        let row = &report.rows[0];
        assert_eq!((row.ours, row.peer, row.ratio, row.against), (2.0, 4.0, 0.5, "b"));
    }

    #[test]
    fn a_missed_row_is_printed_as_missed_and_an_unknown_one_not_at_all() {
        let mut report = Report::new(false);
        for (ours, peer) in [(2.0, 1.0), (f64::NAN, f64::NAN)] {
            let sides = vec![Side::new("a", |_| Ok(vec![ours])), Side::new("b", |_| Ok(vec![peer]))];
            report.compare("set", &[TIME], [0, 1], sides).unwrap();
        }
        assert_eq!(report.text().lines().count(), 2);
        assert!(report.text().contains("MISSED"));
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(json["rows"][0]["verdict"], "missed");
        assert_eq!(json["rows"][0]["target"]["at_most"], 0.9);
    }
}
