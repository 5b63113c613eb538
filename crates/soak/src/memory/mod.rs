//! Regions of compressed memory in this process: every option at random, under a load of plain accesses.
//!
//! A region refuses nothing: an access waits, or goes beyond the limit if nothing can be folded. So what is asked is
//! whether contents are right, limits hold, nobody waits for ever, and all is given back; with signal handlers that touch
//! the region in any thread, children, and pages that are dropped behind its back.

mod account;
mod beside;
mod config;
mod signals;

use crate::load::mixed::{self, Referee};
use crate::load::watch::{ANSWER, LOOK, Watch, What};
use crate::model::Verdict;
use crate::part::{Case, Context, Done, Fault, FaultKind, Part, Settings};
use crate::random::Random;
use crate::target::region::RegionTarget;
use crate::verdict;
use account::Held;
use config::{Config, PAGE};
use pagefold_memory::{Region, RegionError};
use pagefold_sys::signal;
use signals::Signals;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The part.
pub struct Memory;

impl Part for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn share(&self) -> u32 {
        1
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn obstacle(&self, _: &Settings) -> Option<String> {
        pagefold_sys::uffd::kernel_features().err().map(|e| e.to_string())
    }

    fn draw(&self, seed: u64) -> Box<dyn Case> {
        Box::new(Config::draw(seed))
    }
}

/// A region has no refusals.
struct NoRefusal;

impl Referee for NoRefusal {
    fn look(&self) {}

    fn judge(&self) -> Result<Verdict, String> {
        Err("a region refuses nothing".into())
    }
}

impl Case for Config {
    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn time_limit(&self) -> Duration {
        // The load, its comparison, what is checked afterwards, and a request that is not answered.
        self.load.time + 3 * ANSWER
    }

    fn run(&self, context: &Context) -> Result<Done, Fault> {
        // The last slot is for what the owner of the region does.
        let watch = Arc::new(Watch::new(self.load.threads + 1));
        guard(watch.clone(), context.dir.clone())?;
        let held = Held::now();
        let region = match Region::new(self.region(context)?) {
            Ok(region) => region,
            Err(e @ (RegionError::Userfaultfd(_) | RegionError::NoFeature(_))) => {
                return Ok(Done::Skipped(e.to_string()));
            }
            Err(e) => return Err(Fault::failed("making the region", e)),
        };
        let loaded = self.under_load(&region, &watch)?;
        let done = {
            let _under_way = watch.begin(self.load.threads, What::Read, 0, 0);
            account::check(self, &region)?;
            Done::Ran(loaded)
        };
        let _under_way = watch.begin(self.load.threads, What::Discard, 0, region.len_bytes() as u64);
        if self.drops_under_load {
            drop_under_load(self, region, &context.dir, &done)?;
            return Ok(done);
        }
        account::check_empty(&region)?;
        drop(region);
        held.check()?;
        Ok(done)
    }
}

impl Config {
    fn under_load(&self, region: &Region, watch: &Watch) -> Result<String, Fault> {
        let load_pages = self.load.pages as u64;
        let signals = match self.beside.signals {
            true => Some(Signals::begin(region, load_pages)?),
            false => None,
        };
        let target = RegionTarget {
            region,
            len_bytes: load_pages * PAGE,
            pinned_max_bytes: self.smallest_limit() / 4 / self.load.threads as u64 * PAGE,
            seed: self.beside_seed,
        };
        let stop = AtomicBool::new(false);
        let (loaded, disturbed) = std::thread::scope(|scope| {
            let beside = scope.spawn(|| beside::run(self, region, &stop));
            if let Some(signals) = &signals {
                scope.spawn(|| signals.send(&mut Random::new(self.beside_seed), &stop));
            }
            let loaded = mixed::run(&self.load, &target, &NoRefusal, watch);
            stop.store(true, SeqCst);
            (loaded, beside.join())
        });
        let loaded = loaded?;
        disturbed
            .unwrap_or_else(|_| Err(Fault::new(FaultKind::Failed, "a thread beside the load panicked")))?;
        signals.map_or(Ok(()), Signals::end)?;
        let stats = region.stats();
        Ok(format!("{loaded}, {} pages folded, {} faults", stats.eviction.folded, stats.faults.folded))
    }
}

/// Drops the region while threads use it. Their accesses then end the process, as accesses to memory that is not there
/// do; so the verdict is left before, and what remains to be seen is that nothing hangs.
fn drop_under_load(config: &Config, region: Region, dir: &Path, done: &Done) -> Result<(), Fault> {
    verdict::write(dir, &Ok(done.clone())).map_err(|e| Fault::failed("writing the verdict", e))?;
    let (start, pages) = (region.as_ptr().expose_provenance(), config.load.pages);
    for thread in 0..3 {
        let mut random = Random::new(config.beside_seed ^ thread);
        std::thread::spawn(move || {
            loop {
                let address = start + random.below(pages as u64) as usize * PAGE as usize;
                let word = std::ptr::with_exposed_provenance_mut::<u64>(address);
                // SAFETY: in the range as long as there is one. Afterwards the access ends the process, as nothing else is
                // mapped in this process from then on.
                unsafe { word.write_volatile(word.read_volatile() + 1) };
            }
        });
    }
    std::thread::sleep(Duration::from_millis(20));
    drop(region);
    Ok(())
}

/// Ends this process with a verdict when an access is not served: the thread that makes it cannot be stopped.
fn guard(watch: Arc<Watch>, dir: PathBuf) -> Result<(), Fault> {
    // Signals would have it touch the region, too.
    let started = signal::spawn_masked(std::thread::Builder::new(), move || {
        loop {
            std::thread::sleep(LOOK);
            if let Some(overdue) = watch.overdue() {
                let stacks = crate::process::stacks(std::process::id());
                let fault = Fault::new(FaultKind::Hang, format!("{overdue}\n{stacks}"));
                println!("FAULT {fault}");
                // If this fails, the runner reports that the case ended without a verdict.
                let _ = verdict::write(&dir, &Err(fault));
                std::process::exit(0);
            }
        }
    });
    started.map(drop).map_err(|e| Fault::failed("starting a thread", e))
}
