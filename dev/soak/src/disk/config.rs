//! Draws a disk (export, limits, backing, further codecs, attributes), its load, the disturbances, and how the disk
//! ends.

use crate::load::filesystem::FileSystem;
use crate::load::fio::Fio;
use crate::load::mixed::Mixed;
use crate::model::{self, BackingState, FRAME, RAW_PERIOD};
use crate::random::{Random, derive};
use crate::recompression::{Codec, FURTHER_MAX};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Threads of the loop export that may work on requests at the same time, including those that wait for a medium.
const LOOP_REQUESTS: u64 = 18;
/// Most workers of a pass of recompression.
pub const WORKERS_MAX: u64 = 8;
/// Delay from which on reads are so slow that a large tree takes minutes.
const SLOW_US: u64 = 1000;
/// Most bytes of a tree on so slow a medium.
const SLOW_TREE_MAX: u64 = 96 << 20;
/// Most bytes that one load writes, so that cases take seconds.
const LOAD_MAX: u64 = 640 << 20;

/// The export of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Export {
    /// A loop device.
    Loop,
    /// NBD on a unix socket.
    Nbd,
}

/// The medium of a backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A file that `disk create` makes.
    File,
    /// A loop device on a file that the case makes.
    Device,
    /// A file in a file system that has less space than the file needs.
    Full {
        /// Bytes of the file system.
        free_bytes: u64,
    },
}

/// A drawn backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// The medium.
    pub medium: Medium,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether `--backing-size` is given; otherwise the length is the default.
    pub is_given: bool,
    /// Whether the layout is the log, not one page per block.
    pub compressed: bool,
    /// Delay of each request, microseconds.
    pub delay_us: u64,
}

/// A drawn codec to compress pages with again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FurtherCodec {
    /// The codec.
    pub codec: Codec,
    /// The age of `--recompress-after`, seconds; `--recompress-codec` without one.
    pub after_s: Option<u64>,
}

/// The load of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// Requests of all kinds, checked against a shadow.
    Mixed(Mixed),
    /// fio with verification.
    Fio(Fio),
    /// A file system with files.
    Tree(FileSystem),
}

/// How a disk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `disk remove`.
    Remove,
    /// `reset`, then `disk remove`.
    Reset,
    /// SIGTERM, then `disk list`.
    Terminate,
    /// SIGKILL of server and keeper during a load, then `disk list`, which cleans up.
    Kill,
}

const ENDINGS: [Ending; 5] = [Ending::Remove, Ending::Remove, Ending::Reset, Ending::Terminate, Ending::Kill];

/// A drawn disk with its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The export.
    pub export: Export,
    /// The compressor.
    pub codec: Codec,
    /// Size, a multiple of a page.
    pub size_bytes: u64,
    /// `--memory`, bytes; 0 is no limit. If it is not given, the limit is half of the machine's memory.
    pub memory: Option<u64>,
    /// The backing, if there is one.
    pub backing: Option<Backing>,
    /// Codecs to compress pages with again; all differ.
    pub further_codecs: Vec<FurtherCodec>,
    /// Attributes that are set before the load.
    pub attributes: Vec<String>,
    /// Whether commands are run during the load.
    pub is_disturbed: bool,
    /// Whether the server is stopped and continued by signals during the load.
    pub stops_server: bool,
    /// Whether the server is killed and replaced during the load, and its keeper killed.
    pub kills_server: bool,
    /// Whether the limit is lowered and raised during the load.
    pub changes_limit: bool,
    /// Seed of the disturbances.
    pub disturb_seed: u64,
    /// The load.
    pub load: Load,
    /// Times that the load runs on the same disk, unless that takes too long.
    pub rounds: u64,
    /// How the disk ends.
    pub ending: Ending,
    /// How long a pass of recompression has run when the disk ends, milliseconds, if one runs.
    pub ends_during_pass_ms: Option<u64>,
    /// The number of this life of the disk, from 0.
    pub life: usize,
    /// Whether the disk is made without a size, and gets its settings as attributes.
    pub by_attributes: bool,
    /// The further lives of the disk, one after the other. Each begins with a reset.
    pub further_lives: Vec<Config>,
}

