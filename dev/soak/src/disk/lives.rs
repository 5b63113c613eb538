//! The lives of a disk as zram's life cycle has them: made without a size, settings as attributes, a size; then a reset,
//! and again with other settings.
//!
//! Each step must succeed exactly if zram's rules allow it at this moment.

use super::config::{Backing, Config, Export, FurtherCodec};
use super::ending;
use super::server::{self, Server};
use crate::case::Context;
use crate::random::{Random, derive};
use crate::recompression::{Codec, FURTHER_MAX};
use crate::verdict::{Fault, OrFault, require};
use std::fs::File;

/// Exit codes of commands: no such thing now, a wrong value, in use.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const BUSY: i32 = 4;
/// A setting that is refused, with any of these codes.
const REFUSED: [i32; 2] = [FAILED, USAGE];
/// The largest size of a further life: its load is short.
const SIZE_MAX: u64 = 256 << 20;

/// Makes some disks begin without a size, and gives some up to two further lives.
fn draw_lives(config: &mut Config, random: &mut Random) {
    if config.export == Export::Loop && random.percent(30) {
        config.take_attributes();
    }
    let count = if random.percent(45) { random.between(1, 2) } else { 0 };
    for life in 1..=count {
        let mut next = Config::draw_life(random.next());
        next.life = life as usize;
        next.export = config.export;
        // Drawn for the export that this life had before.
        next.kills_server &= next.export == Export::Loop;
        next.rounds = 1;
        next.size_bytes = next.size_bytes.min(SIZE_MAX);
        next.codec = Codec::draw(random);
        next.further_codecs.clear();
        for _ in 0..random.below(FURTHER_MAX as u64 + 1) {
            FurtherCodec { codec: Codec::draw(random), after_s: None }.add_to(&mut next.further_codecs);
        }
        next.take_attributes();
        next.load = next.draw_mixed(random);
        config.further_lives.push(next);
    }
}

impl Config {
    /// Draws the disk of a seed, with its further lives.
    pub fn draw(seed: u64) -> Self {
        let mut config = Config::draw_life(seed);
        draw_lives(&mut config, &mut Random::new(derive(seed, 2)));
        config
    }

    /// Changes the disk to one that attributes can describe.
    fn take_attributes(&mut self) {
        self.by_attributes = true;
        self.memory = self.memory.or(Some(0));
        self.further_codecs.iter_mut().for_each(|further| further.after_s = None);
        self.backing.iter_mut().for_each(|backing| {
            *backing = Backing { is_given: true, delay_us: 0, ..backing.clone() };
        });
    }

    /// The life in which the disk ends.
    pub fn last_life(&self) -> &Config {
        self.further_lives.last().unwrap_or(self)
    }

    /// The codecs by priority.
    fn codecs(&self) -> impl Iterator<Item = Codec> {
        std::iter::once(self.codec).chain(self.further_codecs.iter().map(|further| further.codec))
    }
}

/// Resets the disk before the life `next`, and checks that nothing of the former life is left.
pub fn reset(server: &Server, next: &Config) -> Result<(), Fault> {
    let mut random = Random::new(derive(next.disturb_seed, 3));
    if next.export == Export::Loop && random.percent(30) {
        let before = server.show()?["original_bytes"].clone();
        let open = File::open(&server.device).or_fault(&server.device)?;
        expect(server, "reset=1", &[BUSY])?;
        let after = server.show()?["original_bytes"].clone();
        drop(open);
        require!(before == after, Failed, "a refused reset has changed original_bytes: {before}, {after}");
    }
    for _ in 0..random.between(1, 2) {
        expect(server, "reset=1", &[0])?;
    }
    ending::check_reset(server)?;
    let defaults = [
        ("disksize", "0"),
        ("initstate", "0"),
        ("codec", "lz4"),
        ("recomp_algorithm", ""),
        ("backing_dev", "none"),
        ("mem_limit", "0"),
        ("writeback_limit_enable", "0"),
    ];
    defaults.iter().try_for_each(|(name, value)| check(server, name, value))
}

/// Creates the disk of this configuration. The inner error is the reason why `disk create` refused it (exit code 2).
pub fn create<'a>(context: &'a Context, config: &'a Config) -> Result<Result<Server<'a>, String>, Fault> {
    if !config.by_attributes {
        return Server::create(context, config);
    }
    let server = Server::create_without_size(context, config)?;
    configure(context, &server, config)?;
    Ok(Ok(server))
}

/// Gives a disk without a size the settings of `config`, and then its size.
pub fn configure(context: &Context, server: &Server, config: &Config) -> Result<(), Fault> {
    let mut random = Random::new(derive(config.disturb_seed, 4));
    let path = server::create_medium(context, config)?;
    let needs_size = ["compact=1", "recompress=all", "idle=all", "writeback=idle"];
    expect(server, random.pick(&needs_size), &REFUSED)?;
    for (priority, codec) in config.codecs().enumerate() {
        match priority {
            0 => expect(server, &format!("comp_algorithm={}", codec.name), &[0])?,
            n => expect(server, &format!("recomp_algorithm=algo={} priority={n}", codec.name), &[0])?,
        }
        if codec.window_bits.is_some() && random.percent(30) {
            // No setting is refused for its window bits: the size is, until they are others.
            expect(server, &format!("algorithm_params=priority={priority} deflate.winbits=8"), &[0])?;
            expect(server, "disksize=16M", &REFUSED)?;
        }
        let level = codec.level.map(|level| format!(" level={level}")).unwrap_or_default();
        let bits = codec.window_bits.map(|bits| format!(" deflate.winbits={bits}")).unwrap_or_default();
        if !(level.is_empty() && bits.is_empty()) {
            expect(server, &format!("algorithm_params=priority={priority}{level}{bits}"), &[0])?;
        }
    }
    if let Some(bytes @ 1..) = config.memory {
        expect(server, &format!("mem_limit={bytes}"), &[0])?;
    }
    if let (Some(path), Some(backing)) = (&path, &config.backing) {
        expect(server, &format!("compressed_writeback={}", u8::from(backing.compressed)), &[0])?;
        expect(server, &format!("backing_dev={path}"), &[0])?;
    }
    expect(server, &format!("disksize={}", config.size_bytes), &[0])?;
    let is_fixed = [
        "disksize=1G",
        "comp_algorithm=lz4",
        "recomp_algorithm=algo=zstd",
        "algorithm_params=level=1",
        "compressed_writeback=1",
        "backing_dev=/dev/null",
    ];
    expect(server, random.pick(&is_fixed), &[BUSY])?;
    config.attributes.iter().try_for_each(|words| server.set(words)?.ok().map(drop))?;
    check(server, "disksize", &config.size_bytes.to_string())?;
    check(server, "codec", config.codec.name)?;
    check(server, "backing_dev", path.as_deref().unwrap_or("none"))
}

/// Sets an attribute; another exit code than these is a fault.
fn expect(server: &Server, attribute: &str, codes: &[i32]) -> Result<(), Fault> {
    server.set_one(attribute)?.has_code(codes).map(drop)
}

/// Checks the value of an attribute.
fn check(server: &Server, name: &str, value: &str) -> Result<(), Fault> {
    let shown = server.show()?["attributes"][name].as_str().unwrap_or_default().to_string();
    require!(shown == value, Failed, "{name} is {shown:?}, not {value:?}");
    Ok(())
}
