//! The media that pages are written back to.

use anyhow::Context;
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock, TimeSource};
use pagefold_backing::{Backing, Direct, FileBacking, FileOptions, MemoryBacking, Uring};
use std::fs::{File, OpenOptions};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

/// Length of the writes that touch a medium.
const TOUCH_LEN: usize = 1 << 20;

/// The modelled medium: memory with a latency, a queue depth and possibly a limited bandwidth.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Modelled {
    delay_us: u64,
    depth: u32,
    bytes_per_s: Option<u64>,
}

impl Modelled {
    /// A medium whose requests take `delay_us`, `depth` of them at the same time; `None` is an unlimited bandwidth.
    pub fn new(delay_us: u64, depth: u32, bytes_per_s: Option<u64>) -> Self {
        Modelled { delay_us, depth, bytes_per_s }
    }

    /// Whether this is the reference medium, for which the targets are defined.
    pub fn is_reference(self) -> bool {
        (self.delay_us, self.depth, self.bytes_per_s) == (100, 32, None)
    }

    /// A short description for the report.
    pub fn describe(self) -> String {
        let Modelled { delay_us, depth, bytes_per_s } = self;
        let rate = bytes_per_s.map_or(String::new(), |rate| format!(", {rate} bytes/s"));
        format!("{delay_us} us per request, depth {depth}{rate}")
    }

    /// Maximum number of requests per second.
    pub fn requests_per_s(self) -> f64 {
        f64::from(self.depth) * 1e6 / self.delay_us as f64
    }

    /// Makes a medium of this size, touches all of it, and returns it with its clock, which can switch the delay off.
    pub fn make(self, len_bytes: u64) -> anyhow::Result<(Arc<dyn Backing>, Arc<MediumClock>)> {
        let options = DelayOptions {
            delay: Duration::from_micros(self.delay_us),
            depth: self.depth as usize,
            bytes_per_s: self.bytes_per_s,
            ..DelayOptions::default()
        };
        let clock = Arc::new(MediumClock::new());
        let inner = MemoryBacking::new(usize::try_from(len_bytes)?);
        touch(&inner)?;
        Ok((Arc::new(DelayLayer::new(inner, options, clock.clone())), clock))
    }
}

/// How a modelled medium waits for the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DelayMode {
    /// Accurate to a microsecond: the thread spins at the end of each wait and uses CPU time.
    Precise,
    /// The thread sleeps all the time, as if it waited for a device, and is woken slightly late.
    Asleep,
    /// Single requests take no time, for preparation and verification. Requests in queues are still delayed.
    Off,
}

/// The clock of a modelled medium, with a mode that can be changed while the medium is in use.
pub struct MediumClock {
    clock: SystemClock,
    mode: AtomicU8,
}

thread_local! {
    /// Sets the timer slack of each waiting thread once. If the kernel refuses, threads are only woken later.
    static TIMER_SLACK: () = { let _ = pagefold_sys::timer::set_slack_ns(NonZeroU64::MIN); };
}

impl MediumClock {
    fn new() -> Self {
        MediumClock { clock: SystemClock::new(), mode: AtomicU8::new(DelayMode::Precise as u8) }
    }

    /// Sets the mode of all waits from now on.
    pub fn set_mode(&self, mode: DelayMode) {
        self.mode.store(mode as u8, Relaxed);
    }

    fn is(&self, mode: DelayMode) -> bool {
        self.mode.load(Relaxed) == mode as u8
    }
}

impl TimeSource for MediumClock {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn wait_until(&self, time: Duration) {
        if self.is(DelayMode::Off) {
            return;
        }
        if !self.is(DelayMode::Asleep) {
            return self.clock.wait_until(time);
        }
        TIMER_SLACK.with(|()| ());
        while let Some(left) = time.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left);
        }
    }
}

/// Makes a medium of memory without delay, and touches all of it.
pub fn memory(len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
    let memory = MemoryBacking::new(usize::try_from(len_bytes)?);
    touch(&memory)?;
    Ok(Arc::new(memory))
}

/// The path of the file for rows on a real file; `None` for an unnamed file in the current folder or TMPDIR.
#[derive(Debug, Clone, Copy)]
pub struct FileLocation<'a>(pub Option<&'a Path>);

impl FileLocation<'_> {
    /// Makes a file of this size for direct I/O and writes all of it once, so that its blocks are allocated. The file
    /// has no name, so the kernel removes it when it is closed, even if the process is killed.
    pub fn make(self, len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
        let Some(path) = self.0 else {
            let temp = std::env::temp_dir();
            return direct(tempfile::tempfile_in("."), len_bytes)
                .or_else(|_| direct(tempfile::tempfile_in(&temp), len_bytes))
                .with_context(|| {
                    format!(
                        "a file with direct I/O can be made neither here nor in '{}'; use --file",
                        temp.display()
                    )
                });
        };
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        if file.is_ok() {
            std::fs::remove_file(path).with_context(|| format!("removing '{}'", path.display()))?;
        }
        direct(file, len_bytes).with_context(|| format!("using '{}' for writeback", path.display()))
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

/// Writes all of a medium once, because the first use of a block or of memory is slower than later ones.
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
    fn a_file_is_removed_and_never_replaces_an_existing_one() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("backing");
        match FileLocation(Some(&path)).make(1 << 20) {
            Ok(backing) => assert_eq!(backing.len_bytes(), 1 << 20),
            Err(e) => {
                eprintln!("SKIPPED a_file_is_removed_and_never_replaces_an_existing_one (in part): {e:#}")
            }
        }
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        assert!(FileLocation(Some(&path)).make(1 << 20).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_medium_delays_requests_except_in_mode_off() {
        let (backing, clock) = Modelled::new(20_000, 1, None).make(4096).unwrap();
        for mode in [DelayMode::Precise, DelayMode::Asleep] {
            clock.set_mode(mode);
            let mut byte = [0];
            let started = clock.now();
            backing.read_at(0, &mut byte).unwrap();
            assert!(clock.now() - started >= Duration::from_millis(20));
            assert_eq!(byte, [0x5a]);
        }
        clock.set_mode(DelayMode::Off);
        let before = clock.now();
        clock.wait_until(before + Duration::from_secs(3600));
    }
}