impl Config {
    /// Draws one life, made by `disk create`.
    pub(super) fn draw_life(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 1));
        let random = &mut random;
        let export = if random.percent(65) { Export::Loop } else { Export::Nbd };
        let is_large = random.percent(25);
        let size_bytes = match is_large {
            true => random.between(1024, 3072) * MIB,
            false => random.doubling(4096, 180_000) * FRAME,
        };
        let memory = memory(random, size_bytes, is_large);
        let backing_share = if memory.unwrap_or(0) > 0 { 75 } else { 10 };
        let backing = random.percent(backing_share).then(|| Backing::draw(random, size_bytes));
        let further_codecs = FurtherCodec::draw(random);
        let mut config = Config {
            export,
            codec: Codec {
                name: random.pick(&["lz4", "lz4", "lz4", "lz4", "zstd", "lzo-rle", "deflate", "lz4hc"]),
                level: None,
                window_bits: None,
            },
            size_bytes,
            memory,
            is_disturbed: random.percent(if further_codecs.is_empty() { 40 } else { 75 }),
            further_codecs,
            attributes: attributes(random, backing.is_some()),
            backing,
            stops_server: random.percent(15),
            // Clients of NBD would have to connect again.
            kills_server: export == Export::Loop && random.percent(35),
            changes_limit: false,
            disturb_seed: random.next(),
            load: Load::Mixed(Mixed::draw(random, 1)),
            rounds: random.between(1, 3),
            ending: random.pick(&ENDINGS),
            ends_during_pass_ms: random.percent(40).then(|| random.doubling(1, 300)),
            life: 0,
            by_attributes: false,
            further_lives: Vec::new(),
        };
        config.load = config.draw_load(random);
        if random.percent(15) {
            config.make_rewriting(random);
        }
        config.draw_refusals(random);
        config
    }

    /// Changes the case: a backing of the default length, at most a quarter of the size in memory, and fio that
    /// rewrites all bytes at random several times. The log has to be cleaned while it is read and written, and always
    /// has space.
    fn make_rewriting(&mut self, random: &mut Random) {
        self.size_bytes = random.between(64, 700) * MIB;
        self.memory = Some(self.size_bytes / random.between(4, 6));
        self.backing = Some(Backing {
            medium: Medium::File,
            len_bytes: Backing::default_bytes(self.size_bytes),
            is_given: false,
            compressed: true,
            delay_us: 0,
        });
        let room = self.surely_fits().min(self.size_bytes);
        self.load = Load::Fio(Fio::draw(random, room, true));
    }

    /// Draws changes of the limit and writeback budgets, for loads that accept refusals.
    fn draw_refusals(&mut self, random: &mut Random) {
        if !matches!(self.load, Load::Mixed(_)) {
            return;
        }
        self.changes_limit = self.memory.unwrap_or(0) > 0 && random.percent(20);
        if self.backing.is_some() && random.percent(25) {
            self.attributes.push(match random.below(3) {
                0 => format!("writeback_limit={} writeback_limit_enable=1", random.doubling(1, 20_000)),
                1 => format!("writeback_daily={}M", random.doubling(1, 256)),
                _ => format!("writeback_rate={}M/s", random.between(10, 200)),
            });
        }
    }

    /// Draws a load that suits the disk: fio and file systems fail if a write is refused.
    fn draw_load(&self, random: &mut Random) -> Load {
        let room = self.surely_fits().min(self.size_bytes).min(LOAD_MAX);
        let is_loop = self.export == Export::Loop;
        match random.below(10) {
            // More fio on disks with a backing, because rewriting makes the cleaner work.
            n @ 0..=5 if room >= 8 * MIB && (n <= 3 || self.backing.is_some()) => {
                Load::Fio(Fio::draw(random, room, false))
            }
            4..=7 if is_loop && room >= 64 * MIB => {
                let is_slow = self.backing.as_ref().is_some_and(|b| b.delay_us >= SLOW_US);
                let room = if is_slow { room.min(SLOW_TREE_MAX) } else { room };
                // The rest is for metadata, and for deleted files that are not trimmed yet.
                Load::Tree(FileSystem::draw(random, self.size_bytes, room / 10 * 7))
            }
            _ => self.draw_mixed(random),
        }
    }

    /// Draws a load that checks all that it reads, and suits any disk.
    pub(super) fn draw_mixed(&self, random: &mut Random) -> Load {
        let pages = (self.size_bytes / FRAME).min(LOAD_MAX / FRAME);
        // With a limit, about three times as many pages as it holds, so that the load reaches it.
        let most = match self.memory {
            Some(bytes @ 1..) => bytes / FRAME * 3 + 64,
            _ => 65_536,
        };
        let mut mixed = Mixed::draw(random, pages.min(most) as usize);
        mixed.time = Duration::from_secs(6);
        Load::Mixed(mixed)
    }

    /// Bytes that can be stored even if they do not compress.
    fn surely_fits(&self) -> u64 {
        let backing = self.backing.as_ref().map(Backing::when_empty);
        let is_full = self.backing.as_ref().is_some_and(|b| matches!(b.medium, Medium::Full { .. }));
        model::surely_fits_bytes(
            // The buffers of rings are a part of the limit, an eighth of it at most.
            self.limit_bytes().map(|limit| limit - limit / 8),
            backing.as_ref().filter(|_| !is_full),
            // An object of recompression takes memory beside the old one, as that of a write does.
            self.requests_max() + self.workers(),
        )
    }

    /// The options of `disk create`, with a backing at this path.
    pub fn options(&self, backing_path: Option<String>) -> Vec<String> {
        let export = if self.export == Export::Loop { "loop" } else { "nbd" };
        let mut options = vec![
            format!("--size={}", self.size_bytes),
            format!("--codec={}", self.codec.name),
            format!("--export={export}"),
        ];
        options.extend(self.memory.map(|bytes| format!("--memory={bytes}")));
        if let (Some(path), Some(backing)) = (backing_path, &self.backing) {
            let is_on = if backing.compressed { "on" } else { "off" };
            options.push(format!("--backing={path}"));
            options.push(format!("--backing-delay={}", backing.delay_us));
            options.push(format!("--compressed-writeback={is_on}"));
            options.extend(backing.is_given.then(|| format!("--backing-size={}", backing.len_bytes)));
        }
        options.extend(self.further_codecs.iter().map(|further| match further.after_s {
            Some(age_s) => format!("--recompress-after={age_s}={}", further.codec),
            None => format!("--recompress-codec={}", further.codec),
        }));
        options
    }

    /// The limit in bytes, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        Some(self.memory.unwrap_or_else(|| pagefold_sys::mem::total_bytes() / 2)).filter(|bytes| *bytes > 0)
    }

    /// Most workers of recompression: those of one pass, and the automatic one.
    pub fn workers(&self) -> u64 {
        if self.further_codecs.is_empty() { 0 } else { WORKERS_MAX + 1 }
    }

    /// Most requests that the server works on at the same time under any drawn load.
    fn requests_max(&self) -> u64 {
        match self.export {
            Export::Loop => LOOP_REQUESTS,
            Export::Nbd => 8,
        }
    }

    /// Most requests that the server works on at the same time under the case's load.
    pub fn requests(&self) -> u64 {
        match (self.export, &self.load) {
            (Export::Loop, _) => LOOP_REQUESTS,
            (Export::Nbd, Load::Mixed(mixed)) => mixed.threads as u64,
            (Export::Nbd, Load::Fio(fio)) => fio.jobs,
            (Export::Nbd, Load::Tree(_)) => 1,
        }
    }
}

