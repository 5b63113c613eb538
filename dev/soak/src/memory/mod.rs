//! The suite of regions of compressed memory in this process: random options, under a load of plain accesses.
//!
//! A region never refuses an access: the access waits, or exceeds the limit if no page can be compressed. So the
//! checks are that contents are right, that limits hold, that no thread waits for ever, and that dropping the region
//! frees everything. Signal handlers in any thread touch the region, children are forked, and `madvise` drops pages
//! without the region's knowledge.
//!
//! Threads of a case: those of the load (`load::mixed`), one that disturbs it (`disturb`), one that sends signals
//! (`signals`), the watchdog, and the region's threads. `checks` runs after the load, in the main thread.

mod checks;
mod config;
mod disturb;
mod signals;

use crate::case::{Case, Context, Suite};
use crate::load::mixed::{self, RefusalJudge};
use crate::model::Judgement;
use crate::random::Random;
use crate::target::Connection;
use crate::target::region::RegionConnection;
use crate::verdict::{self, Done, Fault, OrFault, join};
use crate::watchdog::{self, ANSWER, RequestKind};
use checks::Resources;
use config::{Config, PAGE};
use pagefold_memory::{Region, RegionError};
use signals::Signals;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The suite.
pub const SUITE: Suite = Suite {
    name: "memory",
    share: 1,
    is_quick: true,
    // The load, the comparison, the checks afterwards, and a request that hangs.
    time_limit: Duration::from_secs(1 + 3 * ANSWER.as_secs()),
    obstacle: || pagefold_sys::uffd::kernel_features().err().map(|e| e.to_string()),
    draw: |seed| Box::new(Config::draw(seed)),
};

/// Finds every refusal unjustified, because a region never refuses an access.
struct NoRefusals;

impl RefusalJudge for NoRefusals {
    fn judge(&self) -> Result<Judgement, String> {
        Err("a region never refuses an access".into())
    }
}

impl Case for Config {
    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let before = Resources::now();
        let region = match Region::new(self.region(context)?) {
            Ok(region) => region,
            Err(e @ (RegionError::Userfaultfd(_) | RegionError::NoFeature(_))) => {
                return Ok(Done::Skipped(e.to_string()));
            }
            Err(e) => return Err(Fault::failed("making the region", e)),
        };
        let summary = self.run_load(&region)?;
        let done = {
            let _under_way = watchdog::begin(RequestKind::Read, 0, 0);
            checks::check(self, &region)?;
            Done::Ran(summary)
        };
        let _under_way = watchdog::begin(RequestKind::Discard, 0, region.len_bytes() as u64);
        if self.drops_under_load {
            drop_under_load(self, region, &context.dir, &done)?;
            return Ok(done);
        }
        checks::check_empty(&region)?;
        drop(region);
        before.check()?;
        Ok(done)
    }
}

impl Config {
    fn run_load(&self, region: &Region) -> Result<String, Fault> {
        let load_pages = self.load.pages as u64;
        let signals = match self.disturbances.signals {
            true => Some(Signals::begin(region, load_pages)?),
            false => None,
        };
        let (len_bytes, seed) = (load_pages * PAGE, self.disturb_seed);
        let pinned_max_bytes = self.limits()[0] / 4 / self.load.threads as u64 * PAGE;
        let connect = || match RegionConnection::new(region, len_bytes, pinned_max_bytes, seed) {
            Ok(connection) => Ok(Box::new(connection) as Box<dyn Connection>),
            Err(e) => Err(format!("making a file in memory: {e}")),
        };
        let stop = AtomicBool::new(false);
        let (loaded, disturbed) = std::thread::scope(|scope| {
            let disturber = scope.spawn(|| disturb::run(self, region, &stop));
            if let Some(signals) = &signals {
                scope.spawn(|| signals.send(&mut Random::new(self.disturb_seed), &stop));
            }
            let loaded = mixed::run(&self.load, &connect, &NoRefusals);
            stop.store(true, SeqCst);
            (loaded, join(disturber))
        });
        let loaded = loaded?;
        disturbed?;
        signals.map_or(Ok(()), Signals::end)?;
        let stats = region.stats();
        Ok(format!("{loaded}, {} pages compressed, {} faults", stats.eviction.folded, stats.faults.folded))
    }
}

/// Drops the region while threads use it. Their accesses then end the process, as accesses to unmapped memory do. So
/// this writes the verdict first; a hang would still be a fault, because the runner waits for the end of the process.
fn drop_under_load(config: &Config, region: Region, dir: &Path, done: &Done) -> Result<(), Fault> {
    verdict::write(dir, &Ok(done.clone())).or_fault("writing the verdict")?;
    let (start, pages) = (region.as_ptr().expose_provenance(), config.load.pages);
    for thread in 0..3 {
        let mut random = Random::new(config.disturb_seed ^ thread);
        std::thread::spawn(move || {
            loop {
                let address = start + random.below(pages as u64) as usize * PAGE as usize;
                let word = std::ptr::with_exposed_provenance_mut::<u64>(address);
                // SAFETY: within the region while it exists. Afterwards the access ends the process, because no other
                // memory is mapped in this process from then on.
                unsafe { word.write_volatile(word.read_volatile() + 1) };
            }
        });
    }
    std::thread::sleep(Duration::from_millis(20));
    drop(region);
    Ok(())
}
