//! Progress bars of writeback passes and of walks over images. `--quiet` hides them.

use super::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagefold_control::report::writeback::PassProgress;
use pagefold_control::text;
use pagefold_page::size::Human;

const RUNNING: &str = "{bar:30} {percent:>3} %  {msg}  {elapsed}";
const BYTES: &str = "{bar:30} {percent:>3} %  {msg}  {binary_bytes_per_sec}  {eta} left";
const WAITING: &str = "{msg}  {elapsed}";

/// The progress bar of a pass, on standard error if that is a terminal.
pub struct PassBar {
    bar: ProgressBar,
    /// Whether the bar is to appear at the next progress.
    is_pending: bool,
    /// The words behind the numbers of pages and of bytes.
    words: [&'static str; 2],
}

impl PassBar {
    /// Makes a bar that appears at the first call of `show`, or never if not `enabled` or `--quiet`. It says how many
    /// pages are `done`, and how many bytes that `amount` to, such as "written back" and "written".
    pub fn new(enabled: bool, done: &'static str, amount: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        PassBar { bar, is_pending: enabled && !output::is_quiet(), words: [done, amount] }
    }

    /// Shows the progress.
    pub fn show(&mut self, p: &PassProgress) {
        if std::mem::take(&mut self.is_pending) {
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
            0 => "starting".to_string(),
            _ => format!(
                "{} pages {}, {} {}",
                text::grouped(p.done_pages),
                self.words[0],
                Human(p.done_bytes),
                self.words[1]
            ),
        });
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The progress bar of a walk over the files of an image.
pub struct FilesBar(PassBar);

impl FilesBar {
    /// Makes a bar that appears at the first call of `show`, or never if not `enabled` or `--quiet`.
    pub fn new(enabled: bool) -> Self {
        FilesBar(PassBar::new(enabled, "", ""))
    }

    /// Shows the progress. `of` is the number of files that the super block says, 0 if it does not.
    pub fn show(&mut self, files: u64, of: u64, bytes: u64) {
        if std::mem::take(&mut self.0.is_pending) {
            self.0.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.0.bar.reset_elapsed();
        }
        let template = if of > 0 { RUNNING } else { WAITING };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.bar.set_style(style.progress_chars("##-"));
        }
        self.0.bar.set_length(of.max(files));
        self.0.bar.set_position(files);
        self.0.bar.set_message(format!("{}, {}", files_text(files), Human(bytes)));
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.0.end();
    }
}

/// The progress bar of work on a known number of bytes, with its rate and the time that is left.
pub struct BytesBar {
    bar: ProgressBar,
    is_pending: bool,
}

impl BytesBar {
    /// Makes a bar that appears at the first call of `show`, or never if not `enabled` or `--quiet`.
    pub fn new(enabled: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        BytesBar { bar, is_pending: enabled && !output::is_quiet() }
    }

    /// Shows that `done` of `total` bytes became `result` bytes.
    pub fn show(&mut self, done: u64, total: u64, result: u64) {
        if std::mem::take(&mut self.is_pending) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.reset_elapsed();
            if let Ok(style) = ProgressStyle::with_template(BYTES) {
                self.bar.set_style(style.progress_chars("##-"));
            }
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(format!("{} to {}", Human(done), Human(result)));
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn files_text(files: u64) -> String {
    format!("{} {}", text::grouped(files), if files == 1 { "file" } else { "files" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_bars_are_valid() {
        for template in [RUNNING, BYTES, WAITING] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