/// Draws defaults, limits at which the last raw page needs two frames, limits of a few frames, and shares of the size.
fn memory(random: &mut Random, size_bytes: u64, is_large: bool) -> Option<u64> {
    match random.below(if is_large { 16 } else { 10 }) {
        0 => Some(0),
        2..=4 => Some((RAW_PERIOD * random.doubling(1, 64) + 1) * FRAME),
        5 => Some(random.between(40, 2000) * FRAME),
        7..=9 => Some((size_bytes / random.between(2, 8)).max(MIB)),
        _ => None,
    }
}

/// Draws attributes that differ from their defaults.
fn attributes(random: &mut Random, has_backing: bool) -> Vec<String> {
    let (high, batch) = (random.between(20, 100), random.doubling(1, 1024));
    let choices = [
        (25, "same_filled_pages_enabled=0".to_string()),
        (40, format!("writeback_high={high} writeback_low={}", random.between(1, high))),
        (30, format!("writeback_batch_size={batch}")),
        (20, "promote=0".to_string()),
    ];
    let applicable = choices.into_iter().take(if has_backing { 4 } else { 1 });
    applicable.filter(|(chance, _)| random.percent(*chance)).map(|(_, attribute)| attribute).collect()
}

impl FurtherCodec {
    /// Draws up to three codecs for half of the disks.
    fn draw(random: &mut Random) -> Vec<FurtherCodec> {
        let count = if random.percent(50) { random.between(1, FURTHER_MAX as u64) } else { 0 };
        let mut drawn: Vec<FurtherCodec> = Vec::new();
        for _ in 0..count {
            // The command line names no window bits.
            let codec = Codec { window_bits: None, ..Codec::draw(random) };
            let after_s = random.percent(50).then(|| random.pick(&[0, 1, 2, 5]));
            FurtherCodec { codec, after_s }.add_to(&mut drawn);
        }
        drawn
    }

