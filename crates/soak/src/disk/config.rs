//! The draw of a disk: its export, limits, backing and attributes, what is done to it, and how it ends.

use crate::load::content::Mix;
use crate::load::fio::Fio;
use crate::load::mixed::Mixed;
use crate::load::tree::{FileSystem, Tree};
use crate::model::{self, FRAME, SeenBacking};
use crate::random::{Random, derive};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Frames after which a chain of raw objects ends at a frame's end.
const RAW_PERIOD: u64 = 513;
/// Threads of the loop export that may work on requests at the same time, those that wait for a medium included.
const LOOP_REQUESTS: u64 = 18;
/// A medium with this delay reads so slowly that a large tree takes minutes.
const SLOW_US: u64 = 1000;
const SLOW_TREE_MAX: u64 = 96 << 20;
/// Data that one load writes at most: cases are to take seconds.
const LOAD_MAX: u64 = 640 << 20;

/// How a disk is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Export {
    /// A loop device.
    Loop,
    /// NBD on a unix socket.
    Nbd,
}

/// `--memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Not given: half of the machine's.
    Default,
    /// 0: no limit.
    Unlimited,
    /// So many bytes.
    Bytes(u64),
}

/// What pages are parked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A file that the disk makes.
    File,
    /// A loop device on a file that exists.
    Device,
    /// A file on a file system that has less room than the file.
    Full {
        /// Bytes that it has.
        free_bytes: u64,
    },
}

/// A drawn backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// What it is.
    pub medium: Medium,
    /// Its length.
    pub len_bytes: u64,
    /// Whether the length is given to the disk, or is its default.
    pub is_given: bool,
    /// The log, or one page per block.
    pub compressed: bool,
    /// What each request takes.
    pub delay_us: u64,
}

/// What is done to a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// Requests of all kinds, checked against a shadow.
    Mixed(Mixed),
    /// fio with verification.
    Fio(Fio),
    /// A file system.
    Tree(Tree),
}

/// How a disk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `disk remove`.
    Remove,
    /// `reset`, then `disk remove`.
    Reset,
    /// SIGTERM, then whatever command comes next.
    Terminate,
    /// SIGKILL under a load, then whatever command comes next.
    Kill,
}

/// A drawn disk with its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How it is reached.
    pub export: Export,
    /// The compressor.
    pub codec: &'static str,
    /// Its size, a multiple of a page.
    pub size_bytes: u64,
    /// Its limit.
    pub memory: Memory,
    /// Its backing.
    pub backing: Option<Backing>,
    /// Attributes that are set before the load.
    pub attributes: Vec<String>,
    /// Whether commands and signals come beside the load, drawn from the seed.
    pub is_disturbed: bool,
    /// Whether the server is stopped and continued beside the load.
    pub is_stopped: bool,
    /// Whether the limit is lowered and raised beside the load.
    pub moves_limit: bool,
    /// Draws what comes beside the load.
    pub beside_seed: u64,
    /// The load.
    pub load: Load,
    /// Times that the load runs, on the same disk, unless that takes too long.
    pub rounds: u64,
    /// How it ends.
    pub ending: Ending,
}

