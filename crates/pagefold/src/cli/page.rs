//! Text output in sections: headings, and rows of a name and a value.

use super::style::{self, HEADING};
use anstyle::Style;

/// Builds the text of a page.
pub struct Page {
    text: String,
    colours: bool,
    /// Columns of the names of rows.
    name_width: usize,
}

impl Page {
    /// Makes an empty page. Names of rows are padded to `name_width` columns.
    pub fn new(colours: bool, name_width: usize) -> Self {
        Page { text: String::new(), colours, name_width }
    }

    /// Adds a heading, after an empty line unless it is the first.
    pub fn heading(&mut self, text: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        let heading = self.paint(HEADING, text);
        self.push(&format!("{gap}{heading}\n"));
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str, value: &str) {
        let width = self.name_width;
        self.push(&format!("  {name:<width$} {value}\n"));
    }

    /// Adds text that contains its newlines.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Returns `text` in `style`, if the page has colours.
    pub fn paint(&self, style: Style, text: &str) -> String {
        style::paint(self.colours, style, text)
    }

    /// The text of the page.
    pub fn into_text(self) -> String {
        self.text
    }
}
