//! Disturbs a load on a store: writeback passes on request, idle marks, compaction, changes of settings, failures of
//! the medium.

use super::config::Config;
use crate::backing::draw_selection;
use crate::random::Random;
use pagefold_backing::layer::{ErrorControl, When};
use pagefold_store::Store;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// By how much the clock of access times leaps, seconds.
pub const LEAPS_S: [u64; 5] = [1800, 3600, 5 * 3600, 24 * 3600, 30 * 24 * 3600];

/// Disturbs the load until `stop` is set.
pub fn run(config: &Config, store: &Store, control: Option<&ErrorControl>, stop: &AtomicBool) {
    let mut random = Random::new(config.disturb_seed);
    let errno = config.backing.as_ref().and_then(|b| b.failing).and_then(|f| f.all_writes());
    let mut is_failing = false;
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(random.between(1, 20)));
        if let (Some(errno), Some(control)) = (errno, control)
            && random.percent(20)
        {
            match is_failing {
                true => control.clear(),
                false => control.fail_writes(When::Always, errno),
            }
            is_failing = !is_failing;
        }
        if config.leaps && random.percent(10) {
            store.leap_clock(Duration::from_secs(random.pick(&LEAPS_S)));
        }
        if config.is_disturbed {
            disturb(&mut random, store);
        }
    }
}

fn disturb(random: &mut Random, store: &Store) {
    match random.below(6) {
        5 => store.mark_idle(random.pick(&[0, 0, 1])),
        0 => {
            store.compact();
        }
        1 => store.set_same_filled_enabled(random.percent(50)),
        2 => {
            if let Some(writeback) = store.writeback() {
                writeback.settings().set_writeback_batch_size(random.between(1, 64) as u32);
                writeback.settings().promote.store(random.percent(50));
                let low = random.between(1, 95) as u32;
                writeback.policy().set_marks_percent(random.between(low.into(), 100) as u32, low);
            }
        }
        _ => {
            let selection = draw_selection(random, store.len_bytes().div_ceil(4096));
            if store.writeback().is_some() {
                // The result is not checked: the pass may find no room, or a medium that fails.
                let _ = store.write_back(&selection, &mut |_| ControlFlow::Continue(()));
            }
        }
    }
}
