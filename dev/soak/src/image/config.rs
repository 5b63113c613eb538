//! Draws a case: the image, how it is made and read, and the number of damaged copies.

use super::features;
use crate::random::{Random, derive};

/// Smallest budget for images without large clusters, bytes.
const BUDGET_MIN: u64 = 256 << 10;

/// A drawn case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Source of the image.
    pub source: Source,
    /// Number of damaged copies.
    pub mutants: u64,
    /// Seed of the ways in which the image is read.
    pub read_seed: u64,
    /// Seed of the damage.
    pub mutant_seed: u64,
    /// How the mount ends.
    pub ending: Ending,
}

/// The source of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Debian's mkfs.erofs makes the image from a drawn tree.
    Made {
        /// The tree.
        tree: Tree,
        /// Options of mkfs.erofs, without those that contain paths.
        options: Vec<String>,
        /// Whether chunks go to a further device.
        has_device: bool,
        /// Lines of a file of compression hints.
        hints: Vec<String>,
    },
    /// One of the fixtures with features that Debian's mkfs.erofs lacks; the index into them.
    Feature(usize),
}

/// The parameters of a drawn tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Seed of the tree.
    pub seed: u64,
    /// Shape of the directories.
    pub shape: Shape,
    /// Number of files and directories.
    pub entries: u64,
    /// Approximate bytes of all regular files.
    pub bytes: u64,
    /// Share of files with extended attributes, percent.
    pub xattrs: u64,
}

/// How directories lie in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Directories at random depths.
    Mixed,
    /// Most directories in the one before.
    Deep,
    /// All files in one directory.
    Wide,
}

/// How a mount ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `image unmount`.
    Unmount,
    /// umount(8).
    Umount,
    /// SIGTERM to the server.
    Terminate,
    /// SIGKILL to the server; the next command cleans up.
    Kill,
}

impl Config {
    /// Draws the case of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 3));
        let random = &mut random;
        let source = match random.percent(30) {
            true => Source::Feature(random.below(features::count() as u64) as usize),
            false => draw_made(random),
        };
        Config {
            source,
            mutants: random.between(8, 20),
            read_seed: random.next(),
            mutant_seed: random.next(),
            ending: random.pick(&[
                Ending::Unmount,
                Ending::Unmount,
                Ending::Umount,
                Ending::Terminate,
                Ending::Kill,
            ]),
        }
    }
}

/// Draws a budget in bytes, from the smallest to ample ones.
pub fn draw_budget(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => BUDGET_MIN,
        1 => random.between(BUDGET_MIN, 4 << 20),
        _ => random.doubling(BUDGET_MIN, 256 << 20),
    }
}

/// Draws the number of threads of a command.
pub fn draw_threads(random: &mut Random) -> u64 {
    random.pick(&[1, 1, 2, 3, 8, 40])
}

fn draw_made(random: &mut Random) -> Source {
    let tree = Tree {
        seed: random.next(),
        shape: random.pick(&[Shape::Mixed, Shape::Mixed, Shape::Deep, Shape::Wide]),
        entries: random.doubling(1, 1500),
        bytes: random.doubling(1 << 10, 12 << 20),
        xattrs: random.pick(&[0, 10, 50, 100]),
    };
    let mut options = Vec::new();
    let (mut has_device, mut hints) = (false, Vec::new());
    let mut extended: Vec<&str> = Vec::new();
    match random.below(4) {
        0 => {
            if random.percent(60) {
                options.push(format!("--chunksize={}", 4096_u64 << random.below(9)));
                has_device = random.percent(40);
                extended.extend(maybe(random, 30, "force-chunk-indexes"));
                extended.extend(maybe(random, 30, "force-inode-blockmap"));
            }
        }
        kind => {
            let level = |random: &mut Random| match random.percent(50) {
                true => format!(",{}", random.below(13)),
                false => String::new(),
            };
            options.push(match kind {
                1 => "-zlz4".to_string(),
                _ => format!("-zlz4hc{}", level(random)),
            });
            if random.percent(75) {
                options.push(format!("-C{}", 4096_u64 << random.below(9)));
            }
            if random.percent(20) {
                options.push(format!("--max-extent-bytes={}", random.doubling(4096, 4 << 20)));
            }
            if random.percent(20) {
                hints = (0..random.between(1, 3)).map(|_| draw_hint(random)).collect();
            }
            extended.extend(maybe(random, 20, "legacy-compress"));
            extended.extend(maybe(random, 40, "ztailpacking"));
        }
    }
    // With both options mkfs.erofs 1.5 writes wrong bytes to files that it leaves uncompressed.
    let is_packing = extended.contains(&"ztailpacking");
    extended.extend(maybe(random, 15, "noinline_data").filter(|_| !is_packing));
    match random.below(6) {
        0 => extended.push("force-inode-compact"),
        1 => extended.push("force-inode-extended"),
        _ => {}
    }
    if !extended.is_empty() {
        options.push(format!("-E{}", extended.join(",")));
    }
    if random.percent(50) {
        options.push(format!("-x{}", random.pick(&[-1, 0, 1, 2, 5, 100])));
    }
    options.extend(maybe(random, 20, "-T1234567890").map(String::from));
    options.extend(maybe(random, 10, "-T0").map(String::from));
    options.extend(maybe(random, 20, "-Ub2c3d4e5-0000-4000-8000-0123456789ab").map(String::from));
    options.extend(maybe(random, 15, "--all-root").map(String::from));
    options.extend(maybe(random, 10, "--force-uid=70000").map(String::from));
    options.extend(maybe(random, 10, "--ignore-mtime").map(String::from));
    Source::Made { tree, options, has_device, hints }
}

fn draw_hint(random: &mut Random) -> String {
    let pattern = random.pick(&["[a-m]", "\\.t$", "/d", "[0-9]", "."]);
    format!("{} {pattern}", 4096_u64 << random.below(5))
}

fn maybe<'a>(random: &mut Random, chance: u64, option: &'a str) -> Option<&'a str> {
    random.percent(chance).then_some(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_case_and_all_kinds_are_drawn() {
        let drawn: Vec<_> = (0..500).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        let share = |is: &dyn Fn(&Config) -> bool| drawn.iter().filter(|c| is(c)).count();
        let has = |c: &Config, word: &str| match &c.source {
            Source::Made { options, .. } => options.iter().any(|option| option.contains(word)),
            Source::Feature(_) => false,
        };
        for word in
            ["-zlz4", "-zlz4hc", "-C", "ztailpacking", "legacy", "--chunksize", "compact", "extended", "-x-1"]
        {
            assert!(share(&|c| has(c, word)) >= 10, "{word}");
        }
        assert_eq!(share(&|c| has(c, "ztailpacking") && has(c, "noinline_data")), 0);
        assert!(share(&|c| matches!(c.source, Source::Feature(_))) > 100);
        assert!(share(&|c| matches!(c.source, Source::Made { has_device: true, .. })) > 10);
        assert!(share(&|c| c.ending == Ending::Kill) > 50);
    }
}
