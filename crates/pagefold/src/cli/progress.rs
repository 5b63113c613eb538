//! How far a pass, or a walk over an image, is, as a bar on a terminal.

use crate::cli::chart;
use crate::service::parked::PassProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagefold_page::size::Human;

const RUNNING: &str = "{bar:30} {percent:>3} %  {msg}  {elapsed}";
const WAITING: &str = "{msg}  {elapsed}";

/// A bar on standard error; nothing where that is no terminal.
pub struct PassBar {
    bar: ProgressBar,
    wanted: bool,
}

impl PassBar {
    /// A bar that appears with the first progress it is shown, if it is wanted.
    pub fn new(wanted: bool) -> Self {
        PassBar { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()), wanted }
    }

    /// Shows how far it is.
    pub fn show(&mut self, p: &PassProgress) {
        if std::mem::take(&mut self.wanted) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.reset_elapsed();
        }
        let template = if p.total_pages > 0 { RUNNING } else { WAITING };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("##-"));
        }
        self.bar.set_length(p.total_pages);
        self.bar.set_position(p.seen_pages);
        self.bar.set_message(match p.total_pages {
            0 => "beginning".to_string(),
            _ => format!("{} pages parked, {} written", chart::count(p.parked_pages), Human(p.written_bytes)),
        });
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The same for a number of files, of how many the image says there are.
pub struct FilesBar(PassBar);

impl FilesBar {
    /// A bar that appears with the first progress it is shown, if it is wanted.
    pub fn new(wanted: bool) -> Self {
        FilesBar(PassBar::new(wanted))
    }

    /// Shows how far it is; `of` is 0 if nobody knows.
    pub fn show(&mut self, files: u64, of: u64, bytes: u64) {
        if std::mem::take(&mut self.0.wanted) {
            self.0.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.0.bar.reset_elapsed();
        }
        let template = if of > 0 { RUNNING } else { WAITING };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.bar.set_style(style.progress_chars("##-"));
        }
        self.0.bar.set_length(of.max(files));
        self.0.bar.set_position(files);
        self.0.bar.set_message(format!("{}, {}", chart::counted(files, "file", "files"), Human(bytes)));
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bars_templates_are_understood() {
        for template in [RUNNING, WAITING] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