impl Config {
    /// Draws the disk of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 1));
        let random = &mut random;
        let export = if random.percent(65) { Export::Loop } else { Export::Nbd };
        let is_large = random.percent(25);
        let size_bytes = match is_large {
            true => random.between(1024, 3072) * MIB,
            false => random.doubling(4096, 180_000) * FRAME,
        };
        let memory = memory(random, size_bytes, is_large);
        let backing_share = if matches!(memory, Memory::Bytes(_)) { 75 } else { 10 };
        let backing = random.percent(backing_share).then(|| Backing::draw(random, size_bytes));
        let mut config = Config {
            export,
            codec: random.pick(&["lz4", "lz4", "lz4", "lz4", "zstd", "lzo-rle", "deflate", "lz4hc"]),
            size_bytes,
            memory,
            attributes: attributes(random, backing.is_some()),
            backing,
            is_disturbed: random.percent(40),
            is_stopped: random.percent(15),
            moves_limit: false,
            beside_seed: random.next(),
            load: Load::Mixed(Mixed::draw(random, 1)),
            rounds: random.between(1, 3),
            ending: random.pick(&[
                Ending::Remove,
                Ending::Remove,
                Ending::Reset,
                Ending::Terminate,
                Ending::Kill,
            ]),
        };
        config.load = config.draw_load(random);
        if random.percent(15) {
            config.write_over(random);
        }
        config.draw_refusals(random);
        config
    }

    /// Makes it a disk with a backing of its own size and a quarter of that in memory, all of which is written over
    /// and over at random: a log that has to be cleaned while it is read and written, with room all the time.
    fn write_over(&mut self, random: &mut Random) {
        self.size_bytes = random.between(64, 700) * MIB;
        self.memory = Memory::Bytes(self.size_bytes / random.between(4, 6));
        self.backing = Some(Backing {
            medium: Medium::File,
            len_bytes: Backing::default_bytes(self.size_bytes),
            is_given: false,
            compressed: true,
            delay_us: 0,
        });
        let room = self.surely_fits().min(self.size_bytes);
        self.load = Load::Fio(Fio::over_and_over(random, room));
    }

    /// Other limits and budgets, for loads that may meet refusals.
    fn draw_refusals(&mut self, random: &mut Random) {
        if !matches!(self.load, Load::Mixed(_)) {
            return;
        }
        self.moves_limit = matches!(self.memory, Memory::Bytes(_)) && random.percent(20);
        if self.backing.is_some() && random.percent(25) {
            self.attributes.push(match random.below(3) {
                0 => format!("writeback_limit={} writeback_limit_enable=1", random.doubling(1, 20_000)),
                1 => format!("park_daily={}M", random.doubling(1, 256)),
                _ => format!("park_rate={}M/s", random.between(10, 200)),
            });
        }
    }

    /// A load that suits the disk: fio and file systems need all that they write to be stored.
    fn draw_load(&self, random: &mut Random) -> Load {
        let room = self.surely_fits().min(self.size_bytes).min(LOAD_MAX);
        let is_loop = self.export == Export::Loop;
        match random.below(10) {
            0..=3 if room >= 8 * MIB => Load::Fio(Fio::draw(random, room)),
            // What is written again and again is what a backing has to be cleaned of.
            4..=5 if room >= 8 * MIB && self.backing.is_some() => Load::Fio(Fio::draw(random, room)),
            4..=7 if is_loop && room >= 64 * MIB => {
                let system = FileSystem::draw(random, self.size_bytes);
                let is_slow = self.backing.as_ref().is_some_and(|b| b.delay_us >= SLOW_US);
                let room = if is_slow { room.min(SLOW_TREE_MAX) } else { room };
                // Metadata, and what is deleted and not trimmed yet.
                Load::Tree(Tree {
                    system,
                    seed: random.next(),
                    bytes: room / 10 * 7,
                    mix: Mix::draw(random),
                    rounds: 3,
                })
            }
            _ => {
                let pages = (self.size_bytes / FRAME).min(LOAD_MAX / FRAME);
                let mut mixed = Mixed::draw(random, random_pages(self, pages) as usize);
                mixed.time = Duration::from_secs(6);
                Load::Mixed(mixed)
            }
        }
    }

    /// Bytes that can be stored whatever they are.
    fn surely_fits(&self) -> u64 {
        let backing = self.backing.as_ref().map(Backing::when_empty);
        let is_full = self.backing.as_ref().is_some_and(|b| matches!(b.medium, Medium::Full { .. }));
        model::surely_fits_bytes(
            self.limit_bytes(),
            backing.as_ref().filter(|_| !is_full),
            self.requests_max(),
        )
    }

    /// The limit in bytes, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        match self.memory {
            Memory::Default => Some(pagefold_sys::mem::total_bytes() / 2),
            Memory::Unlimited => None,
            Memory::Bytes(bytes) => Some(bytes),
        }
    }

    /// Requests that the server may work on at the same time under any load that is drawn.
    fn requests_max(&self) -> u64 {
        match self.export {
            Export::Loop => LOOP_REQUESTS,
            Export::Nbd => 8,
        }
    }

    /// Requests that the server may work on at the same time.
    pub fn requests(&self) -> u64 {
        match (self.export, &self.load) {
            (Export::Loop, _) => LOOP_REQUESTS,
            (Export::Nbd, Load::Mixed(mixed)) => mixed.threads as u64,
            (Export::Nbd, Load::Fio(fio)) => fio.jobs,
            (Export::Nbd, Load::Tree(_)) => 1,
        }
    }
}

/// Pages of a mixed load: around what fits into memory where there is a limit, so that it is reached.
fn random_pages(config: &Config, pages: u64) -> u64 {
    match config.memory {
        Memory::Bytes(bytes) => (bytes / FRAME * 3 + 64).min(pages),
        Memory::Default | Memory::Unlimited => pages.min(65_536),
    }
}

