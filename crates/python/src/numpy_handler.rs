//! NumPy's memory handler (NEP 49) over an arena.
//!
//! A handler is a capsule around a table of functions that NumPy calls to allocate and free the memory of arrays. Each
//! array keeps a reference to the handler that allocated it, so the capsule owns the arena: the region lives until the
//! last array is gone and no context has the handler. The handler in use is a context variable of NumPy.
//!
//! Blocks from the threshold on come from the arena, others from the C library. `free` and `realloc` tell them apart by
//! the address: the sizes that NumPy passes need not be those of the allocation.
//!
//! There is no link dependency on NumPy: the functions come from the table in the capsule `_ARRAY_API`, which every
//! version since 1.22 has at the same positions.

use crate::arena::Arena;
use crate::arguments::RegionSettings;
use crate::budget::Limit;
use crate::errors;
use crate::report::PyRegionStats;
use crate::sizes::Size;
use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The name that NumPy requires.
const CAPSULE_NAME: &CStr = c"mem_handler";
/// The version of NumPy's interface that has handlers first: that of NumPy 1.22.
const FEATURE_VERSION_MIN: u32 = 0xf;
/// Positions in NumPy's table of functions (`numpy/__multiarray_api.h`).
const GET_FEATURE_VERSION: usize = 211;
const SET_HANDLER: usize = 304;
const GET_HANDLER: usize = 305;

/// `PyDataMem_Handler` of `numpy/ndarraytypes.h`, version 1, and the data of its functions.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
    // NumPy does not know what follows.
    heap: Heap,
}

/// The arena, and the size from which blocks come from it.
struct Heap {
    arena: Arc<Arena>,
    threshold_bytes: usize,
}

impl Heap {
    fn is_large(&self, len_bytes: usize) -> bool {
        // A forked child does not have the range, and uses the C library.
        len_bytes >= self.threshold_bytes && self.arena.is_same_process()
    }

    fn malloc(&self, len_bytes: usize) -> *mut c_void {
        match self.is_large(len_bytes) {
            true => self.arena.take(len_bytes).cast(),
            // SAFETY: a call of the C library without preconditions. Zero bytes need an address all the same.
            false => unsafe { libc::malloc(len_bytes.max(1)) },
        }
    }

    fn calloc(&self, count: usize, each_bytes: usize) -> *mut c_void {
        let Some(len_bytes) = count.checked_mul(each_bytes) else { return ptr::null_mut() };
        match self.is_large(len_bytes) {
            true => self.arena.take_zeroed(len_bytes).cast(),
            // SAFETY: a call of the C library without preconditions.
            false => unsafe { libc::calloc(len_bytes.max(1), 1) },
        }
    }

    /// # Safety
    /// `address` came from this heap or is null; it is not used afterwards, unless the result is null.
    unsafe fn realloc(&self, address: *mut c_void, len_bytes: usize) -> *mut c_void {
        if address.is_null() {
            return self.malloc(len_bytes);
        }
        if self.arena.contains(address.cast()) {
            // SAFETY: the block is the caller's, as it lies in the arena.
            return unsafe { self.arena.resize(address.cast(), len_bytes) }.cast();
        }
        if !self.is_large(len_bytes) {
            // SAFETY: the address does not lie in the arena, so the C library allocated it.
            return unsafe { libc::realloc(address, len_bytes.max(1)) };
        }
        let new = self.arena.take(len_bytes);
        if !new.is_null() {
            // SAFETY: the C library allocated the old block and knows its length; the new one has `len_bytes` bytes, and
            // nobody else has either.
            unsafe {
                let old_bytes = libc::malloc_usable_size(address);
                ptr::copy_nonoverlapping(address.cast::<u8>(), new, old_bytes.min(len_bytes));
                libc::free(address);
            }
        }
        new.cast()
    }

    /// # Safety
    /// `address` came from this heap or is null, and is not used afterwards.
    unsafe fn free(&self, address: *mut c_void) {
        match self.arena.contains(address.cast()) {
            // SAFETY: the block is the caller's, as it lies in the arena.
            true => unsafe { self.arena.free(address.cast()) },
            // SAFETY: the address does not lie in the arena, so the C library allocated it, or it is null.
            false => unsafe { libc::free(address) },
        }
    }
}

/// Calls `f` with the heap of a handler. A panic must not reach NumPy, which is C: it is reported by the panic hook, and
/// the result is that of a failed allocation.
///
/// # Safety
/// `context` is that of a [`Handler`] that lives.
unsafe fn with_heap<T>(context: *mut c_void, failed: T, f: impl FnOnce(&Heap) -> T) -> T {
    // SAFETY: the caller's duty; the heap is never changed.
    let heap = unsafe { &*context.cast::<Heap>() };
    catch_unwind(AssertUnwindSafe(|| f(heap))).unwrap_or(failed)
}