    /// Adds the codec, unless it is among them.
    pub fn add_to(self, drawn: &mut Vec<FurtherCodec>) {
        if !drawn.iter().any(|known| known.codec.is_same(&self.codec)) {
            drawn.push(self);
        }
    }
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

    /// The state of the backing without pages, as the model takes it.
    pub fn when_empty(&self) -> BackingState {
        let (capacity_bytes, segment) = match self.compressed {
            true => model::log_geometry(self.len_bytes),
            false => (self.len_bytes.saturating_sub(MIB), FRAME),
        };
        BackingState {
            capacity_bytes,
            segment_bytes: self.compressed.then_some(segment),
            ..BackingState::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_disk_and_corner_cases_are_common() {
        let drawn: Vec<_> = (0..1000).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        let share = |is: &dyn Fn(&Config) -> bool| drawn.iter().filter(|c| is(c)).count();
        let frames = |c: &Config| c.memory.unwrap_or(0) / FRAME;
        assert!(share(&|c| frames(c) % RAW_PERIOD == 1) > 80);
        assert!(share(&|c| c.backing.is_some()) > 250);
        assert!(share(&|c| c.further_codecs.len() == FURTHER_MAX) > 100);
        assert!(share(&|c| c.further_codecs.iter().any(|codec| codec.after_s.is_some())) > 200);
        assert!(share(&|c| c.by_attributes) > 100 && share(&|c| !c.further_lives.is_empty()) > 250);
        assert!(share(&|c| matches!(c.load, Load::Fio(_))) > 150);
        assert!(share(&|c| matches!(c.load, Load::Tree(_))) > 60);
        assert!(share(&|c| matches!(c.load, Load::Mixed(_))) > 200);
        assert!(share(&|c| c.memory.is_none() && c.backing.is_none() && c.export == Export::Loop) > 50);
    }

    #[test]
    fn no_server_is_killed_under_clients_that_do_not_connect_again() {
        for config in (0..2000).map(Config::draw) {
            let mut lives = std::iter::once(&config).chain(&config.further_lives);
            assert!(lives.all(|life| !life.kills_server || life.export == Export::Loop), "{config:?}");
        }
    }

    #[test]
    fn no_refusal_is_justified_below_the_bytes_that_surely_fit() {
        for config in (0..2000).map(Config::draw) {
            let room = config.surely_fits().min(config.size_bytes);
            let Some(backing) = config.backing.as_ref().map(Backing::when_empty) else { continue };
            let is_full = |b: &Backing| matches!(b.medium, Medium::Full { .. });
            if config.backing.as_ref().is_some_and(is_full) {
                continue;
            }
            // Pages that do not surely fit into memory are on the backing.
            let limit_bytes = config.limit_bytes();
            let pages = room.saturating_sub(limit_bytes.unwrap_or(u64::MAX) / 2) / FRAME;
            let backing = BackingState { pages, bytes: pages * FRAME, ..backing };
            let room = model::room_bytes(&backing, config.requests());
            assert!(pages == 0 || pages * (FRAME + 24) <= room, "{config:?}");
        }
    }
}
