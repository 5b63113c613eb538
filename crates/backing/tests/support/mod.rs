//! Every medium and every layer, for tests that run on all of them.

#![allow(dead_code, reason = "each test file uses a part of this module")]

mod devices;

pub use devices::{LoopDevice, sparse_file};
use pagefold_backing::layer::{
    DelayLayer, DelayOptions, ErrorLayer, ManualClock, StatsLayer, TornLayer, TraceLayer,
};
use pagefold_backing::{Backing, Direct, FileBacking, FileOptions, MemoryBacking, Uring};
use pagefold_testkit::skipped;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// The media's size: not a power of two, a multiple of any block.
pub const LEN_BYTES: usize = 3 * 64 * 4096;

/// A medium, with the loop device that it may be on.
pub struct Medium {
    pub name: &'static str,
    pub backing: Box<dyn Backing>,
    _loop: Option<LoopDevice>,
}

/// A file as a medium; `None` if the options require direct I/O or io_uring and they are not available here.
pub fn file(direct: Direct, uring: Uring) -> Option<FileBacking> {
    match FileBacking::new(sparse_file(LEN_BYTES as u64), FileOptions { direct, uring }) {
        Ok(backing) => Some(backing),
        Err(e) => {
            skipped!("contract_of_files: {direct:?} and {uring:?}: {e}");
            None
        }
    }
}

fn loop_device() -> Option<Medium> {
    let device = LoopDevice::attach("contract_of_block_devices", &sparse_file(LEN_BYTES as u64))?;
    let file = File::options().read(true).write(true).open(&device.0.path).unwrap();
    let backing = FileBacking::new(file, FileOptions::default()).unwrap();
    Some(Medium { name: "block device", backing: Box::new(backing), _loop: Some(device) })
}

fn layers() -> Vec<(&'static str, Box<dyn Backing>)> {
    let memory = || MemoryBacking::new(LEN_BYTES);
    let clock = Arc::new(ManualClock::default());
    let jittery = DelayOptions { depth: 4, jitter: Duration::from_millis(1), seed: 7, ..Default::default() };
    vec![
        ("error", Box::new(ErrorLayer::new(memory()))),
        ("delay", Box::new(DelayLayer::new(memory(), DelayOptions::default(), clock.clone()))),
        ("delay with jitter", Box::new(DelayLayer::new(memory(), jittery, clock))),
        ("trace", Box::new(TraceLayer::new(memory(), true))),
        ("stats", Box::new(StatsLayer::new(memory()))),
        ("torn", Box::new(TornLayer::new(memory()))),
    ]
}

/// All media that are available here, filled with zeroes.
pub fn all() -> Vec<Medium> {
    let mut media: Vec<(&'static str, Box<dyn Backing>)> =
        vec![("memory", Box::new(MemoryBacking::new(LEN_BYTES)))];
    let files = [
        ("file, page cache, positioned", Direct::Off, Uring::Off),
        ("file, page cache, ring", Direct::Off, Uring::On),
        ("file, direct, positioned", Direct::On, Uring::Off),
        ("file, direct, ring", Direct::On, Uring::On),
    ];
    for (name, direct, uring) in files {
        media.extend(file(direct, uring).map(|backing| (name, Box::new(backing) as Box<dyn Backing>)));
    }
    media.extend(layers());
    if let Some(backing) = file(Direct::On, Uring::On) {
        let below: Arc<dyn Backing> = Arc::new(backing);
        let stack = TornLayer::new(ErrorLayer::new(TraceLayer::new(below, false)));
        media.push(("layers on a ring", Box::new(StatsLayer::new(stack))));
    }
    let plain = media.into_iter().map(|(name, backing)| Medium { name, backing, _loop: None });
    plain.chain(loop_device()).collect()
}
