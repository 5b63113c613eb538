//! The suite of images: built by `image build` with random options, damaged, and read by all commands with any budget;
//! and commands and servers that are killed at random times.
//!
//! A case builds one image of a random tree. First all ways of reading the image must return that tree, and interrupted
//! commands must leave what they promise. Then the case damages copies of the image and reads them: no way may hang,
//! crash, exceed its memory or write outside its folder, and all ways must agree. Which bytes of the format mean what is
//! tested beside the crates of images; here are processes.
//!
//! | module | contents |
//! |---|---|
//! | `commands` | runs commands and checks the promises of all of them |
//! | `mount` | a mount and its server |
//! | `good`, `hostile` | the ways to read an intact image, and a damaged one |
//! | `mutate` | damages an image |
//!
//! The commands and mounts are processes. In this process the main thread reads; `mount` adds reader threads.

mod commands;
mod good;
mod hostile;
mod mount;
mod mutate;

use crate::case::{Case, Context, Suite};
use crate::load::scan;
use crate::load::tree::Tree;
use crate::process;
use crate::random::{Random, derive};
use crate::verdict::{Done, Fault, OrFault};
use commands::{Call, ImageCommands};
use mutate::StructureMap;
use std::fs;
use std::time::{Duration, Instant};

/// Time after which no further damaged copy is read.
const READING: Duration = Duration::from_secs(12);

/// The suite.
pub const SUITE: Suite = Suite {
    name: "image",
    share: 2,
    is_quick: false,
    // All reading, and a request that hangs.
    time_limit: Duration::from_secs(240),
    obstacle: || process::missing_for_root(&["/dev/fuse"], &["setpriv", "tar", "umount"]),
    draw: |seed| Box::new(Config::draw(seed)),
};

/// A drawn case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Config {
    /// The source of the image.
    tree: Tree,
    /// Options of `image build`.
    options: Vec<String>,
    /// Number of damaged copies.
    mutants: u64,
    /// Seed of the ways in which the image is read, of the interruptions and of the damage.
    seed: u64,
}

impl Config {
    /// Draws the case of a seed.
    fn draw(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 3));
        let (tree, options) = (Tree::draw(&mut random), draw_options(&mut random));
        Config { tree, options, mutants: random.between(8, 20), seed: random.next() }
    }
}

/// Draws options of `image build`. None of them changes the contents of the image.
fn draw_options(random: &mut Random) -> Vec<String> {
    let (name, level_max) = random.pick(&[
        ("none", 0),
        ("lz4", 0),
        ("lz4hc", 12),
        ("zstd", 15),
        ("deflate", 12),
        ("lzma", 5),
        ("auto", 0),
    ]);
    let level = if level_max > 0 { format!(":{}", random.between(1, level_max)) } else { String::new() };
    let choices = [
        (50, format!("--cluster={}", 4096 * random.doubling(1, 256))),
        (20, format!("--lz4-window={}K", random.between(4, 64))),
        (40, format!("--dedupe={}", random.pick(&["chunks", "files", "none"]))),
        (20, format!("--sort={}", random.pick(&["similarity", "path"]))),
        (20, format!("--rule={}=zstd:3", random.pick(&["[a-m]*", "*t", "**"]))),
        (20, "--no-tail-packing".into()),
        (30, "--no-fragments".into()),
        (20, "--no-compressed-directories".into()),
        (25, random.pick(&["--compressed-metadata", "--no-compressed-metadata"]).into()),
        (30, "--verify".into()),
        (30, format!("--memory={}M", random.doubling(64, 1024))),
    ];
    let drawn = choices.into_iter().filter(|(chance, _)| random.percent(*chance)).map(|(_, option)| option);
    let mut options: Vec<_> = drawn.collect();
    options.push(format!("--compression={name}{level}"));
    options.push(format!("--threads={}", commands::draw_threads(random)));
    options
}

impl Case for Config {
    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let root = context.path("tree");
        self.tree.make(&root).or_fault("making the tree")?;
        let dir = context.path("good");
        fs::create_dir(&dir).or_fault("making a folder")?;
        let commands = ImageCommands::new(context, dir);
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let began = Instant::now();
        let built = commands.build(&root, &options, None)?;
        let took = began.elapsed();
        if built.code == 2 {
            return Ok(Done::Skipped(built.err.trim().into()));
        }
        built.ok()?;
        let expected = scan::scan(&root);
        let mut random = Random::new(self.seed);
        good::read(&commands, &root, &expected, &mut random)?;
        good::interrupt_build(&commands, &root, &options, took, &mut random)?;
        good::interrupt_extraction(&commands, &expected, &mut random)?;
        let image = fs::read(&commands.image).or_fault("reading the image")?;
        let call = Call { budget: 64 << 20, ..Call::new("ls", &["-R", "--json"]) };
        let map = StructureMap::new(&image, &commands.run(&call)?.ok()?.json()?);
        let (began, mut read, mut clean) = (Instant::now(), 0, 0);
        while read < self.mutants && began.elapsed() < READING {
            let mut random = Random::new(derive(self.seed, read));
            let dir = context.path("mutant");
            fs::create_dir(&dir).or_fault("making a folder")?;
            let commands = ImageCommands::new(context, dir.clone());
            let mut damaged = image.clone();
            let damage = mutate::damage(&mut random, &mut damaged, &map);
            println!("mutant {read}: {damage}");
            fs::write(&commands.image, damaged).or_fault("writing an image")?;
            let is_clean = hostile::read(&commands, &expected, &mut random)
                .map_err(|f| Fault::new(f.kind, format!("mutant {read} ({damage}): {}", f.message)))?;
            commands::remove_tree(&dir)?;
            (read, clean) = (read + 1, clean + u64::from(is_clean));
        }
        let (entries, options) = (expected.entries.len(), self.options.join(" "));
        Ok(Done::Ran(format!(
            "{entries} entries, {options}; {read} damaged, {clean} of them without an error"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_case_and_all_options_are_drawn() {
        let drawn: Vec<_> = (0..500).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        for word in
            ["=lzma:", "=zstd:", "=none", "--cluster", "--rule", "--memory", "--dedupe=none", "-fragments"]
        {
            let has = |config: &&Config| config.options.iter().any(|option| option.contains(word));
            assert!(drawn.iter().filter(has).count() >= 10, "{word}");
        }
    }
}
