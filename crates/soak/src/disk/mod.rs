//! Disks as users make them: the `pagefold` program, its exports, and programs that use them.

mod beside;
mod config;
mod ending;
mod sampler;
mod server;

use crate::load::mixed;
use crate::load::watch::{LOOK, Watch};
use crate::part::{Case, Context, Done, Fault, FaultKind, Part, Settings};
use crate::process;
use crate::target::Target;
use crate::target::device::DeviceTarget;
use crate::target::nbd::NbdTarget;
use crate::verdict;
use config::{Config, Export, Load};
use sampler::Sampler;
use server::{Made, Server};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Beyond this a case hangs: its loads, what checks them, and a request that is not answered.
const TIME_LIMIT: Duration = Duration::from_secs(420);
/// After this time no further round of a load begins.
const LOADING: Duration = Duration::from_secs(15);
/// Programs that cases use.
const PROGRAMS: [&str; 9] =
    ["fio", "mkfs.ext4", "mkfs.xfs", "mount", "umount", "losetup", "fstrim", "diff", "dd"];

/// The part.
pub struct Disk;

impl Part for Disk {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn share(&self) -> u32 {
        3
    }

    fn obstacle(&self, _: &Settings) -> Option<String> {
        let opens = |path: &str| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
        if !rustix::process::geteuid().is_root() || !opens("/dev/fuse") || !opens("/dev/loop-control") {
            return Some("needs root, /dev/fuse and /dev/loop-control".into());
        }
        process::missing(&PROGRAMS).map(|program| format!("needs the program {program}"))
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
        let server = match Server::create(context, self)? {
            Made::Running(server) => server,
            Made::Refused(why) => {
                server::take_medium_away(context, self)?;
                return Ok(Done::Skipped(why));
            }
        };
        let sampler = Sampler::new(&server, self.requests());
        let (mut done, began) = (Vec::new(), Instant::now());
        for round in 0..self.rounds {
            if began.elapsed() > LOADING {
                break;
            }
            done.push(self.under_load(context, &server, &sampler, round)?);
        }
        ending::is_idle(&server)?;
        ending::is_within_memory(self, &server, &sampler)?;
        ending::end(self, context, &server, &sampler)?;
        server::take_medium_away(context, self)?;
        ending::is_gone(self, context, &server)?;
        Ok(Done::Ran(done.join("; ")))
    }
}

impl Config {
    /// One round of the load, with all that comes beside it.
    fn under_load(
        &self,
        context: &Context,
        server: &Server,
        sampler: &Sampler,
        round: u64,
    ) -> Result<String, Fault> {
        let stop = AtomicBool::new(false);
        let (loaded, disturbed) = std::thread::scope(|scope| {
            scope.spawn(|| sampler.run(&stop));
            let beside = scope.spawn(|| beside::run(self, server, &stop));
            let loaded = self.load(context, server, sampler, round);
            stop.store(true, Relaxed);
            (loaded, beside.join())
        });
        let is_running = process::is_running(server.pid);
        if !is_running {
            return Err(Fault::new(FaultKind::Failed, format!("the server has ended; {loaded:?}")));
        }
        // What the server counted says more than what the load met.
        sampler.look_now()?;
        let loaded = loaded?;
        disturbed
            .unwrap_or_else(|_| Err(Fault::new(FaultKind::Failed, "the thread beside the load panicked")))?;
        Ok(loaded)
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
                let target = self.target(server)?;
                let watch = Arc::new(Watch::new(mixed.threads));
                let over = Arc::new(AtomicBool::new(false));
                guard(watch.clone(), over.clone(), context.dir.clone(), server.pid);
                if round > 0 {
                    // The shadow of a round begins with zeroes.
                    let failed = |e| Fault::new(FaultKind::Failed, format!("discarding everything: {e:?}"));
                    let mut connection = target.connect().map_err(|e| Fault::new(FaultKind::Failed, e))?;
                    for at in (0..self.size_bytes).step_by(1 << 30) {
                        connection.discard(at, (self.size_bytes - at).min(1 << 30)).map_err(failed)?;
                    }
                }
                let load = mixed::Mixed { seed: mixed.seed ^ round, ..mixed.clone() };
                let counts = mixed::run(&load, &*target, sampler, &watch);
                over.store(true, Relaxed);
                Ok(counts?.to_string())
            }
        }
    }

    fn target(&self, server: &Server) -> Result<Box<dyn Target>, Fault> {
        match self.export {
            Export::Nbd => Ok(Box::new(NbdTarget { socket: server.socket(), len_bytes: self.size_bytes })),
            Export::Loop => {
                let device = DeviceTarget::new(PathBuf::from(&server.device));
                Ok(Box::new(device.map_err(|e| Fault::new(FaultKind::Failed, e))?))
            }
        }
    }
}

/// Leaves a verdict when a request is not answered. The thread that made it may be stuck in the kernel, and this process
/// with it; the runner sees the verdict and clears the way.
fn guard(watch: Arc<Watch>, over: Arc<AtomicBool>, dir: PathBuf, server: u32) {
    std::thread::spawn(move || {
        while !over.load(Relaxed) {
            std::thread::sleep(LOOK);
            if let Some(overdue) = watch.overdue() {
                let stacks = process::stacks(server);
                let fault = Fault::new(FaultKind::Hang, format!("{overdue}\n{stacks}"));
                println!("FAULT {fault}");
                // If this fails, the runner's own limit ends the case.
                let _ = verdict::write(&dir, &Err(fault));
                return;
            }
        }
    });
}
