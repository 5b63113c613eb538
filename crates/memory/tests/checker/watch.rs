//! Reporting of failures, and a watchdog for threads that hang.
//!
//! Output bypasses the test harness, because the process is aborted afterwards: other threads may hang, so the failing
//! thread cannot unwind and join them.

use pagefold_memory::Region;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The threads hang if none makes a step for so long.
const HANG: Duration = Duration::from_secs(20);
/// A thread hangs if it makes no step for so long.
const HANG_OF_ONE: Duration = Duration::from_secs(45);

/// Prints directly to the standard error stream.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// Prints a failure with the statistics and the stacks of all threads, and aborts.
pub fn fail(region: &Region, message: &str) -> ! {
    say(&format!("FAILED: {message}\n{:#?}", region.stats()));
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state =
            read("status").lines().find(|line| line.starts_with("State")).unwrap_or_default().to_owned();
        say(&format!("task {:?} {} {state}\n{}", task.file_name(), read("comm").trim(), read("stack")));
    }
    std::process::abort();
}

/// Aborts if threads make no steps, until `is_over`.
pub fn watch(region: &Region, steps: &[AtomicU64], is_over: &AtomicBool) {
    let now = || -> Vec<u64> { steps.iter().map(|steps| steps.load(Relaxed)).collect() };
    let mut seen = now();
    let mut changed = vec![Instant::now(); steps.len()];
    while !is_over.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        for (i, steps) in now().into_iter().enumerate() {
            // The largest number: this thread is done.
            if steps != seen[i] || steps == u64::MAX {
                (seen[i], changed[i]) = (steps, Instant::now());
            }
        }
        let idle = changed.iter().map(Instant::elapsed);
        let (least, most) = (idle.clone().min().unwrap_or_default(), idle.max().unwrap_or_default());
        if (least > HANG || most > HANG_OF_ONE) && !is_over.load(Relaxed) {
            fail(region, &format!("threads hang: idle for {least:?} to {most:?}, steps {seen:?}"));
        }
    }
}
