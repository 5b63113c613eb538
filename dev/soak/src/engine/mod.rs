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
use pagefold_page::PageIndex;
use pagefold_store::RecompressStats;
use std::ops::ControlFlow;
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
        self.check_ages(&store)?;
        self.check_empty(&store)?;
        recompress::check_counters(&store, counted)?;
        Ok(Done::Ran(counts.to_string()))
    }
}

impl Config {
    /// Lets hours pass without an access, and checks that all pages are old then.
    fn check_ages(&self, store: &pagefold_store::Store) -> Result<(), Fault> {
        const AGE_S: u64 = 1800;
        for leap_s in disturb::LEAPS_S {
            store.mark_idle(u64::MAX);
            store.leap_clock(Duration::from_secs(leap_s));
            store.mark_idle(AGE_S);
            let (mut young, pages) = (0_u64, PageIndex(0)..PageIndex(store.len_bytes().div_ceil(4096)));
            store.each_slot_state(pages, |page| {
                let has_object = !page.is_same_filled && !page.is_written_back;
                young += u64::from(has_object && !page.is_idle);
                ControlFlow::Continue(())
            });
            if young > 0 {
                let message = format!("{young} pages are younger than {AGE_S} s, {leap_s} s after the load");
                return Err(Fault::failed("marking idle pages", message));
            }
        }
        Ok(())
    }

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
