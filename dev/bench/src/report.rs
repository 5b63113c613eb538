//! The report of a run, as tables and as JSON: figures with a target ([`Row`]), figures without ([`Table`],
//! [`SetReport`]), and notes.

use super::pages::PageSet;
use super::plan::Target;
use super::stats::Rounds;
use super::subject::Memory;
use super::table::{self, Table, number};
use serde::Serialize;

/// The results of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The fixed numbers.
    plan: serde_json::Value,
    quick: bool,
    /// Missing requirements and other remarks.
    notes: Vec<String>,
    /// The page sets.
    pub sets: Vec<SetReport>,
    /// Figures without a target.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// Figures with a target.
    pub rows: Vec<Row>,
    /// Every round's figures, except those in `sets`.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub rounds: serde_json::Value,
}

/// One page set.
#[derive(Debug, Serialize)]
pub struct SetReport {
    /// Name of the set.
    pub name: String,
    /// Pages measured.
    pub pages: usize,
    /// Whether the pages were captured, so that figures are comparable with other runs.
    pub comparable: bool,
    /// Share of same-filled pages, 0 to 1.
    pub same_filled: f64,
    /// Pagefold, then the kernel if it was measured.
    pub subjects: Vec<SubjectReport>,
}

/// One subject on one page set. The elements of arrays are for requests of 4 KiB and of 1 MiB.
#[derive(Debug, Serialize)]
pub struct SubjectReport {
    name: &'static str,
    /// Nanoseconds per page stored.
    pub store: [Rounds; 2],
    /// Nanoseconds per page loaded.
    pub load: [Rounds; 2],
    /// Memory after the last round.
    pub memory: Memory,
}

impl SubjectReport {
    /// A report without figures.
    pub fn new(name: &'static str) -> Self {
        SubjectReport { name, store: Default::default(), load: Default::default(), memory: Memory::default() }
    }
}

/// The result of a row against its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Met,
    Missed,
    NoPeer,
    NotComparable,
}

/// A figure with a target.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub(super) what: &'static str,
    pub(super) set: String,
    pub(super) unit: &'static str,
    pub(super) against: &'static str,
    pub(super) target: Target,
    pub(super) comparable: bool,
    /// Pagefold's median.
    pub ours: f64,
    /// The peer's median, if the peer was measured.
    pub peer: Option<f64>,
    /// The median of the rounds' ratios, which the target is compared with.
    pub ratio: Option<f64>,
}

impl Row {
    /// A row about one page set, without figures.
    pub fn new(
        what: &'static str,
        set: &PageSet,
        unit: &'static str,
        against: &'static str,
        target: Target,
    ) -> Self {
        let row = Row::of_all(what, set.comparable, unit, against, target);
        Row { set: set.name.clone(), ..row }
    }

    /// A row about all page sets together, without figures.
    pub fn of_all(
        what: &'static str,
        comparable: bool,
        unit: &'static str,
        against: &'static str,
        target: Target,
    ) -> Self {
        let set = "all".to_string();
        Row { what, set, unit, against, target, comparable, ours: f64::NAN, peer: None, ratio: None }
    }

    fn verdict(&self) -> Verdict {
        match self.ratio {
            _ if !self.comparable => Verdict::NotComparable,
            None => Verdict::NoPeer,
            Some(ratio) if self.target.is_met(ratio) => Verdict::Met,
            Some(_) => Verdict::Missed,
        }
    }
}

impl Report {
    /// An empty report on a run with this plan. The figures of a quick run are never comparable.
    pub fn new(plan: impl Serialize, quick: bool, notes: Vec<String>) -> Self {
        let plan = serde_json::to_value(plan).unwrap_or_default();
        Report {
            plan,
            quick,
            notes,
            sets: Vec::new(),
            tables: Vec::new(),
            rows: Vec::new(),
            rounds: serde_json::Value::Null,
        }
    }

