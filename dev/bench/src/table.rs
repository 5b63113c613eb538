//! Tables of figures for people, and the same in JSON.

use serde::Serialize;

/// A table of figures without a target.
#[derive(Debug, Serialize)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row. The number of cells must equal the number of columns.
    pub fn push<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// Formats the title, the heading and the rows.
    pub fn text(&self) -> String {
        let cells: Vec<_> = std::iter::once(&self.columns).chain(&self.rows).cloned().collect();
        format!("{}\n{}", self.title, aligned(&cells))
    }
}

/// Formats a number with about three significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats rows of cells; each column is as wide as its widest cell.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}
