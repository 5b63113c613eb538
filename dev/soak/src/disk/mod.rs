//! The suite of disks as users make them: the `pagefold` program, its exports, and programs that use the disks.
//!
//! A case creates a disk (`server`), runs its load some times, perhaps resets it and makes another disk of it (`lives`),
//! and ends the disk (`ending`). Three threads run during a load: the load itself, one that disturbs it (`disturb`, with commands of `recompress`), and one that samples the
//! disk's counters and judges refusals (`sampler`). A mixed load has further threads and a watchdog.

mod config;
mod disturb;
mod ending;
mod lives;
mod recompress;
mod sampler;
mod server;

use crate::case::{Case, Context, Suite};
use crate::load::mixed;
use crate::process;
use crate::target::Connection;
use crate::target::device::DeviceConnection;
use crate::target::nbd::NbdConnection;
use crate::verdict::{Done, Fault, OrFault, join, require};
use config::{Config, Export, Load};
use sampler::Sampler;
use server::Server;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time limit of a case: its loads, their checks, and a request that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(420);
/// Time after which no further round of a load begins.
const LOADING: Duration = Duration::from_secs(15);
/// Programs that cases run.
const PROGRAMS: [&str; 8] = ["fio", "mkfs.ext4", "mkfs.xfs", "mount", "umount", "losetup", "fstrim", "dd"];

/// The suite.
pub const SUITE: Suite = Suite {
    name: "disk",
    share: 3,
    is_quick: false,
    time_limit: TIME_LIMIT,
    obstacle: || process::missing_for_root(&["/dev/fuse", "/dev/loop-control"], &PROGRAMS),
    draw: |seed| Box::new(Config::draw(seed)),
};

impl Case for Config {
    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let server = match lives::create(context, self)? {
            Ok(server) => server,
            Err(why) => {
                server::remove_medium(context, self)?;
                return Ok(Done::Skipped(why));
            }
        };
        let mut summaries = self.run_life(context, &server)?;
        let (mut server, mut life) = (server, self);
        for next in &self.further_lives {
            lives::reset(&server, next)?;
            if life.by_attributes {
                server::remove_medium(context, life)?;
            }
            (server, life) = (server.reborn(next), next);
            lives::configure(context, &server, life)?;
            summaries.extend(life.run_life(context, &server)?);
        }
        ending::end(life, context, &server)?;
        server::remove_medium(context, life)?;
        // A server keeps a backing that `disk create` has made until the disk is removed.
        if life.life > 0 && !self.by_attributes {
            server::remove_medium(context, self)?;
        }
        ending::check_gone(self, context, &server)?;
        Ok(Done::Ran(summaries.join("; ")))
    }
}

impl Config {
    /// Runs the load of this life some times, and checks the disk at rest.
    fn run_life(&self, context: &Context, server: &Server) -> Result<Vec<String>, Fault> {
        let sampler = Sampler::new(server, self.requests());
        let (mut summaries, began) = (Vec::new(), Instant::now());
        for round in 0..self.rounds {
            if began.elapsed() > LOADING {
                break;
            }
            summaries.push(self.run_round(context, server, &sampler, round)?);
        }
        ending::check_rest(self, server)?;
        ending::check_memory(self, server, &sampler)?;
        Ok(summaries)
    }

    /// Runs one round of the load with its disturbances.
    fn run_round(
        &self,
        context: &Context,
        server: &Server,
        sampler: &Sampler,
        round: u64,
    ) -> Result<String, Fault> {
        let stop = AtomicBool::new(false);
        let (loaded, disturbed) = std::thread::scope(|scope| {
            scope.spawn(|| sampler.run(&stop));
            let disturber = scope.spawn(|| disturb::run(self, server, &stop));
            let loaded = self.load(context, server, sampler, round);
            stop.store(true, Relaxed);
            (loaded, join(disturber))
        });
        require!(process::is_running(server.pid()), Failed, "the server has ended; {loaded:?}");
        // A fault from the server's counters says more than the error of the load, so it comes first.
        sampler.sample()?;
        let loaded = loaded?;
        disturbed.map(|()| loaded)
    }

    fn load(
        &self,
        context: &Context,
        server: &Server,
        sampler: &Sampler,
        round: u64,
    ) -> Result<String, Fault> {
        match &self.load {
            Load::Fio(fio) => fio.run(context, &server.device, round),
            Load::Tree(tree) => tree.run(context, &server.device),
            Load::Mixed(mixed) => {
                let connect = || self.connect(server);
                if round > 0 {
                    // The shadow of each round begins with zeroes.
                    let mut connection = connect().or_fault("a connection")?;
                    for at in (0..self.size_bytes).step_by(1 << 30) {
                        let discarded = connection.discard(at, (self.size_bytes - at).min(1 << 30));
                        discarded.map_err(|e| Fault::failed("discarding everything", format!("{e:?}")))?;
                    }
                }
                let load = mixed::Mixed { seed: mixed.seed ^ round, ..mixed.clone() };
                Ok(mixed::run(&load, &connect, sampler)?.to_string())
            }
        }
    }

    fn connect(&self, server: &Server) -> Result<Box<dyn Connection>, String> {
        let failed = |e: std::io::Error| format!("opening {}: {e}", server.device);
        Ok(match self.export {
            Export::Nbd => Box::new(NbdConnection::open(&server.socket()).map_err(failed)?),
            Export::Loop => Box::new(DeviceConnection::open(Path::new(&server.device)).map_err(failed)?),
        })
    }
}
