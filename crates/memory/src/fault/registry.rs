//! The table of regions that the signal handler searches for the region of an address.
//!
//! The process has one SIGBUS handler for all regions. It reads the fixed table without locks. A thread that serves a
//! fault first counts itself as a user of the entry and then reads the entry; the thread that removes an entry first
//! empties it and then waits until it has no users. All these accesses are sequentially consistent, so one of the two
//! sees the other.
//!
//! A forked child has the handler, the table and the descriptor, but not the memory. The handler ignores regions of
//! another process, or the child would put pages into its parent's memory.

use crate::pager::{OnLoss, Pager, Served};
use pagefold_sys::{SysError, sigbus};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

/// Most regions in a process whose faults are served in the faulting thread.
pub(crate) const REGIONS_MAX: usize = 256;

struct Entry {
    pager: AtomicPtr<Pager>,
    users: AtomicU32,
}

static ENTRIES: [Entry; REGIONS_MAX] =
    [const { Entry { pager: AtomicPtr::new(ptr::null_mut()), users: AtomicU32::new(0) } }; REGIONS_MAX];

/// A region's entry in the table. After it is dropped, no thread serves a fault of the region.
pub(crate) struct Registered {
    entry: &'static Entry,
    /// Keeps the entry's pager alive.
    _pager: Arc<Pager>,
}

/// Why a region was not registered.
pub(crate) enum RegisterError {
    /// All entries are in use.
    Full,
    /// The signal handler could not be installed.
    Handler(SysError),
}

/// Installs the signal handler and adds a region to the table.
pub(crate) fn register(pager: Arc<Pager>) -> Result<Registered, RegisterError> {
    // SAFETY: `serve` and all that it calls are written for a signal handler: no allocation, no lock but a slot's
    // (which code that touches a region does not hold), no panic, and none but served pages of a region that it knows.
    unsafe { sigbus::install(serve) }.map_err(RegisterError::Handler)?;
    let address = Arc::as_ptr(&pager).cast_mut();
    let is_free =
        |entry: &&Entry| entry.pager.compare_exchange(ptr::null_mut(), address, SeqCst, SeqCst).is_ok();
    let entry = ENTRIES.iter().find(is_free).ok_or(RegisterError::Full)?;
    Ok(Registered { entry, _pager: pager })
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.entry.pager.store(ptr::null_mut(), SeqCst);
        while self.entry.users.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Serves a fault if the address lies in a region. Runs inside the signal handler.
fn serve(address: usize, is_write: bool) -> bool {
    ENTRIES.iter().any(|entry| serve_by(entry, address, is_write))
}

fn serve_by(entry: &Entry, address: usize, is_write: bool) -> bool {
    // Most entries are empty. For these the user count is not touched.
    if entry.pager.load(SeqCst).is_null() {
        return false;
    }
    entry.users.fetch_add(1, SeqCst);
    let pager = entry.pager.load(SeqCst);
    // SAFETY: the entry's `Registered` keeps the pager alive; its drop empties the entry and then waits until the
    // entry has no users. This thread is a user, and saw the entry filled after it became one.
    let pager = unsafe { pager.as_ref() };
    let is_served = pager.is_some_and(|pager| serve_region(pager, address, is_write));
    entry.users.fetch_sub(1, SeqCst);
    is_served
}

fn serve_region(pager: &Pager, address: usize, is_write: bool) -> bool {
    let offset = pager.offset_of(address);
    if offset.is_none() && !pager.is_staging(address) {
        return false;
    }
    if !pager.fork_mark.is_same_process() {
        return false;
    }
    match offset {
        Some(offset) => {
            let is_served = pager.serve(offset, is_write, OnLoss::Return) == Served::Again;
            if !is_served {
                pager.report_loss();
            }
            is_served
        }
        None => {
            pager.serve_staging(address);
            true
        }
    }
}
