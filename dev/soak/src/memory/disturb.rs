//! Disturbs a load on a region: other limits, calls of the region's owner, pages dropped by `madvise`, forked children.

use super::config::{Config, MADVISE_PAGES, PAGE};
use crate::backing::draw_selection;
use crate::process;
use crate::random::Random;
use crate::verdict::{Fault, FaultKind, OrFault, require};
use pagefold_memory::Region;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// How long a child may take to end.
const CHILD_LIMIT: Duration = Duration::from_secs(60);

/// Disturbs the load until `stop` is set.
pub fn run(config: &Config, region: &Region, stop: &AtomicBool) -> Result<(), Fault> {
    let mut random = Random::new(config.disturb_seed);
    let mut madvised = MadvisedPages { region, first: config.range_pages() - MADVISE_PAGES, round: 0 };
    while !stop.load(SeqCst) {
        std::thread::sleep(Duration::from_micros(random.doubling(100, 20_000)));
        if let Some(limit) = config.other_limits.get(random.below(6) as usize) {
            region.set_limit(limit * PAGE).or_fault("setting the limit")?;
        }
        if config.disturbances.calls {
            call(region, &mut random);
        }
        if config.disturbances.madvise {
            madvised.drop_some(&mut random)?;
        }
        if config.disturbances.forks && random.percent(10) {
            fork(region)?;
        }
    }
    Ok(())
}

/// Makes a random call of the region's owner.
fn call(region: &Region, random: &mut Random) {
    let store = region.store();
    match random.below(8) {
        0 => drop(region.stats()),
        1 => drop(store.stats()),
        2 => drop(store.class_stats()),
        3 => drop(store.compact()),
        4 => store.reset_mem_used_max(),
        _ => {
            let Some(writeback) = store.writeback() else { return };
            let selection = draw_selection(random, region.len_bytes() as u64 / PAGE);
            match random.below(4) {
                0 => writeback.mark_idle(random.below(3)),
                1 => {
                    let low = random.between(1, 95) as u32;
                    writeback.policy().set_marks_percent(random.between(low.into(), 100) as u32, low);
                }
                2 => drop(writeback.stats()),
                // The result is not checked: the pass may find no space, or a medium that fails.
                _ => drop(writeback.write_back(&selection, &mut |_| ControlFlow::Continue(()))),
            }
        }
    }
}

/// Pages that one thread writes, drops by `madvise`, as a program may that knows nothing of the region, and reads.
struct MadvisedPages<'a> {
    region: &'a Region,
    first: u64,
    round: u64,
}

impl MadvisedPages<'_> {
    fn address(&self, page: u64) -> *mut u64 {
        self.region.as_ptr().wrapping_add(((self.first + page) * PAGE) as usize).cast()
    }

    /// Reads the words of a page.
    fn read(&self, page: u64) -> [u64; 512] {
        // SAFETY: a page of the region that only this thread uses.
        unsafe { self.address(page).cast::<[u64; 512]>().read() }
    }

    fn write(&self, page: u64, value: u64) {
        let words: [u64; 512] = std::array::from_fn(|index| value ^ index as u64);
        // SAFETY: a page of the region that only this thread uses.
        unsafe { self.address(page).cast::<[u64; 512]>().write(words) };
    }

    fn has_contents(&self, page: u64, value: u64) -> bool {
        self.read(page).iter().enumerate().all(|(index, word)| *word == value ^ index as u64)
    }

    /// Drops some pages. Afterwards each must be zero or unchanged as a whole, and must store what is written next.
    fn drop_some(&mut self, random: &mut Random) -> Result<(), Fault> {
        let first = random.below(MADVISE_PAGES);
        let count = random.between(1, MADVISE_PAGES - first);
        self.round += 1;
        let value = |page: u64| self.round << 32 | page << 12;
        let pages = || first..first + count;
        pages().for_each(|page| self.write(page, value(page)));
        if random.percent(30) {
            std::thread::sleep(Duration::from_micros(random.doubling(20, 2000)));
        }
        let step = random.pick(&[1, 1, 2, 5]);
        for page in pages().step_by(step) {
            let len = if step == 1 { count } else { 1 };
            // SAFETY: pages of the region that only this thread uses, and to which it has no references.
            let rc = unsafe {
                libc::madvise(self.address(page).cast(), (len * PAGE) as usize, libc::MADV_DONTNEED)
            };
            require!(rc == 0, Failed, "madvise: {}", std::io::Error::last_os_error());
            if step == 1 {
                break;
            }
        }
        for page in pages() {
            let is_right =
                self.read(page).iter().all(|word| *word == 0) || self.has_contents(page, value(page));
            require!(is_right, Contents, "page {page}, dropped by madvise, is neither zero nor unchanged");
            self.write(page, !value(page));
        }
        let lost = pages().find(|page| !self.has_contents(*page, !value(*page)));
        require!(
            lost.is_none(),
            Contents,
            "page {lost:?}, written after madvise dropped it, has other contents"
        );
        Ok(())
    }
}

/// Forks a child, which checks that it has no memory of the region, and waits for its end.
fn fork(region: &Region) -> Result<(), Fault> {
    let start = region.as_ptr();
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The range is there in the child, and cannot be accessed: the kernel cannot read it either.
        let mut pipe = [0; 2];
        // SAFETY: `pipe` makes two descriptors; `write` reads a byte of the range, or fails; `_exit` ends the child.
        unsafe {
            let is_open = libc::pipe(pipe.as_mut_ptr()) == 0;
            let written = libc::write(pipe[1], start.cast(), 1);
            libc::_exit(i32::from(!is_open || written == 1));
        }
    }
    require!(child > 0, Failed, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child above.
    let ends = || Ok(unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child);
    if !process::wait_until(CHILD_LIMIT, ends)? {
        // SAFETY: ends the child above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        return Err(Fault::new(FaultKind::Hang, "a child of a process with a region hangs"));
    }
    require!(status == 0, Failed, "a child has memory of the region, or failed: status {status:#x}");
    Ok(())
}
