//! Progress bars of writeback passes and of walks over images. `--quiet` hides them.

use super::output;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use pagefold_control::report::writeback::PassProgress;
use pagefold_control::text;
use pagefold_image_build::{Phase, Progress};
use pagefold_page::size::Human;
use std::io::IsTerminal;
use std::time::Duration;

const RUNNING: &str = "{bar:30} {percent:>3} %  {msg}  {elapsed}";
const BYTES: &str = "{bar:30} {percent:>3} %  {msg}  {binary_bytes_per_sec}{left}";
const UNKNOWN: &str = "{msg}  {binary_bytes_per_sec}  {elapsed}";
const WAITING: &str = "{msg}  {elapsed}";
/// The number of files that are found is shown in steps of this.
const FOUND_STEP: u64 = 1000;
/// The time that is left appears after this part of the work, in percent ...
const RATE_PERCENT: u64 = 3;
/// ... or after this time: a rate of less says little.
const RATE_TIME: Duration = Duration::from_secs(5);

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
        self.show_message(BYTES, done, total, format!("{} to {}", Human(done), Human(result)));
    }

    /// Shows that `done` of `total` bytes are copied.
    pub fn show_copied(&mut self, done: u64, total: u64) {
        self.show_message(BYTES, done, total, format!("{} of {}", Human(done), Human(total)));
    }

    /// Shows that `done` of `total` bytes were compared with a digest.
    pub fn show_verified(&mut self, done: u64, total: u64) {
        let message = format!("{} of {} compared with the digest", Human(done), Human(total));
        self.show_message(BYTES, done, total, message);
    }

    /// Shows a message, in this template.
    fn show_message(&mut self, template: &str, done: u64, total: u64, message: String) {
        if std::mem::take(&mut self.is_pending) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.reset_elapsed();
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style.progress_chars("##-").with_key("left", write_time_left));
            }
        }
        self.bar.set_length(total.max(done));
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The number of files that were found, while the source of a build is read.
pub struct FoundBar {
    bar: ProgressBar,
    is_pending: bool,
}

impl FoundBar {
    /// Makes a line that appears when there are many files, or never if not `enabled` or `--quiet`.
    pub fn new(enabled: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        FoundBar { bar, is_pending: enabled && !output::is_quiet() }
    }

    /// Shows that there are `count` files so far.
    pub fn show(&mut self, count: u64) {
        if !count.is_multiple_of(FOUND_STEP) || count == 0 {
            return;
        }
        if std::mem::take(&mut self.is_pending) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.reset_elapsed();
            if let Ok(style) = ProgressStyle::with_template(WAITING) {
                self.bar.set_style(style);
            }
        }
        self.bar.set_message(format!("{} found", files_text(count)));
        self.bar.tick();
    }

    /// Removes the line.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The progress bar of a build: one for each time that it reads the contents.
pub struct BuildBar {
    bytes: BytesBar,
    phase: Option<Phase>,
}

impl BuildBar {
    /// Makes a bar that appears at the first call of `show`, or never if not `enabled` or `--quiet`.
    pub fn new(enabled: bool) -> Self {
        BuildBar { bytes: BytesBar::new(enabled), phase: None }
    }

    /// Shows the progress. The rate and the time that is left are those of the phase.
    pub fn show(&mut self, progress: &Progress) {
        if self.phase.replace(progress.phase).is_some_and(|before| before != progress.phase) {
            self.bytes.bar.reset();
        }
        let &Progress { phase, done_bytes, total_bytes, image_bytes } = progress;
        match phase {
            Phase::Scanning => {
                let message = format!("searched {} for equal parts", Human(done_bytes));
                self.bytes.show_message(BYTES, done_bytes, total_bytes, message);
            }
            Phase::Writing => self.bytes.show(done_bytes, total_bytes, image_bytes),
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bytes.end();
    }
}

/// The progress bar of an extraction.
pub struct ExtractBar {
    bytes: BytesBar,
    /// Inodes and bytes of contents, as far as they are known.
    total: Option<(u64, u64)>,
}

impl ExtractBar {
    /// Whether a bar would appear: standard error is a terminal, and there is no `--quiet`.
    pub fn is_wanted() -> bool {
        std::io::stderr().is_terminal() && !output::is_quiet()
    }

    /// Makes a bar that appears at the first call of `show`, or never if not `enabled` or `--quiet`.
    pub fn new(enabled: bool, total: Option<(u64, u64)>) -> Self {
        ExtractBar { bytes: BytesBar::new(enabled), total }
    }

    /// Shows how many files were created, and how many bytes of contents are done.
    pub fn show(&mut self, files: u64, bytes: u64) {
        let (of_files, of_bytes) = self.total.unzip();
        let template = if of_bytes.is_some() { BYTES } else { UNKNOWN };
        self.bytes.show_message(
            template,
            bytes,
            of_bytes.unwrap_or_default(),
            progress_text(files, bytes, of_files, of_bytes),
        );
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bytes.end();
    }
}

/// Writes the column of the time that is left.
fn write_time_left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    if has_rate(state.pos(), state.len().unwrap_or_default(), state.elapsed()) {
        // A bar has no way to report an error, and a string takes all text.
        let _ = write!(out, "  {:#} left", HumanDuration(state.eta()));
    }
}

/// Whether `done` of `total` units in this time say how long the rest takes.
fn has_rate(done: u64, total: u64, elapsed: Duration) -> bool {
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    done > 0 && (percent >= u128::from(RATE_PERCENT) || elapsed >= RATE_TIME)
}

fn progress_text(files: u64, bytes: u64, of_files: Option<u64>, of_bytes: Option<u64>) -> String {
    let of_files = of_files.map(|n| format!(" of {}", text::grouped(n))).unwrap_or_default();
    let of_bytes = of_bytes.map(|n| format!(" of {}", Human(n))).unwrap_or_default();
    format!("{}{of_files} files, {}{of_bytes}", text::grouped(files), Human(bytes))
}

fn files_text(files: u64) -> String {
    format!("{} {}", text::grouped(files), if files == 1 { "file" } else { "files" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_bars_are_valid() {
        for template in [RUNNING, BYTES, UNKNOWN, WAITING] {
            ProgressStyle::with_template(template).unwrap();
        }
    }

    #[test]
    fn the_time_that_is_left_appears_when_there_is_a_rate() {
        let seconds = Duration::from_secs;
        assert!(!has_rate(0, 0, seconds(0)) && !has_rate(0, 1000, seconds(60)));
        assert!(!has_rate(1, 1000, seconds(0)) && !has_rate(29, 1000, seconds(4)));
        assert!(has_rate(30, 1000, seconds(0)) && has_rate(1, u64::MAX, seconds(5)));
        assert!(has_rate(u64::MAX, u64::MAX, seconds(0)));
    }

    #[test]
    fn the_progress_of_an_extraction_has_totals_if_they_are_known() {
        assert_eq!(
            progress_text(1200, 1 << 20, Some(3000), Some(2 << 20)),
            "1 200 of 3 000 files, 1 MiB of 2 MiB"
        );
        assert_eq!(progress_text(7, 512, None, None), "7 files, 512 B");
    }
}