unsafe extern "C" fn handler_malloc(context: *mut c_void, len_bytes: usize) -> *mut c_void {
    // SAFETY: NumPy passes the handler's context.
    unsafe { with_heap(context, ptr::null_mut(), |heap| heap.malloc(len_bytes)) }
}

unsafe extern "C" fn handler_calloc(context: *mut c_void, count: usize, each_bytes: usize) -> *mut c_void {
    // SAFETY: NumPy passes the handler's context.
    unsafe { with_heap(context, ptr::null_mut(), |heap| heap.calloc(count, each_bytes)) }
}

unsafe extern "C" fn handler_realloc(
    context: *mut c_void,
    address: *mut c_void,
    len_bytes: usize,
) -> *mut c_void {
    // SAFETY: NumPy passes the handler's context, and an address that this handler allocated.
    unsafe { with_heap(context, ptr::null_mut(), |heap| heap.realloc(address, len_bytes)) }
}

unsafe extern "C" fn handler_free(context: *mut c_void, address: *mut c_void, _len_bytes: usize) {
    // SAFETY: NumPy passes the handler's context, and an address that this handler allocated.
    unsafe { with_heap(context, (), |heap| heap.free(address)) }
}

/// Makes the capsule of a handler, which owns the handler.
fn capsule(py: Python<'_>, heap: Heap) -> PyResult<Py<PyAny>> {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"pagefold") {
        *to = *from as c_char;
    }
    let handler = Box::into_raw(Box::new(Handler {
        name,
        version: 1,
        context: ptr::null_mut(),
        malloc: handler_malloc,
        calloc: handler_calloc,
        realloc: handler_realloc,
        free: handler_free,
        heap,
    }));
    // SAFETY: the box was just made, and its address stays the same until the capsule drops it.
    unsafe { (*handler).context = (&raw mut (*handler).heap).cast() };
    // SAFETY: the pointer is not null, and the name lives as long as the program.
    let capsule = unsafe { ffi::PyCapsule_New(handler.cast(), CAPSULE_NAME.as_ptr(), Some(drop_handler)) };
    // SAFETY: the call returned a new reference, or null with an exception.
    let owned = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if owned.is_err() {
        // SAFETY: no capsule has it.
        drop(unsafe { Box::from_raw(handler) });
    }
    owned.map(Bound::unbind)
}

unsafe extern "C" fn drop_handler(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, for a capsule that `capsule` made, when nobody has a reference to it.
    let handler = unsafe { ffi::PyCapsule_GetPointer(capsule, CAPSULE_NAME.as_ptr()) }.cast::<Handler>();
    if !handler.is_null() {
        // The arena's threads are joined here. They need no lock of the interpreter.
        // SAFETY: the pointer is that of a box which only the capsule had.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(handler) })));
    }
}

/// The module of NumPy's table, in NumPy 2 and before it.
const MODULES: [&str; 2] = ["numpy._core._multiarray_umath", "numpy.core._multiarray_umath"];

/// Returns an entry of NumPy's table of functions. Only the first call looks for the table: [`NumpyArena`] makes it, so a
/// forked child that has a copy of one never imports anything.
fn numpy_function(py: Python<'_>, index: usize) -> PyResult<*mut c_void> {
    static TABLE: AtomicPtr<*mut c_void> = AtomicPtr::new(ptr::null_mut());
    let mut table = TABLE.load(Relaxed);
    if table.is_null() {
        table = numpy_table(py)?;
        TABLE.store(table, Relaxed);
    }
    // SAFETY: the table has this entry in the version that was checked and in all later ones. NumPy's library, whose
    // static it is, is never unloaded.
    Ok(unsafe { *table.add(index) })
}

/// Returns NumPy's table of functions, of a version that has handlers.
///
/// The module is one that NumPy has imported. Importing the name that this version of NumPy does not have would search the
/// file system, with the interpreter's lock released and the lock of that name held: a child that another thread forks at
/// that moment would wait for the lock for ever.
fn numpy_table(py: Python<'_>) -> PyResult<*mut *mut c_void> {
    let missing =
        |reason: String| PyImportError::new_err(format!("numpy_memory needs NumPy 1.22 or later: {reason}"));
    py.import("numpy").map_err(|e| missing(e.to_string()))?;
    let imported = py.import("sys")?.getattr("modules")?;
    let module = MODULES.iter().find_map(|name| imported.get_item(name).ok());
    let module = module.ok_or_else(|| missing(format!("it has no {}", MODULES[0])))?;
    let api = module.getattr("_ARRAY_API")?;
    // SAFETY: the object is alive; the call checks that it is a capsule without a name.
    let table = unsafe { ffi::PyCapsule_GetPointer(api.as_ptr(), ptr::null()) }.cast::<*mut c_void>();
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: all versions of NumPy have the function at this position: it says which of the others exist.
    let version = unsafe {
        let version: unsafe extern "C" fn() -> u32 = std::mem::transmute(*table.add(GET_FEATURE_VERSION));
        version()
    };
    if version < FEATURE_VERSION_MIN {
        return Err(PyImportError::new_err("this NumPy has no memory handlers: 1.22 or later has"));
    }
    Ok(table)
}

