//! The suite of stores in this process: small configurations on backings that fail, delay and fill up, thousands in
//! an hour.
//!
//! A case takes a fraction of a second, so this suite finds the faults at unusual limits of a few frames. The layers
//! above the store (exports, commands, the kernel) are tested by `disk`.
//!
//! Threads of a case: those of the load (`load::mixed`), one that disturbs it (`disturb`), those that compress pages
//! again (`recompress`), the watchdog, and the store's threads of writeback and recompression.

mod config;
mod disturb;
mod judge;
mod recompress;

use crate::case::{Case, Context, Suite};
use crate::load::mixed;
use crate::target::store::StoreTarget;
use crate::verdict::{Done, Fault, FaultKind};
use crate::watchdog::{self, ANSWER, RequestWatch, Suspect};
use config::Config;
use judge::StoreJudge;
use pagefold_store::RecompressStats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The suite.
pub const SUITE: Suite = Suite {
    name: "engine",
    share: 1,
    is_quick: true,
    obstacle: |_| None,
    draw: |seed| Box::new(Config::draw(seed)),
};

impl Case for Config {
    fn time_limit(&self) -> Duration {
        // The load, the comparison on a slow medium, and a request that hangs.
        self.load.time + 2 * ANSWER
    }

    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let medium = self.medium(context)?;
        let control = medium.as_ref().and_then(|m| m.control.clone());
        let store = Arc::new(self.store(medium)?);
        let writeback_thread = match self.is_writing_back {
            true => Some(
                pagefold_store::WritebackThread::start(store.clone())
                    .map_err(|e| Fault::failed("writeback thread", e))?,
            ),
            false => None,
        };
        let watch = Arc::new(RequestWatch::new(self.load.threads));
        watchdog::start(&watch, &context.dir, Suspect::ThisProcess)?;
        let target = StoreTarget { store: store.clone(), reads_may_fail: self.reads_may_fail() };
        let judge = StoreJudge::new(&store, self, control.is_some());
        let recompress_thread = self.recompression.start(&store)?;
        let stop = AtomicBool::new(false);
        let counts = std::thread::scope(|scope| {
            let (store, stop) = (&*store, &stop);
            scope.spawn(|| disturb::run(self, store, control.as_deref(), stop));
            let requester = |number| scope.spawn(move || self.recompression.run(number, store, stop));
            let requesters: Vec<_> = (0..self.recompression.requesters).map(requester).collect();
            let counts = mixed::run(&self.load, &target, &judge, &watch);
            stop.store(true, Relaxed);
            for requester in requesters {
                requester
                    .join()
                    .unwrap_or_else(|_| Err(Fault::failed("a pass of recompression", "panic")))?;
            }
            counts
        })?;
        drop((writeback_thread, recompress_thread));
        let counted = recompress::check_counters(&store, RecompressStats::default())?;
        self.recompression.check_quiet(&store)?;
        self.check_empty(&store)?;
        recompress::check_counters(&store, counted)?;
        Ok(Done::Ran(counts.to_string()))
    }
}

impl Config {
    /// Discards all pages and checks that no memory stays in use.
    fn check_empty(&self, store: &pagefold_store::Store) -> Result<(), Fault> {
        let failed = |e| Fault::failed("discarding everything", e);
        store.discard(0, store.len_bytes()).map_err(failed)?;
        let stats = store.stats();
        if (stats.mm.mem_used_total, stats.mm.orig_data_size) != (0, 0)
            || stats.recompress.pages_now != [0; 3]
        {
            let message = format!("everything is discarded, but the store reports {stats:?}");
            return Err(Fault::new(FaultKind::Memory, message));
        }
        Ok(())
    }
}
