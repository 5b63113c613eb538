//! What runs beside a load on a store: passes on request, compaction, changes of settings, a medium that fails for a
//! time.

use super::config::Config;
use crate::random::Random;
use pagefold_backing::layer::{ErrorControl, When};
use pagefold_page::PageIndex;
use pagefold_store::Store;
use pagefold_store::parking::{Selection, Which};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Disturbs the load until told to stop.
pub fn run(config: &Config, store: &Store, control: Option<&ErrorControl>, stop: &AtomicBool) {
    let mut random = Random::new(config.beside_seed);
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
        if config.is_disturbed {
            disturb(&mut random, store);
        }
    }
}

fn disturb(random: &mut Random, store: &Store) {
    match random.below(5) {
        0 => {
            store.compact();
        }
        1 => store.set_same_filled_enabled(random.percent(50)),
        2 => {
            if let Some(parking) = store.parking() {
                parking.settings().set_writeback_batch_size(random.between(1, 64) as u32);
                parking.settings().set_promote(random.percent(50));
                let low = random.between(1, 95) as u32;
                parking.policy().set_marks_percent(random.between(low.into(), 100) as u32, low);
            }
        }
        _ => {
            let pages = store.len_bytes().div_ceil(4096);
            let first = random.below(pages);
            let last = random.between(first, pages - 1);
            let part = Selection::pages(PageIndex(first), PageIndex(last));
            let selection = part.unwrap_or_else(|_| Selection::of(Which::All));
            if store.parking().is_some() {
                // What a pass reports is not checked: it may find no room, or a medium that fails.
                let _ = store.park(&selection, &mut |_| ControlFlow::Continue(()));
            }
        }
    }
}
