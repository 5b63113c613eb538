//! Which region an address belongs to, told inside a signal handler.
//!
//! The process has one handler of SIGBUS for all regions. It finds the region in a fixed table, whose entries are
//! read without locks: a thread that serves a fault first counts itself as a user of the entry and then reads it, and
//! who removes an entry first empties it and then waits until it has no users. Both in one total order, so one of
//! the two sees the other.
//!
//! A forked child has the handler, the table and the descriptor, but not the memory: its entries are passed over, or
//! the child would fill its parent's memory.

use crate::pager::{OnLoss, Pager, Served};
use pagefold_sys::{SysError, sigbus};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

/// Regions served in the faulting thread that a process can have at once.
pub(crate) const REGIONS_MAX: usize = 256;

struct Entry {
    pager: AtomicPtr<Pager>,
    users: AtomicU32,
}

static ENTRIES: [Entry; REGIONS_MAX] =
    [const { Entry { pager: AtomicPtr::new(ptr::null_mut()), users: AtomicU32::new(0) } }; REGIONS_MAX];

/// A region whose faults are served in the faulting thread. No fault of it is being served after it is dropped.
pub(crate) struct Registered {
    entry: &'static Entry,
    /// Keeps what the entry points to.
    _pager: Arc<Pager>,
}

/// Why a region was not registered.
pub(crate) enum RegisterError {
    /// All entries are in use.
    Full,
    /// There is no signal handler.
    Handler(SysError),
}

/// Serves the faults of a region's range from now on.
pub(crate) fn register(pager: Arc<Pager>) -> Result<Registered, RegisterError> {
    // SAFETY: `serve` and all that it calls are written for a signal handler: no allocation, no lock but a slot's (which
    // code that touches a region does not hold), no panic, and none but served pages of a region that it knows.
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

/// Serves a fault if a region has its address. Runs inside the signal handler.
fn serve(address: usize, is_write: bool) -> bool {
    ENTRIES.iter().any(|entry| serve_by(entry, address, is_write))
}

fn serve_by(entry: &Entry, address: usize, is_write: bool) -> bool {
    // Most entries are empty, and need not be counted.
    if entry.pager.load(SeqCst).is_null() {
        return false;
    }
    entry.users.fetch_add(1, SeqCst);
    let pager = entry.pager.load(SeqCst);
    // SAFETY: what an entry points to is kept by its `Registered`, whose drop empties the entry and then waits until
    // it has no users; this thread is one, and saw the entry filled after it became one.
    let pager = unsafe { pager.as_ref() };
    let is_served = pager.is_some_and(|pager| serve_region(pager, address, is_write));
    entry.users.fetch_sub(1, SeqCst);
    is_served
}

fn serve_region(pager: &Pager, address: usize, is_write: bool) -> bool {
    let page = pager.page_at(address);
    if page.is_none() && !pager.is_staging(address) {
        return false;
    }
    if !pager.mark.is_same_process() {
        return false;
    }
    match page {
        Some(page) => pager.serve(page, is_write, OnLoss::Tell) == Served::Again,
        None => {
            pager.serve_staging(address);
            true
        }
    }
}
