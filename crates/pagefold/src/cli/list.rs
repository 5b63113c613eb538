//! Lists: tables whose columns the user chooses, for people and for scripts.

use super::output;
use clap::Args;
use pagefold_control::error::{CliError, Result};
use pagefold_page::size::Human;

/// The options that commands with a list have in common.
#[derive(Debug, Args)]
pub struct ListOptions {
    /// Print only these columns, in this order
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with = "json")]
    pub output: Option<Vec<String>>,
    /// Leave out the line of headings
    #[arg(long, conflicts_with = "json")]
    pub noheadings: bool,
    /// Print sizes as numbers of bytes
    #[arg(long, conflicts_with = "json")]
    pub bytes: bool,
    /// Print JSON with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// Adds the names of the columns to the help of `--output`, for a command with [`ListOptions`].
pub fn with_columns(command: clap::Command, columns: &[&str]) -> clap::Command {
    let columns = columns.join(", ");
    let help = format!("Print only these columns, in this order, separated by commas. There are {columns}");
    command.mut_arg("output", |output| output.help(help))
}

/// One cell of a list.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A size, in human units or, with `--bytes`, in bytes.
    Bytes(u64),
    /// Nothing: the value does not exist.
    Absent,
    /// A value that is not known, for instance because a server does not answer.
    Unknown,
}

/// A list with `N` columns, of which the user may have chosen some.
pub struct List<'a, const N: usize> {
    options: &'a ListOptions,
    /// The columns to print, in order.
    chosen: Vec<usize>,
    /// The lines to print.
    lines: Vec<Vec<String>>,
}

impl<'a, const N: usize> List<'a, N> {
    /// An empty list. An error if the user chose a column that is not in `columns`.
    pub fn new(columns: &[&str; N], options: &'a ListOptions) -> Result<Self> {
        let find = |name: &String| {
            let found = columns.iter().position(|column| column.eq_ignore_ascii_case(name.trim()));
            found.ok_or_else(|| {
                let columns = columns.join(", ");
                CliError::usage(format!("--output: there is no column {name:?}; the columns are {columns}"))
            })
        };
        let chosen = match &options.output {
            Some(names) => names.iter().map(find).collect::<Result<_>>()?,
            None => (0..N).collect(),
        };
        let mut list = List { options, chosen, lines: Vec::new() };
        if !options.noheadings {
            list.row(columns.map(|column| Cell::Text(column.to_string())));
        }
        Ok(list)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [Cell; N]) {
        let text = |cell: &Cell| match cell {
            Cell::Text(text) => text.clone(),
            Cell::Bytes(bytes) if self.options.bytes => bytes.to_string(),
            Cell::Bytes(bytes) => Human(*bytes).to_string(),
            Cell::Absent => "-".to_string(),
            Cell::Unknown => "?".to_string(),
        };
        let line = self.chosen.iter().map(|&column| text(&cells[column])).collect();
        self.lines.push(line);
    }

    /// Prints the list.
    pub fn print(&self) -> Result<()> {
        output::text(&self.render())
    }

    /// Formats the list as lines. Columns are as wide as their widest cell.
    fn render(&self) -> String {
        let width = |i: usize| self.lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.chosen.len()).map(width).collect();
        self.lines.iter().map(|line| output::columns(line, &widths) + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::error::Exit;

    fn options(output: Option<&str>) -> ListOptions {
        let output = output.map(|names| names.split(',').map(str::to_string).collect());
        ListOptions { output, noheadings: false, bytes: false, json: false }
    }

    fn render(options: &ListOptions) -> Result<String> {
        let mut list = List::new(&["A", "LONG", "SIZE"], options)?;
        list.row([Cell::Text("wide cell".into()), Cell::Absent, Cell::Bytes(3 << 10)]);
        list.row([Cell::Text("b".into()), Cell::Unknown, Cell::Bytes(1)]);
        Ok(list.render())
    }

    #[test]
    fn columns_line_up() {
        let text = "A          LONG  SIZE\nwide cell  -     3 KiB\nb          ?     1 B\n";
        assert_eq!(render(&options(None)).unwrap(), text);
    }

    #[test]
    fn columns_are_chosen_in_any_order_and_case() {
        let chosen = ListOptions { noheadings: true, bytes: true, ..options(Some("size,a")) };
        assert_eq!(render(&chosen).unwrap(), "3072  wide cell\n1     b\n");
        let failure = render(&options(Some("A,B"))).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("\"B\"; the columns are A, LONG, SIZE"), "{failure}");
    }
}
