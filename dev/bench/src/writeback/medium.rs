//! The media that pages are written back to.

use anyhow::Context;
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, Direct, FileBacking, FileOptions, MemoryBacking, Uring};
use pagefold_page::PAGE_SIZE;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Length of the writes that touch a medium.
const TOUCH_LEN: usize = 1 << 20;
/// Offset of the first segment or block.
pub const HEADER_LEN: u64 = 1 << 20;

/// A kind of medium.
pub enum Medium {
    /// Memory with a latency and a queue depth.
    Modelled(DelayOptions),
    /// A file with direct I/O in this folder; `None` is the current folder or TMPDIR.
    File(Option<PathBuf>),
}

impl Medium {
    /// A medium whose requests take `delay_us`, `depth` of them at the same time.
    pub fn modelled(delay_us: u64, depth: u32) -> Self {
        let (delay, depth) = (Duration::from_micros(delay_us), depth as usize);
        Medium::Modelled(DelayOptions { delay, depth, ..DelayOptions::default() })
    }

    /// A short description for the report.
    pub fn name(&self) -> String {
        let Medium::Modelled(options) = self else { return "real file".into() };
        format!("modelled medium, {} us, depth {}", options.delay.as_micros(), options.depth)
    }

    /// Makes a medium of this size, and writes all of it once, because the first use of a block or of memory is slower
    /// than later ones. A file has no name, so the kernel removes it when it is closed, even if the process is killed.
    pub fn make(&self, len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
        match self {
            Medium::Modelled(options) => {
                Ok(Arc::new(DelayLayer::new(memory(len_bytes)?, *options, Arc::new(SystemClock::new()))))
            }
            Medium::File(Some(folder)) => direct(tempfile::tempfile_in(folder), len_bytes)
                .with_context(|| format!("using a file in '{}' for writeback", folder.display())),
            Medium::File(None) => direct(tempfile::tempfile_in("."), len_bytes)
                .or_else(|_| direct(tempfile::tempfile(), len_bytes))
                .context("a file with direct I/O can be made neither here nor in TMPDIR; use --folder"),
        }
    }
}

/// Makes a medium of memory without delay, and touches all of it.
pub fn memory(len_bytes: u64) -> anyhow::Result<MemoryBacking> {
    let memory = MemoryBacking::new(usize::try_from(len_bytes)?);
    touch(&memory)?;
    Ok(memory)
}

fn direct(file: std::io::Result<File>, len_bytes: u64) -> anyhow::Result<Arc<dyn Backing>> {
    let file = file?;
    file.set_len(len_bytes)?;
    let backing = FileBacking::new(file, FileOptions { direct: Direct::On, uring: Uring::Auto })?;
    touch(&backing)?;
    backing.flush()?;
    Ok(Arc::new(backing))
}

fn touch(backing: &dyn Backing) -> anyhow::Result<()> {
    let mut bytes = pagefold_backing::Buffer::new(TOUCH_LEN);
    bytes.fill(0x5a);
    for at in (0..backing.len_bytes()).step_by(TOUCH_LEN) {
        let len = (backing.len_bytes() - at).min(TOUCH_LEN as u64) as usize;
        backing.write_at(at, &bytes[..len])?;
    }
    Ok(())
}

/// Size of a medium, bytes, that has space for this many pages in every layout, with a header each, and for more.
pub fn ample_len(pages: u64) -> u64 {
    HEADER_LEN + (pages * (PAGE_SIZE as u64 + 64) + (16 << 20)).next_multiple_of(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_file_leaves_no_name_and_needs_its_folder() {
        let folder = tempfile::tempdir_in(".").unwrap();
        match Medium::File(Some(folder.path().into())).make(1 << 20) {
            Ok(backing) => assert_eq!(backing.len_bytes(), 1 << 20),
            Err(e) => {
                pagefold_testkit::skipped!("a_file_leaves_no_name_and_needs_its_folder (in part): {e:#}")
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(Medium::File(Some(folder.path().join("absent"))).make(1 << 20).is_err());
    }

    #[test]
    fn a_modelled_medium_delays_requests() {
        let backing = Medium::modelled(20_000, 1).make(4096).unwrap();
        let mut byte = [0];
        let started = Instant::now();
        backing.read_at(0, &mut byte).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(20));
        assert_eq!(byte, [0x5a]);
    }
}