/// Defaults, limits at which a raw page needs two frames, limits of a few frames, and shares of the size.
fn memory(random: &mut Random, size_bytes: u64, is_large: bool) -> Memory {
    match random.below(if is_large { 16 } else { 10 }) {
        0 => Memory::Unlimited,
        1 | 6 => Memory::Default,
        2..=4 => Memory::Bytes((RAW_PERIOD * random.doubling(1, 64) + 1) * FRAME),
        5 => Memory::Bytes(random.between(40, 2000) * FRAME),
        7..=9 => Memory::Bytes((size_bytes / random.between(2, 8)).max(MIB)),
        _ => Memory::Default,
    }
}

/// Attributes away from their defaults.
fn attributes(random: &mut Random, has_backing: bool) -> Vec<String> {
    let mut set = Vec::new();
    if random.percent(25) {
        set.push("same_filled_pages_enabled=0".to_string());
    }
    if has_backing && random.percent(40) {
        let high = random.between(20, 100);
        set.push(format!("park_high={high} park_low={}", random.between(1, high)));
    }
    if has_backing && random.percent(30) {
        set.push(format!("writeback_batch_size={}", random.doubling(1, 1024)));
    }
    if has_backing && random.percent(20) {
        set.push("promote=0".to_string());
    }
    set
}

impl Backing {
    fn draw(random: &mut Random, size_bytes: u64) -> Self {
        let default_bytes = Backing::default_bytes(size_bytes);
        let is_given = random.percent(60);
        let len_bytes = match (is_given, random.below(3)) {
            (false, _) => default_bytes,
            (true, 0) => random.doubling(4, 32) * MIB,
            (true, _) => (size_bytes / 100 * random.between(10, 150)).max(4 * MIB) / FRAME * FRAME,
        };
        let medium = match random.below(10) {
            0..=6 => Medium::File,
            7..=8 => Medium::Device,
            _ => Medium::Full { free_bytes: len_bytes / random.between(2, 5) / FRAME * FRAME },
        };
        Backing {
            medium,
            len_bytes,
            is_given: is_given || medium != Medium::File,
            compressed: random.percent(88),
            delay_us: random.pick(&[0, 0, 0, 0, 100, 2000]),
        }
    }

    /// The length that `disk create` gives a backing: the size, an eighth and 16 MiB.
    fn default_bytes(size_bytes: u64) -> u64 {
        (size_bytes + size_bytes / 8 + 16 * MIB).next_multiple_of(MIB)
    }

    /// What would be seen of it without a page on it.
    pub fn when_empty(&self) -> SeenBacking {
        let (capacity_bytes, segment) = match self.compressed {
            true => model::log_geometry(self.len_bytes),
            false => (self.len_bytes.saturating_sub(MIB), FRAME),
        };
        SeenBacking {
            capacity_bytes,
            segment_bytes: self.compressed.then_some(segment),
            ..SeenBacking::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_disk_and_corners_are_common() {
        let drawn: Vec<_> = (0..1000).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        let share = |is: &dyn Fn(&Config) -> bool| drawn.iter().filter(|c| is(c)).count();
        let frames = |c: &Config| if let Memory::Bytes(bytes) = c.memory { bytes / FRAME } else { 0 };
        assert!(share(&|c| frames(c) % RAW_PERIOD == 1) > 80);
        assert!(share(&|c| c.backing.is_some()) > 250);
        assert!(share(&|c| matches!(c.load, Load::Fio(_))) > 150);
        assert!(share(&|c| matches!(c.load, Load::Tree(_))) > 60);
        assert!(share(&|c| matches!(c.load, Load::Mixed(_))) > 200);
        assert!(
            share(&|c| c.memory == Memory::Default && c.backing.is_none() && c.export == Export::Loop) > 50
        );
    }

    #[test]
    fn what_surely_fits_is_never_refused_rightly() {
        for config in (0..2000).map(Config::draw) {
            let room = config.surely_fits().min(config.size_bytes);
            let Some(backing) = config.backing.as_ref().map(Backing::when_empty) else { continue };
            let is_full = |b: &Backing| matches!(b.medium, Medium::Full { .. });
            if config.backing.as_ref().is_some_and(is_full) {
                continue;
            }
            // All but what memory surely holds is on the backing.
            let limit_bytes = config.limit_bytes();
            let pages = room.saturating_sub(limit_bytes.unwrap_or(u64::MAX) / 2) / FRAME;
            let backing = SeenBacking { pages, bytes: pages * FRAME, ..backing };
            let room = model::room_bytes(&backing, config.requests());
            assert!(pages == 0 || pages * (FRAME + 24) <= room, "{config:?}");
        }
    }
}
