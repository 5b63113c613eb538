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

use crate::backing::Failing;
use crate::case::{Case, Context, Suite};
use crate::load::mixed;
use crate::target::Connection;
use crate::target::store::StoreConnection;
use crate::verdict::{Done, Fault, OrFault, join, require};
use crate::watchdog::ANSWER;
use config::Config;
use judge::StoreJudge;
use pagefold_page::PageIndex;
use pagefold_store::{RecompressStats, Store, WritebackThread};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The suite.
pub const SUITE: Suite = Suite {
    name: "engine",
    share: 1,
    is_quick: true,
    // The load, the comparison on a slow medium, and a request that hangs.
    time_limit: Duration::from_secs(1 + 2 * ANSWER.as_secs()),
    obstacle: || None,
    draw: |seed| Box::new(Config::draw(seed)),
};

impl Case for Config {
    fn run(&self, context: &Context) -> Result<Done, Fault> {
        let medium = self.backing.as_ref().map(|b| b.open(context, self.disturb_seed)).transpose()?;
        let (attached, control) =
            medium.map_or((None, None), |(attached, control)| (Some(attached), control));
        let store = Arc::new(self.store(attached)?);
        let starts = self.is_writing_back.then(|| WritebackThread::start(store.clone()));
        let writeback_thread = starts.transpose().or_fault("writeback thread")?;
        let reads_may_fail = self.backing.as_ref().is_some_and(|b| b.failing == Some(Failing::Some));
        let judge = StoreJudge::new(&store, self, control.is_some());
        let recompress_thread = self.recompression.start(&store)?;
        let stop = AtomicBool::new(false);
        let counts = std::thread::scope(|scope| {
            let (store, stop) = (&*store, &stop);
            scope.spawn(|| disturb::run(self, store, control.as_deref(), stop));
            let requester = |number| scope.spawn(move || self.recompression.run(number, store, stop));
            let mut requesters =
                (0..self.recompression.requesters).map(requester).collect::<Vec<_>>().into_iter();
            let connect = || Ok(Box::new(StoreConnection { store, reads_may_fail }) as Box<dyn Connection>);
            let counts = mixed::run(&self.load, &connect, &judge);
            stop.store(true, Relaxed);
            requesters.try_for_each(join)?;
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
    fn check_ages(&self, store: &Store) -> Result<(), Fault> {
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
            require!(
                young == 0,
                Failed,
                "{young} pages are younger than {AGE_S} s, {leap_s} s after the load"
            );
        }
        Ok(())
    }

    /// Discards all pages and checks that no memory stays in use.
    fn check_empty(&self, store: &Store) -> Result<(), Fault> {
        store.discard(0, store.len_bytes()).or_fault("discarding everything")?;
        let stats = store.stats();
        let is_empty = (stats.mm.mem_used_total, stats.mm.orig_data_size) == (0, 0)
            && stats.recompress.pages_now == [0; 3];
        require!(is_empty, Memory, "everything is discarded, but the store reports {stats:?}");
        Ok(())
    }
}
