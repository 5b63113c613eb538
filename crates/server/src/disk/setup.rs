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
    /// The codecs by priority; the first is the primary one. One without a name is not chosen: as in zram, its parameters
    /// can be chosen before its algorithm.
    codecs: [CodecConfig; PRIORITY_COUNT],
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
        let mut codecs: [CodecConfig; PRIORITY_COUNT] = Default::default();
        let given = std::iter::once(&config.codec).chain(&config.further_codecs);
        codecs.iter_mut().zip(given).for_each(|(codec, given)| *codec = given.clone());
        Setup {
            codecs,
            recompress_after: config.recompress_after.clone(),
            mem_limit_bytes: config.mem_limit_bytes,
            layout: medium.as_ref().map_or(LayoutKind::Log, |m| m.layout),
            medium,
            ..Setup::default()
        }
    }

    /// The codecs of all priorities, those that are not chosen among them.
    pub fn codecs(&self) -> &[CodecConfig; PRIORITY_COUNT] {
        &self.codecs
    }

    /// The same with these codecs.
    pub fn with_codecs(self, codecs: [CodecConfig; PRIORITY_COUNT]) -> Self {
        Setup { codecs, ..self }
    }

    /// The codec of a priority, if its algorithm is chosen.
    pub fn codec(&self, priority: usize) -> Option<&CodecConfig> {
        self.codecs.get(priority).filter(|codec| !codec.name.is_empty())
    }

    /// The parameters of a priority, for a codec that is chosen or will be.
    pub fn parameters_mut(&mut self, priority: usize) -> Option<&mut CodecConfig> {
        self.codecs.get_mut(priority)
    }

    /// Chooses the algorithm of a priority. Its parameters stay.
    pub fn choose(&mut self, priority: usize, name: &str) {
        if let Some(codec) = self.codecs.get_mut(priority) {
            codec.name = name.to_string();
        }
    }

    /// The priorities of the algorithm `name`, from the lowest.
    pub fn priorities_of(&self, name: &str) -> impl Iterator<Item = usize> {
        (0..PRIORITY_COUNT)
            .filter(move |priority| self.codec(*priority).is_some_and(|codec| codec.name == name))
    }

    /// The primary codec.
    pub fn primary(&self) -> CodecConfig {
        self.codec(0).cloned().unwrap_or_else(|| codec::plain(DEFAULT_CODEC))
    }
}

impl Default for Setup {
    /// The settings of a disk after a reset: as zram's, no limit of memory.
    fn default() -> Self {
        let mut codecs: [CodecConfig; PRIORITY_COUNT] = Default::default();
        codecs[0] = codec::plain(DEFAULT_CODEC);
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