/// Makes a handler that of the present context, and returns the one before. `None` is NumPy's default.
#[pyfunction]
#[pyo3(signature = (handler))]
pub(crate) fn set_handler(py: Python<'_>, handler: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
    let function = numpy_function(py, SET_HANDLER)?;
    let handler = match handler {
        // SAFETY: a check of the type and the name of a live object.
        Some(it) if unsafe { ffi::PyCapsule_IsValid(it.as_ptr(), CAPSULE_NAME.as_ptr()) } == 0 => {
            return Err(PyTypeError::new_err("not a memory handler of NumPy"));
        }
        Some(it) => it.as_ptr(),
        None => ptr::null_mut(),
    };
    // SAFETY: `PyDataMem_SetHandler`, with a handler or null. It returns a new reference or null with an exception.
    unsafe {
        let set: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject =
            std::mem::transmute(function);
        Bound::from_owned_ptr_or_err(py, set(handler)).map(Bound::unbind)
    }
}

/// Returns the handler of the present context.
#[pyfunction]
pub(crate) fn get_handler(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let function = numpy_function(py, GET_HANDLER)?;
    // SAFETY: `PyDataMem_GetHandler`. It returns a new reference or null with an exception.
    unsafe {
        let get: unsafe extern "C" fn() -> *mut ffi::PyObject = std::mem::transmute(function);
        Bound::from_owned_ptr_or_err(py, get()).map(Bound::unbind)
    }
}

/// A region for arrays of NumPy, and its memory handler.
#[pyclass(frozen, weakref, module = "pagefold._native")]
pub(crate) struct NumpyArena {
    arena: Arc<Arena>,
    threshold_bytes: usize,
}

#[pymethods]
impl NumpyArena {
    #[new]
    #[pyo3(signature = (memory, *, threshold, capacity=None, pool=None, codec="numbers", level=None, system_calls=true))]
    #[allow(clippy::too_many_arguments, reason = "these are keywords in Python")]
    fn new(
        py: Python<'_>,
        memory: Limit,
        threshold: Size,
        capacity: Option<Size>,
        pool: Option<Size>,
        codec: &str,
        level: Option<i32>,
        system_calls: bool,
    ) -> PyResult<Self> {
        // Here, and not when a thread first uses the handler: another may fork at that moment.
        numpy_function(py, SET_HANDLER)?;
        let settings = RegionSettings::new(memory, pool, codec, level, system_calls);
        // As many addresses as arrays could fill if they compressed eight times.
        let capacity = capacity.map_or_else(|| 8 * pagefold_sys::mem::total_bytes(), |size| size.0);
        let threshold_bytes = usize::try_from(threshold.0).unwrap_or(usize::MAX).max(1);
        let region = settings.region(py, capacity, None, None)?;
        let arena = Arena::new(region).map_err(|e| errors::region(&e))?;
        Ok(NumpyArena { arena, threshold_bytes })
    }

    /// Makes a handler over this region.
    fn handler(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        capsule(py, Heap { arena: self.arena.clone(), threshold_bytes: self.threshold_bytes })
    }

    /// Whether this process made the region, rather than being a forked child.
    fn is_same_process(&self) -> bool {
        self.arena.is_same_process()
    }

    /// Returns the bytes of the block at an address, or 0 if there is none.
    fn len_at(&self, address: usize) -> usize {
        let address: *mut u8 = ptr::with_exposed_provenance_mut(address);
        match self.arena.is_same_process() && self.arena.contains(address) {
            true => self.arena.len_at(address),
            false => 0,
        }
    }

    /// Whether an address lies in the region, which a forked child does not have.
    fn contains(&self, address: usize) -> bool {
        self.arena.is_same_process() && self.arena.contains(ptr::with_exposed_provenance_mut(address))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyRegionStats> {
        self.check_process()?;
        Ok(py.detach(|| self.arena.stats()))
    }

    fn set_memory(&self, py: Python<'_>, memory: Size) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| self.arena.region().set_limit(memory.0)).map_err(|e| errors::region(&e))
    }

    fn line(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.stats(py)?.line())
    }

    fn html(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.stats(py)?.html("pagefold.numpy_memory"))
    }
}

impl NumpyArena {
    fn check_process(&self) -> PyResult<()> {
        match self.arena.is_same_process() {
            true => Ok(()),
            false => Err(PyValueError::new_err("the memory belongs to the parent process")),
        }
    }
}
