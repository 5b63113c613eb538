//! The progress bar of all commands. `--quiet` hides it.

use super::output;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use pagefold_control::report::writeback::PassProgress;
use pagefold_control::text;
use pagefold_image_build::{Phase, Progress};
use pagefold_page::size::Human;
use std::fmt::Display;
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

/// A progress bar on standard error, if that is a terminal. It appears with the first progress, and disappears when it is
/// dropped.
pub struct Bar {
    bar: ProgressBar,
    is_enabled: bool,
    template: &'static str,
    phase: Option<Phase>,
}

impl Bar {
    /// Makes a bar that never appears if not `enabled`, or with `--quiet`.
    pub fn new(enabled: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Bar { bar, is_enabled: enabled && !output::is_quiet(), template: "", phase: None }
    }

    /// Whether a bar would appear: standard error is a terminal, and there is no `--quiet`.
    pub fn is_wanted() -> bool {
        std::io::stderr().is_terminal() && !output::is_quiet()
    }

    /// Shows the progress of a pass over a disk: how many pages are `done`, and how many bytes that `amount` to, such as
    /// "written back" and "written".
    pub fn show_pass(&mut self, p: &PassProgress, [done, amount]: [&str; 2]) {
        if p.total_pages == 0 {
            return self.show(WAITING, 0, 0, "starting".into());
        }
        let (pages, bytes) = (text::grouped(p.done_pages), Human(p.done_bytes));
        self.show(RUNNING, p.seen_pages, p.total_pages, format!("{pages} pages {done}, {bytes} {amount}"));
    }

    /// Shows the progress of a walk over an image. `of` is the number of files that the super block says, 0 if it does
    /// not.
    pub fn show_files(&mut self, files: u64, of: u64, bytes: u64) {
        let template = if of > 0 { RUNNING } else { WAITING };
        self.show(template, files, of, format!("{}, {}", files_text(files), Human(bytes)));
    }

    /// Shows the number of files that were found, while the source of a build is read.
    pub fn show_found(&mut self, count: u64) {
        if count > 0 && count.is_multiple_of(FOUND_STEP) {
            self.show(WAITING, 0, 0, format!("{} found", files_text(count)));
        }
    }

    /// Shows the progress of a build. The rate and the time that is left are those of the phase.
    pub fn show_build(&mut self, progress: &Progress) {
        if self.phase.replace(progress.phase).is_some_and(|before| before != progress.phase) {
            self.bar.reset();
        }
        let &Progress { phase, done_bytes, total_bytes, image_bytes } = progress;
        match phase {
            Phase::Scanning => {
                let message = format!("searched {} for equal parts", Human(done_bytes));
                self.show(BYTES, done_bytes, total_bytes, message);
            }
            Phase::Writing => {
                self.show_bytes(done_bytes, total_bytes, format_args!("to {}", Human(image_bytes)))
            }
        }
    }

    /// Shows that `done` of `total` bytes are done, followed by `what`, such as "to 3 MiB" or "of 4 MiB".
    pub fn show_bytes(&mut self, done: u64, total: u64, what: impl Display) {
        self.show(BYTES, done, total, format!("{} {what}", Human(done)));
    }

    /// Shows how many files an extraction created, and how many bytes of contents are done; of these if they are known.
    pub fn show_extracted(&mut self, files: u64, bytes: u64, of: Option<(u64, u64)>) {
        let template = if of.is_some() { BYTES } else { UNKNOWN };
        let (of_files, of_bytes) = of.unzip();
        let message = progress_text(files, bytes, of_files, of_bytes);
        self.show(template, bytes, of_bytes.unwrap_or_default(), message);
    }

    fn show(&mut self, template: &'static str, done: u64, total: u64, message: String) {
        if std::mem::take(&mut self.is_enabled) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.reset_elapsed();
        }
        if std::mem::replace(&mut self.template, template) != template
            && let Ok(style) = ProgressStyle::with_template(template)
        {
            self.bar.set_style(style.progress_chars("##-").with_key("left", write_time_left));
        }
        self.bar.set_length(total.max(done));
        self.bar.set_position(done);
        self.bar.set_message(message);
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
