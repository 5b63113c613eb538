//! Prints the progress of the job and its memory: one line that is refreshed on a terminal, otherwise a line a second.

use crate::job::Phase;
use pagefold_memory::{Region, RegionStats};
use pagefold_page::size::Human;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PHASES: [Phase; 3] = [Phase::Generate, Phase::Sort, Phase::Group];

/// The progress of the job: its thread sets it, and the printing thread reads it.
pub struct Progress {
    phase: AtomicU64,
    /// Completed part of the phase, per mille.
    done: AtomicU64,
    ended: AtomicBool,
}

impl Progress {
    /// The progress at the beginning of the job.
    pub fn new() -> Self {
        Progress { phase: AtomicU64::new(0), done: AtomicU64::new(0), ended: AtomicBool::new(false) }
    }

    /// Sets the phase, and its completed part, 0 to 1.
    pub fn set(&self, phase: Phase, done: f64) {
        let number = PHASES.iter().position(|p| *p == phase).unwrap_or(0);
        self.phase.store(number as u64, Relaxed);
        self.done.store((done * 1000.0) as u64, Relaxed);
    }

    /// Notes that the job has ended.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }
}

/// Prints the progress until the job has ended.
pub struct Show<'a> {
    region: &'a Region,
    progress: &'a Progress,
    faults: u64,
    at: Instant,
}

impl<'a> Show<'a> {
    /// Makes a printer; [`Show::run`] prints.
    pub fn new(region: &'a Region, progress: &'a Progress) -> Self {
        Show { region, progress, faults: 0, at: Instant::now() }
    }

    /// Prints until the job has ended.
    pub fn run(mut self) {
        /// How often the thread polls for the end of the job.
        const POLL: Duration = Duration::from_millis(20);
        let is_terminal = std::io::stdout().is_terminal();
        let every = Duration::from_millis(if is_terminal { 250 } else { 1000 });
        while !self.progress.ended.load(Relaxed) {
            std::thread::sleep(POLL);
            if self.at.elapsed() >= every {
                let line = self.line();
                // An error means that nobody reads the output; the job continues.
                let _ = match is_terminal {
                    // Returns the cursor to the beginning of the line and erases the line.
                    true => write!(std::io::stdout(), "\r\x1b[K{line}"),
                    false => writeln!(std::io::stdout(), "{line}"),
                };
                let _ = std::io::stdout().flush();
            }
        }
        if is_terminal {
            let _ = write!(std::io::stdout(), "\r\x1b[K");
        }
    }

    fn line(&mut self) -> String {
        let stats = self.region.stats();
        let faults = faults(&stats);
        let per_s = (faults - self.faults) as f64 / self.at.elapsed().as_secs_f64();
        (self.faults, self.at) = (faults, Instant::now());
        let phase = PHASES[self.progress.phase.load(Relaxed) as usize % PHASES.len()];
        format!(
            "{:<8} {:>3} %   resident {:>10}   compressed {:>10}   ratio {:>5.2}   {:>7.0} faults/s",
            phase.name(),
            self.progress.done.load(Relaxed) / 10,
            Human(stats.memory.resident).to_string(),
            Human(stats.folded_bytes).to_string(),
            stats.ratio(),
            per_s
        )
    }
}

/// Number of page faults.
fn faults(stats: &RegionStats) -> u64 {
    let faults = &stats.faults;
    faults.zero + faults.folded + faults.staged
}
