//! The settings of a disk that outlast a store: they are made before the disk has a size, and a store is made of them.
//!
//! While the disk has a size, most cannot be changed. A reset makes all of them what they are on a new disk without a
//! configuration. zram keeps its limit of writeback through a reset, against its own documentation; this does not.

use super::Medium;
use super::codec;
use pagefold_control::config::{CodecConfig, DiskConfig, RecompressAfter};
use pagefold_store::FURTHER_CODECS_MAX;
use pagefold_store::writeback::{LayoutKind, Settings};
use std::sync::Arc;

/// The number of priorities: the primary codec, and the further ones.
pub const PRIORITY_COUNT: usize = FURTHER_CODECS_MAX + 1;

/// The codec of a new disk.
const DEFAULT_CODEC: &str = "lz4";

/// The settings of a disk.
#[derive(Clone)]
pub struct Setup {
    /// The codecs by priority; the first is the primary one.
    pub codecs: [Option<CodecConfig>; PRIORITY_COUNT],
    /// The rules of automatic recompression.
    pub recompress_after: Vec<RecompressAfter>,
    /// Limit of the pool's memory; `None` for the store's default, 0 for no limit.
    pub mem_limit_bytes: Option<u64>,
    /// Whether a page that repeats a word is stored as that word.
    pub same_filled: bool,
    /// The medium that pages are written back to.
    pub medium: Option<Medium>,
    /// Whether written-back pages are compressed and packed.
    pub layout: LayoutKind,
    /// The settings of writeback of a disk without a medium, or without a size. Afterwards those of the store count.
    pub writeback: Arc<Settings>,
}

impl Setup {
    /// The settings of a configuration.
    pub fn new(config: &DiskConfig, medium: Option<Medium>) -> Self {
        let mut codecs = [const { None }; PRIORITY_COUNT];
        let given = std::iter::once(&config.codec).chain(&config.further_codecs);
        codecs.iter_mut().zip(given).for_each(|(place, codec)| *place = Some(codec.clone()));
        Setup {
            codecs,
            recompress_after: config.recompress_after.clone(),
            mem_limit_bytes: config.mem_limit_bytes,
            layout: medium.as_ref().map_or(LayoutKind::Log, |m| m.layout),
            medium,
            ..Setup::default()
        }
    }

    /// The codec of a priority; the one without parameters if none is chosen.
    pub fn codec_mut(&mut self, priority: usize) -> Option<&mut CodecConfig> {
        self.codecs.get_mut(priority).and_then(Option::as_mut)
    }

    /// Chooses the algorithm of a priority. Its parameters stay.
    pub fn choose(&mut self, priority: usize, name: &str) {
        if let Some(place) = self.codecs.get_mut(priority) {
            match place {
                Some(codec) => codec.name = name.to_string(),
                None => *place = Some(codec::plain(name)),
            }
        }
    }

    /// The priorities of the algorithm `name`, from the lowest.
    pub fn priorities_of(&self, name: &str) -> impl Iterator<Item = usize> {
        let is_it = move |codec: &Option<CodecConfig>| codec.as_ref().is_some_and(|codec| codec.name == name);
        (0..PRIORITY_COUNT).filter(move |priority| is_it(&self.codecs[*priority]))
    }

    /// The primary codec.
    pub fn primary(&self) -> CodecConfig {
        self.codecs[0].clone().unwrap_or_else(|| codec::plain(DEFAULT_CODEC))
    }
}

impl Default for Setup {
    /// The settings of a disk after a reset: as zram's, no limit of memory.
    fn default() -> Self {
        let mut codecs = [const { None }; PRIORITY_COUNT];
        codecs[0] = Some(codec::plain(DEFAULT_CODEC));
        Setup {
            codecs,
            recompress_after: Vec::new(),
            mem_limit_bytes: Some(0),
            same_filled: true,
            medium: None,
            layout: LayoutKind::Log,
            writeback: Arc::default(),
        }
    }
}
