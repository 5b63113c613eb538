//! Stores in this process: small configurations, thousands in an hour, over media that fail, delay and fill up.
//!
//! This is where odd limits of a few frames are found, because a case takes a fraction of a second. What lies above
//! the store - exports, commands, the kernel - is the business of `disk`.

mod beside;
pub mod config;
mod referee;

use crate::load::mixed;
use crate::load::watch::{ANSWER, LOOK, Watch};
use crate::part::{Case, Context, Done, Fault, FaultKind, Part, Settings};
use crate::target::store::StoreTarget;
use crate::verdict;
use config::Config;
use referee::StoreReferee;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The part.
pub struct Engine;

impl Part for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn share(&self) -> u32 {
        1
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn obstacle(&self, _: &Settings) -> Option<String> {
        None
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
        // The load, its comparison on a slow medium, and a request that is not answered.
        self.load.time + 2 * ANSWER
    }

    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let medium = self.medium(context)?;
        let control = medium.as_ref().and_then(|m| m.control.clone());
        let store = Arc::new(self.store(medium)?);
        let parker = match self.is_parking {
            true => Some(
                pagefold_store::parking::Parker::start(store.clone())
                    .map_err(|e| Fault::failed("parker", e))?,
            ),
            false => None,
        };
        let watch = Arc::new(Watch::new(self.load.threads));
        guard(watch.clone(), context.dir.clone());
        let target = StoreTarget { store: store.clone(), reads_may_fail: self.reads_may_fail() };
        let referee = StoreReferee::new(&store, self.load.threads, control.is_some());
        let stop = AtomicBool::new(false);
        let counts = std::thread::scope(|scope| {
            scope.spawn(|| beside::run(self, &store, control.as_deref(), &stop));
            let counts = mixed::run(&self.load, &target, &referee, &watch);
            stop.store(true, Relaxed);
            counts
        })?;
        drop(parker);
        self.check_empty(&store)?;
        Ok(Done::Ran(counts.to_string()))
    }
}

impl Config {
    /// When everything is discarded, no memory may stay in use.
    fn check_empty(&self, store: &pagefold_store::Store) -> Result<(), Fault> {
        let failed = |e| Fault::failed("discarding everything", e);
        store.discard(0, store.len_bytes()).map_err(failed)?;
        let stats = store.stats().mm;
        if stats.mem_used_total != 0 || stats.orig_data_size != 0 {
            let message = format!("everything is discarded, but the store says {stats:?}");
            return Err(Fault::new(FaultKind::Memory, message));
        }
        Ok(())
    }
}

/// Ends this process with a verdict when a request is not answered: the thread that makes it may be in a loop for ever.
fn guard(watch: Arc<Watch>, dir: PathBuf) {
    std::thread::spawn(move || {
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
}
