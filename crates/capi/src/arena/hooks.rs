//! The functions by which jemalloc takes memory from the part of a region and returns it.
//!
//! jemalloc may hold its locks when it calls them. They take the lock of the runs and, after that is released,
//! those inside a discard, and touch no page. None of them can panic.

use crate::shared::Shared;
use pagefold_page::Runs;
use parking_lot::Mutex;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tikv_jemalloc_sys::extent_hooks_t;

/// The table of functions, followed by what they need: jemalloc passes them the address of the table.
#[repr(C)]
pub(crate) struct Hooks {
    table: extent_hooks_t,
    shared: Arc<Shared>,
    runs: Mutex<Runs>,
    /// Whether the arena is being destroyed, so that all of its memory is discarded at once, afterwards.
    pub(crate) is_closing: AtomicBool,
}

impl Hooks {
    /// Makes the hooks for a part of a region, whose bytes are zero.
    pub(crate) fn new(shared: Arc<Shared>, part: &Range<usize>) -> Box<Self> {
        let table = extent_hooks_t {
            alloc: Some(alloc),
            dalloc: Some(dalloc),
            destroy: Some(destroy),
            commit: None,
            decommit: None,
            purge_lazy: None,
            purge_forced: Some(purge_forced),
            split: Some(split),
            merge: Some(merge),
        };
        let runs = Mutex::new(Runs::new((shared.start + part.start) as u64, part.len() as u64));
        Box::new(Hooks { table, shared, runs, is_closing: AtomicBool::new(false) })
    }

    /// Returns the address that jemalloc gets.
    pub(crate) fn as_table(&self) -> *mut extent_hooks_t {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Makes bytes zero and releases their memory. Returns whether it did.
    fn discard(&self, start: usize, len_bytes: usize) -> bool {
        let offset = start - self.shared.start;
        let Ok(region) = self.shared.region() else { return false };
        // SAFETY: jemalloc calls this for memory that no block has. Rust has no references into a region of C.
        unsafe { region.discard_shared(offset..offset + len_bytes) }.is_ok()
    }
}

/// Returns the hooks that a table belongs to.
///
/// # Safety
/// The table is the first field of hooks that live for `'a`.
unsafe fn hooks<'a>(table: *mut extent_hooks_t) -> &'a Hooks {
    // SAFETY: the caller guarantees it, and the address is that of the whole value.
    unsafe { &*table.cast::<Hooks>() }
}

unsafe extern "C" fn alloc(
    table: *mut extent_hooks_t,
    wanted: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    // SAFETY: jemalloc passes the table of the arena, which lives as long as the arena.
    let mut runs = unsafe { hooks(table) }.runs.lock();
    let start = match wanted.is_null() {
        true => runs.take(size as u64, alignment as u64).map(|start| start as usize),
        false => runs.take_at(wanted.addr() as u64, size as u64).then_some(wanted.addr()),
    };
    let Some(start) = start else { return std::ptr::null_mut() };
    // SAFETY: jemalloc passes the addresses of two flags. Free runs are zero and can be accessed.
    unsafe {
        zero.write(true);
        commit.write(true);
    }
    std::ptr::with_exposed_provenance_mut(start)
}

/// Takes memory back. Returns true to refuse it; jemalloc then keeps it for later blocks.
unsafe extern "C" fn dalloc(
    table: *mut extent_hooks_t,
    start: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: as in `alloc`.
    let hooks = unsafe { hooks(table) };
    if hooks.is_closing.load(Relaxed) {
        return false;
    }
    // Fails for a pinned page, for example: a caller may free a block and unpin it later.
    if !hooks.discard(start.addr(), size) {
        return true;
    }
    hooks.runs.lock().put(start.addr() as u64, size as u64);
    false
}

/// Takes back memory of an arena that is being destroyed.
unsafe extern "C" fn destroy(_: *mut extent_hooks_t, _: *mut c_void, _: usize, _: bool, _: c_uint) {}

/// Makes memory zero that jemalloc keeps. Returns true if it could not.
unsafe extern "C" fn purge_forced(
    table: *mut extent_hooks_t,
    start: *mut c_void,
    _size: usize,
    offset: usize,
    len_bytes: usize,
    _arena: c_uint,
) -> bool {
    // SAFETY: as in `alloc`.
    !unsafe { hooks(table) }.discard(start.addr() + offset, len_bytes)
}

/// Lets jemalloc divide memory, at any page.
unsafe extern "C" fn split(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

/// Lets jemalloc join memory: all of it belongs to one part.
unsafe extern "C" fn merge(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}
