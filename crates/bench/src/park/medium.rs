//! The media that pages are parked on.

use anyhow::Context;
use pagefold_backing::layer::{Clock, DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, Direct, FileBacking, FileOptions, MemoryBacking, Uring};
use std::fs::{File, OpenOptions};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

/// What is written at once when a medium is touched.
const TOUCH_LEN: usize = 1 << 20;

/// The modelled medium: memory that takes its time.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Modelled {
    delay_us: u64,
    depth: u32,
    bytes_per_s: Option<u64>,
}

impl Modelled {
    /// So long a request, so many at once, and a bandwidth if it is bounded.
    pub fn new(delay_us: u64, depth: u32, bytes_per_s: Option<u64>) -> Self {
        Modelled { delay_us, depth, bytes_per_s }
    }

    /// Whether targets are about this one.
    pub fn is_reference(self) -> bool {
        (self.delay_us, self.depth, self.bytes_per_s) == (100, 32, None)
    }

    /// In a few words.
    pub fn describe(self) -> String {
        let Modelled { delay_us, depth, bytes_per_s } = self;
        let rate = bytes_per_s.map_or(String::new(), |rate| format!(", {rate} bytes/s"));
        format!("{delay_us} us per request, depth {depth}{rate}")
    }

    /// Requests per second that it can do at most.
    pub fn requests_per_s(self) -> f64 {
        f64::from(self.depth) * 1e6 / self.delay_us as f64
    }

    /// One of so many bytes, all touched, and the switch of its delay.
    pub fn make(self, len_bytes: u64) -> anyhow::Result<(Arc<dyn Backing>, Arc<Switch>)> {
        let options = DelayOptions {
            delay: Duration::from_micros(self.delay_us),
            depth: self.depth as usize,
            bytes_per_s: self.bytes_per_s,
            ..DelayOptions::default()
        };
        let switch = Arc::new(Switch::new());
        let inner = MemoryBacking::new(usize::try_from(len_bytes)?);
        touch(&inner)?;
        Ok((Arc::new(DelayLayer::new(inner, options, switch.clone())), switch))
    }
}

/// How time passes at a modelled medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Waiting {
    /// To the microsecond, at the cost of a CPU that spins at the end of each wait.
    Precise,
    /// Asleep all the time, as a thread is that waits for a device, and woken a little late.
    Asleep,
    /// Single requests take no time: for preparing and checking. Requests in queues still have theirs.
    Off,
}

/// The clock of a modelled medium.
pub struct Switch {
    clock: SystemClock,
    waiting: AtomicU8,
}

thread_local! {
    /// Done once for each thread that waits. Where it is refused, threads are woken later, that is all.
    static TIMER_SLACK: () = { let _ = pagefold_sys::timer::set_slack_ns(NonZeroU64::MIN); };
}

impl Switch {
    fn new() -> Self {
        Switch { clock: SystemClock::new(), waiting: AtomicU8::new(Waiting::Precise as u8) }
    }

    /// Sets how time passes from now on.
    pub fn set(&self, waiting: Waiting) {
        self.waiting.store(waiting as u8, Relaxed);
    }

    fn is(&self, waiting: Waiting) -> bool {
        self.waiting.load(Relaxed) == waiting as u8
    }
}

impl Clock for Switch {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn wait_until(&self, time: Duration) {
        if self.is(Waiting::Off) {
            return;
        }
        if !self.is(Waiting::Asleep) {
            return self.clock.wait_until(time);
        }
        TIMER_SLACK.with(|()| ());
        while let Some(left) = time.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left);
        }
    }
}

/// Memory without delay, all touched.
pub fn memory(len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
    let memory = MemoryBacking::new(usize::try_from(len_bytes)?);
    touch(&memory)?;
    Ok(Arc::new(memory))
}

/// Where files are made.
#[derive(Debug, Clone, Copy)]
pub struct FileAt<'a>(pub Option<&'a Path>);

impl FileAt<'_> {
    /// A file of so many bytes, used with direct I/O, all written once so that its blocks are allocated. It has
    /// no name any more, so it is gone when it is closed, whatever closes it.
    pub fn make(self, len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
        let Some(path) = self.0 else {
            let temp = std::env::temp_dir();
            return direct(tempfile::tempfile_in("."), len_bytes)
                .or_else(|_| direct(tempfile::tempfile_in(&temp), len_bytes))
                .with_context(|| {
                    format!("no file with direct I/O can be had here or in '{}'; use --file", temp.display())
                });
        };
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        if file.is_ok() {
            std::fs::remove_file(path).with_context(|| format!("removing '{}'", path.display()))?;
        }
        direct(file, len_bytes).with_context(|| format!("using '{}' for parking", path.display()))
    }
}

fn direct(file: std::io::Result<File>, len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
    let file = file?;
    file.set_len(len_bytes)?;
    let backing = FileBacking::new(file, FileOptions { direct: Direct::On, uring: Uring::Auto })?;
    touch(&backing)?;
    backing.flush()?;
    Ok(Arc::new(backing))
}

/// Writes all of a medium once: the first use of a block, or of memory, costs more than later ones.
fn touch(backing: &dyn Backing) -> anyhow::Result<()> {
    let mut bytes = pagefold_backing::Buffer::new(TOUCH_LEN);
    bytes.fill(0x5a);
    for at in (0..backing.len_bytes()).step_by(TOUCH_LEN) {
        let len = (backing.len_bytes() - at).min(TOUCH_LEN as u64) as usize;
        backing.write_at(at, &bytes[..len])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_leaves_nothing_behind_and_is_not_put_over_another() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("parked");
        match FileAt(Some(&path)).make(1 << 20) {
            Ok(backing) => assert_eq!(backing.len_bytes(), 1 << 20),
            Err(e) => eprintln!("SKIPPED a_file_leaves_nothing_behind (in part): {e:#}"),
        }
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        assert!(FileAt(Some(&path)).make(1 << 20).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_medium_is_slow_only_while_it_is_switched_on() {
        let (backing, switch) = Modelled::new(20_000, 1, None).make(4096).unwrap();
        for waiting in [Waiting::Precise, Waiting::Asleep] {
            switch.set(waiting);
            let mut byte = [0];
            let started = switch.now();
            backing.read_at(0, &mut byte).unwrap();
            assert!(switch.now() - started >= Duration::from_millis(20));
            assert_eq!(byte, [0x5a]);
        }
        switch.set(Waiting::Off);
        let before = switch.now();
        switch.wait_until(before + Duration::from_secs(3600));
    }
}