    /// Adds a note, unless it is already there.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn verdict(&self, row: &Row) -> Verdict {
        if self.quick { Verdict::NotComparable } else { row.verdict() }
    }

    /// Formats everything as JSON, each round's figures included.
    pub fn json(&self) -> anyhow::Result<String> {
        let mut value = serde_json::to_value(self)?;
        let verdicts = self.rows.iter().map(|row| serde_json::to_value(self.verdict(row)));
        if let Some(rows) = value["rows"].as_array_mut() {
            for (row, verdict) in rows.iter_mut().zip(verdicts) {
                row["verdict"] = verdict?;
            }
        }
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }

    /// Formats tables and notes as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for set in &self.sets {
            text += &set.text();
        }
        for table in &self.tables {
            text += &format!("{}\n", table.text());
        }
        if !self.rows.is_empty() {
            text += &table::aligned(&self.row_cells());
            text += "\n";
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        if self.quick {
            text += "note: this was a quick run, which only tests the program; its figures mean nothing\n";
        }
        text
    }

    fn row_cells(&self) -> Vec<Vec<String>> {
        let heading = ["what", "set", "pagefold", "against", "peer", "ratio", "target", ""];
        let mut cells = vec![heading.map(str::to_string).to_vec()];
        for row in &self.rows {
            let figure = |value: Option<f64>| match value {
                Some(v) => format!("{} {}", number(v), row.unit),
                None => "-".into(),
            };
            let target = match row.target {
                Target::AtMost(most) => format!("<= {most:.2}"),
                Target::AtLeast(least) => format!(">= {least:.2}"),
            };
            let verdict = match self.verdict(row) {
                Verdict::Met => "met",
                Verdict::Missed => "MISSED",
                Verdict::NoPeer => "no peer here",
                Verdict::NotComparable => "not comparable",
            };
            cells.push(vec![
                row.what.into(),
                row.set.clone(),
                figure(Some(row.ours)),
                row.against.into(),
                figure(row.peer),
                row.ratio.map_or("-".into(), |r| format!("{r:.3}")),
                target,
                verdict.into(),
            ]);
        }
        cells
    }
}

impl SetReport {
    fn text(&self) -> String {
        let heading = [
            "ns per page: median (min-max)",
            "store 4 KiB",
            "load 4 KiB",
            "store 1 MiB",
            "load 1 MiB",
            "ratio",
            "used / stored",
            "memory",
            "with slots",
        ];
        let mut cells = vec![heading.map(str::to_string).to_vec()];
        for subject in &self.subjects {
            let m = &subject.memory;
            cells.push(vec![
                subject.name.into(),
                spread(&subject.store[0]),
                spread(&subject.load[0]),
                spread(&subject.store[1]),
                spread(&subject.load[1]),
                format!("{:.3}", m.ratio()),
                format!("{:.4}", m.used as f64 / m.stored as f64),
                pagefold_page::size::Human(m.used).to_string(),
                pagefold_page::size::Human(m.with_slots).to_string(),
            ]);
        }
        let comparable = if self.comparable { "" } else { "; NOT COMPARABLE, no captured pages" };
        let share = 100.0 * self.same_filled;
        let what = format!("{}: {} pages, {share:.1} % same-filled{comparable}", self.name, self.pages);
        format!("{what}\n{}\n", table::aligned(&cells))
    }
}

fn spread(rounds: &Rounds) -> String {
    format!("{:.0} ({:.0}-{:.0})", rounds.median(), rounds.min(), rounds.max())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Plan};

    fn row(ratio: Option<f64>, comparable: bool) -> Row {
        Row { ratio, ..Row::of_all("x", comparable, "ns", "peer", plan::STORE) }
    }

    #[test]
    fn a_verdict_needs_a_peer_and_comparable_pages() {
        assert_eq!(row(Some(0.9), true).verdict(), Verdict::Met);
        assert_eq!(row(Some(0.91), true).verdict(), Verdict::Missed);
        assert_eq!(row(None, true).verdict(), Verdict::NoPeer);
        assert_eq!(row(Some(0.1), false).verdict(), Verdict::NotComparable);
    }

    #[test]
    fn a_missed_row_is_printed_as_missed() {
        let mut report = Report::new(Plan::FULL, false, Vec::new());
        report.rows.push(row(Some(2.0), true));
        assert!(report.text().contains("MISSED"));
        assert!(report.json().unwrap().contains("\"missed\""));
    }
}
