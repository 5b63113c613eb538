//! The suite of images: made by Debian's mkfs.erofs with random options, and damaged; read in every way and with any
//! budget.
//!
//! A case builds one image of a random tree. First all ways of reading the image must return that tree. Then the case
//! damages copies of the image and reads them: no way may hang, crash, exceed its memory or write outside its folder,
//! and all ways must agree.
//!
//! | module | contents |
//! |---|---|
//! | `config` | draws a case |
//! | `tree`, `build`, `features` | the tree, the image, and fixtures with features that mkfs.erofs lacks |
//! | `commands` | runs commands and checks the promises of all of them |
//! | `scan` | the contents of a tree, and the difference between two |
//! | `mounted` | a mount and its server |
//! | `good`, `hostile` | the ways to read an intact image, and a damaged one |
//! | `mutate` | damages an image |
//!
//! The commands and mounts are processes. In this process the main thread reads; `mounted` adds reader threads, and
//! the watchdog notices requests to a mount that hang.

mod build;
mod commands;
mod config;
mod features;
mod good;
mod hostile;
mod mounted;
mod mutate;
mod scan;
mod tree;

use crate::case::{Case, Context, Suite};
use crate::process;
use crate::random::{Random, derive};
use crate::verdict::{Done, Fault};
use crate::watchdog::{self, RequestWatch, Suspect};
use build::Built;
use commands::{Call, CommandRunner};
use config::Config;
use hostile::DamagedReader;
use mutate::StructureMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of a case: all reading, and a request that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// Time after which no further damaged copy is read.
const READING: Duration = Duration::from_secs(12);
/// Programs that cases run.
const PROGRAMS: [&str; 4] = ["mkfs.erofs", "setpriv", "tar", "umount"];

/// The suite.
pub const SUITE: Suite = Suite {
    name: "image",
    share: 2,
    is_quick: false,
    obstacle: |_| process::missing_for_root(&["/dev/fuse"], &PROGRAMS),
    draw: |seed| Box::new(Config::draw(seed)),
};

impl Case for Config {
    fn time_limit(&self) -> Duration {
        TIME_LIMIT
    }

    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let built = match build::build(self, context)? {
            Ok(built) => built,
            Err(why) => return Ok(Done::Skipped(why)),
        };
        // The last slot is for the main thread, which walks mounts.
        let watch = Arc::new(RequestWatch::new(mounted::READERS + 1));
        watchdog::start(&watch, &context.dir, Suspect::AllStarted)?;
        let dir = context.path("good");
        fs::create_dir(&dir).map_err(|e| Fault::failed("making a folder", e))?;
        let runner = CommandRunner::new(context, dir, built.image.clone(), built.devices.clone());
        let truth = good::read(self, &runner, &built, &watch)?;
        let media = Media::read(&runner, &built)?;
        let (began, mut read, mut clean, mut commands) = (Instant::now(), 0, 0, runner.count.get());
        let mut overhead_max = runner.overhead_max.get();
        for number in 0..self.mutants {
            if began.elapsed() > READING {
                break;
            }
            let random = Random::new(derive(self.mutant_seed, number));
            let dir = context.path("mutant");
            fs::create_dir(&dir).map_err(|e| Fault::failed("making a folder", e))?;
            let (runner, random, damage) = media.damaged(context, &dir, random)?;
            println!("mutant {number}: {damage}");
            let reader = DamagedReader { runner: &runner, truth: &truth, watch: &watch, random };
            let is_clean = reader
                .run()
                .map_err(|f| Fault::new(f.kind, format!("mutant {number} ({damage}): {}", f.message)))?;
            good::remove_tree(&dir)?;
            read += 1;
            clean += u64::from(is_clean);
            commands += runner.count.get();
            overhead_max = overhead_max.max(runner.overhead_max.get());
        }
        let summary = format!(
            "{}; {read} damaged, {clean} of them without an error; {commands} commands, {} KiB more than the budget",
            built.description,
            overhead_max >> 10
        );
        Ok(Done::Ran(summary))
    }
}

/// The bytes of an image and its devices, and the map of its structures.
struct Media {
    image: Vec<u8>,
    devices: Vec<Vec<u8>>,
    map: StructureMap,
}

impl Media {
    fn read(runner: &CommandRunner<'_>, built: &Built) -> Result<Self, Fault> {
        let bytes = |path: &std::path::PathBuf| fs::read(path).map_err(|e| Fault::failed(path.display(), e));
        let image = bytes(&built.image)?;
        let devices = built.devices.iter().map(bytes).collect::<Result<_, _>>()?;
        let options = vec!["-R".to_string(), "--json".to_string()];
        let call = Call { subcommand: "ls", budget: 64 << 20, options, ..Call::default() };
        let document = runner.run(&call)?.ok()?.json()?;
        let entries = document["entries"].as_array().into_iter().flatten();
        let nids: Vec<u64> = entries.filter_map(|entry| entry["nid"].as_u64()).collect();
        let map = StructureMap::new(&image, &nids);
        Ok(Media { image, devices, map })
    }

    /// Writes a damaged copy to a folder. Returns its commands, the generator, and a description of the damage.
    fn damaged<'a>(
        &self,
        context: &'a Context,
        dir: &Path,
        mut random: Random,
    ) -> Result<(CommandRunner<'a>, Random, String), Fault> {
        let (mut image, mut devices) = (self.image.clone(), self.devices.clone());
        let damage = match devices.first_mut() {
            Some(device) if random.percent(10) => mutate::damage(&mut random, device, &StructureMap::none()),
            _ => mutate::damage(&mut random, &mut image, &self.map),
        };
        let write = |name: String, bytes: &[u8]| {
            let path = dir.join(name);
            fs::write(&path, bytes).map(|()| path).map_err(|e| Fault::failed("writing an image", e))
        };
        let image = write("image".into(), &image)?;
        let names = (0..).map(|number| format!("device{number}"));
        let devices =
            devices.iter().zip(names).map(|(bytes, name)| write(name, bytes)).collect::<Result<_, _>>()?;
        Ok((CommandRunner::new(context, dir.to_path_buf(), image, devices), random, damage))
    }
}
