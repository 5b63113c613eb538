//! Draws what stores in this process and disks have in common about recompression: codecs with their levels and window
//! bits, thresholds, limits on pages.
//!
//! All codecs of the table are drawn, with all their levels, so a new codec is drawn without a change here.

use crate::random::Random;
use pagefold_codec::CodecSpec;
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::Which;
use std::fmt;

/// Further codecs of a store: those of priority 1, 2 and 3.
pub const FURTHER_MAX: usize = 3;
/// Bytes by which recompression and pages that become shorter may exceed the memory limit.
pub const BEYOND_LIMIT_BYTES: u64 = 64 << 10;
/// Pages are stored raw from this length on; a threshold must be lower.
pub const THRESHOLD_END: u64 = 3968;

/// The bits of the smallest and of the largest window of codecs that take them.
const WINDOW_BITS: (u64, u64) = (9, 15);
/// The highest level of such a codec with window bits.
const WINDOWED_LEVEL_MAX: i32 = 9;

/// A codec with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    /// The name.
    pub name: &'static str,
    /// The level; `None` is the codec's default.
    pub level: Option<i32>,
    /// zram's `deflate.winbits`, if the codec takes them: negative for raw streams.
    pub window_bits: Option<i32>,
}

impl Codec {
    /// Draws a codec of the table with one of its levels. Half of them are zstd, whose levels may be negative.
    pub fn draw(random: &mut Random) -> Self {
        let table = pagefold_codec::table();
        let name = match random.percent(50) {
            true => "zstd",
            false => table[random.below(table.len() as u64) as usize].name,
        };
        let window_bits = Codec::draw_window_bits(name, random);
        let levels = table.iter().find(|backend| backend.name == name).and_then(|backend| backend.levels);
        let level = levels.filter(|_| random.percent(80)).map(|levels| {
            // The levels of lz4 reach up to 65537 and those of zstd down to -131072, all alike from some level on.
            let max = if window_bits.is_some() { WINDOWED_LEVEL_MAX } else { levels.max.min(99) };
            let min = levels.min.max(-50);
            min + random.below((max - min + 1) as u64) as i32
        });
        Codec { name, level, window_bits }
    }

    /// Draws window bits for half of the codecs that take them.
    pub fn draw_window_bits(name: &str, random: &mut Random) -> Option<i32> {
        let takes = pagefold_codec::backend(name).is_ok_and(|backend| backend.window_bits);
        (takes && random.percent(50)).then(|| {
            let bits = random.between(WINDOW_BITS.0, WINDOW_BITS.1) as i32;
            if random.percent(50) { -bits } else { bits }
        })
    }

    /// Whether both are one codec at one level: without a level it has its default one.
    pub fn is_same(&self, other: &Codec) -> bool {
        let level = |codec: &Codec| codec.level.or_else(|| default_level(codec.name));
        self.name == other.name && level(self) == level(other) && self.window_bits == other.window_bits
    }

    /// The codec as a store takes it.
    pub fn spec(&self) -> CodecSpec {
        CodecSpec { level: self.level, window_bits: self.window_bits, ..CodecSpec::named(self.name) }
    }
}

impl fmt::Display for Codec {
    /// The form of the command line, which has no window bits: `NAME` or `NAME:LEVEL`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "{}:{level}", self.name),
            None => f.write_str(self.name),
        }
    }
}

fn default_level(name: &str) -> Option<i32> {
    pagefold_codec::backend(name).ok()?.levels.map(|levels| levels.default)
}

/// Draws a threshold in bytes, or none.
fn threshold(random: &mut Random) -> Option<u16> {
    let drawn = match random.below(6) {
        0..=2 => return None,
        3 => random.pick(&[0, 1, THRESHOLD_END - 1]),
        _ => random.below(THRESHOLD_END),
    };
    Some(drawn as u16)
}

/// Draws a pass on a store of so many pages, with codecs of priority 1 and higher. Also returns whether the store has the
/// codec of the pass.
pub fn request(
    random: &mut Random,
    codecs: &[Option<Codec>],
    pages: u64,
    threads_max: u64,
) -> (RecompressRequest, bool) {
    let present = codecs.iter().zip(1..).filter_map(|(codec, priority)| Some((priority, (*codec)?)));
    let present: Vec<(u8, Codec)> = present.collect();
    let known = (!present.is_empty()).then(|| random.pick(&present));
    let (name, priority) = match (random.below(8), known) {
        (0, _) => (None, None),
        (1, _) => (Some(Codec::draw(random).name), None),
        (2, _) => (None, Some(random.between(1, 4) as u8)),
        (3, Some((_, codec))) => (Some(codec.name), None),
        (4, Some((priority, codec))) => (Some(codec.name), Some(priority)),
        _ => (None, known.map(|(priority, _)| priority)),
    };
    let has_codec = present.iter().any(|(p, codec)| match name {
        Some(name) => codec.name == name && priority.is_none_or(|priority| priority == *p),
        None => priority.unwrap_or(1) == *p,
    });
    let which = match random.below(8) {
        0 => Which::Idle,
        1 => Which::Huge,
        2 => Which::HugeIdle,
        3 => Which::NotAccessedFor { age_s: random.below(3) },
        _ => Which::All,
    };
    let pages_max = match random.below(6) {
        0..=2 => None,
        3 => Some(random.pick(&[0, 1, 255, 257, pages, u64::MAX])),
        _ => Some(random.doubling(1, pages.max(1))),
    };
    let threads = random.between(1, threads_max) as usize;
    let (threshold_bytes, codec) = (threshold(random), name.map(String::from));
    (RecompressRequest { which, threshold_bytes, pages_max, codec, priority, threads }, has_codec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_without_a_level_is_that_of_its_default_level() {
        let of = |name, level| Codec { name, level, window_bits: None };
        assert!(of("zstd", None).is_same(&of("zstd", Some(3))));
        assert!(!of("zstd", None).is_same(&of("zstd", Some(4))));
        assert!(!of("lzo", None).is_same(&of("lzo-rle", None)));
        assert!(of("lzo", None).is_same(&of("lzo", None)));
    }

    #[test]
    fn all_codecs_are_drawn_with_valid_levels_only() {
        let mut random = Random::new(3);
        let drawn: Vec<_> = (0..2000).map(|_| Codec::draw(&mut random)).collect();
        assert!(pagefold_codec::names().all(|name| drawn.iter().any(|codec| codec.name == name)));
        assert!(
            drawn.iter().any(|c| c.to_string() == "zstd:-50") && drawn.iter().any(|c| c.level == Some(22))
        );
        assert!([-15, -9, 9, 15].iter().all(|bits| drawn.iter().any(|c| c.window_bits == Some(*bits))));
        let invalid = drawn.iter().find(|codec| pagefold_codec::Codec::new(&codec.spec()).is_err());
        assert_eq!(invalid, None);
    }
}
