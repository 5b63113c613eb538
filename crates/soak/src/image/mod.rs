//! Images made by Debian's mkfs.erofs at random options, and damaged: read in every way and budget.
//!
//! A case builds one image of a tree at random. First all ways of reading it must give that tree. Then copies of it are
//! damaged, each otherwise, and read: no way may hang, crash, take more memory than it may or write where it should not,
//! and all ways must agree.
//!
//! | module | what |
//! |---|---|
//! | `config` | what is drawn |
//! | `tree`, `build`, `features` | the source, the image, and images with features that mkfs.erofs lacks |
//! | `bench` | commands, with what all of them promise |
//! | `scan` | what is in a tree, and what differs between two |
//! | `mounted` | a mount |
//! | `good`, `hostile` | the ways to read an image as it was built, and a damaged one |
//! | `mutate` | damage |

mod bench;
mod build;
mod config;
mod features;
mod good;
mod hostile;
mod mounted;
mod mutate;
mod scan;
mod tree;

use crate::part::{Case, Context, Done, Fault, Part, Settings};
use crate::random::{Random, derive};
use bench::{Bench, Call};
use build::Built;
use config::Config;
use hostile::Reading;
use mutate::Map;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Beyond this a case hangs: its readings, and a request that is not answered.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// After this time no further damaged copy is read.
const READING: Duration = Duration::from_secs(12);
/// Programs that cases use.
const PROGRAMS: [&str; 4] = ["mkfs.erofs", "setpriv", "tar", "umount"];

/// The part.
pub struct Image;

impl Part for Image {
    fn name(&self) -> &'static str {
        "image"
    }

    fn share(&self) -> u32 {
        2
    }

    fn obstacle(&self, _: &Settings) -> Option<String> {
        let opens = |path: &str| fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
        if !rustix::process::geteuid().is_root() || !opens("/dev/fuse") {
            return Some("needs root and /dev/fuse".into());
        }
        crate::process::missing(&PROGRAMS).map(|program| format!("needs the program {program}"))
    }

    fn draw(&self, seed: u64) -> Box<dyn Case> {
        Box::new(Config::draw(seed))
    }
}

impl Case for Config {
    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn time_limit(&self) -> Duration {
        TIME_LIMIT
    }

    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let built = match build::build(self, context)? {
            Ok(built) => built,
            Err(why) => return Ok(Done::Skipped(why)),
        };
        let watch = mounted::guarded(context);
        let dir = context.path("good");
        fs::create_dir(&dir).map_err(|e| Fault::failed("making a folder", e))?;
        let bench = Bench::new(context, dir, built.image.clone(), built.devices.clone());
        let truth = good::read(self, &bench, &built, &watch)?;
        let media = Media::read(&bench, &built)?;
        let (began, mut read, mut clean, mut commands) = (Instant::now(), 0, 0, bench.commands.get());
        let mut most_beside = bench.most_beside.get();
        for number in 0..self.mutants {
            if began.elapsed() > READING {
                break;
            }
            let random = Random::new(derive(self.mutant_seed, number));
            let dir = context.path("mutant");
            fs::create_dir(&dir).map_err(|e| Fault::failed("making a folder", e))?;
            let (bench, random, damage) = media.damaged(context, &dir, random)?;
            println!("mutant {number}: {damage}");
            let reading = Reading { bench: &bench, truth: &truth, watch: &watch, random };
            let is_clean = reading
                .run()
                .map_err(|f| Fault::new(f.kind, format!("mutant {number} ({damage}): {}", f.message)))?;
            good::clear(&dir)?;
            read += 1;
            clean += u64::from(is_clean);
            commands += bench.commands.get();
            most_beside = most_beside.max(bench.most_beside.get());
        }
        let what = format!(
            "{}; {read} damaged, {clean} of them without an error; {commands} commands, {} KiB beside the budget",
            built.what,
            most_beside >> 10
        );
        Ok(Done::Ran(what))
    }
}

/// An image with its devices, and where their structures lie.
struct Media {
    image: Vec<u8>,
    devices: Vec<Vec<u8>>,
    map: Map,
}

impl Media {
    fn read(bench: &Bench<'_>, built: &Built) -> Result<Self, Fault> {
        let bytes = |path: &std::path::PathBuf| fs::read(path).map_err(|e| Fault::failed(path.display(), e));
        let image = bytes(&built.image)?;
        let devices = built.devices.iter().map(bytes).collect::<Result<_, _>>()?;
        let options = vec!["-R".to_string(), "--json".to_string()];
        let text =
            bench.run(&Call { verb: "list", budget: 64 << 20, options, ..Call::default() })?.ok()?.text();
        let nid = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["nid"].as_u64();
        let nids: Vec<u64> = text.lines().filter_map(nid).collect();
        let map = Map::new(&image, &nids);
        Ok(Media { image, devices, map })
    }

    /// A damaged copy in a folder, and how it is damaged.
    fn damaged<'a>(
        &self,
        context: &'a Context,
        dir: &Path,
        mut random: Random,
    ) -> Result<(Bench<'a>, Random, String), Fault> {
        let (mut image, mut devices) = (self.image.clone(), self.devices.clone());
        let damage = match devices.first_mut() {
            Some(device) if random.percent(10) => mutate::damage(&mut random, device, &Map::none()),
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
        Ok((Bench::new(context, dir.to_path_buf(), image, devices), random, damage))
    }
}
