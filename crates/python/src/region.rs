//! `Region`: a range of compressed memory with Python's buffer protocol.
//!
//! Buffers that are exported (memoryviews, NumPy arrays) hold a reference to the object, so a region lives as long as any
//! view of it, wherever the view went. While there are buffers, the region can neither be closed nor change its size.

use crate::arguments::RegionSettings;
use crate::budget::Limit;
use crate::errors;
use crate::parts::{self, Owner};
use crate::report::PyRegionStats;
use crate::sizes::Size;
use pagefold_memory::{Advice, RangeError, Region};
use pagefold_sys::forkmark::ForkMark;
use parking_lot::RwLock;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Memory that is larger than the RAM it takes: at most `memory` bytes are resident, and the rest is compressed.
///
/// The object has the buffer protocol: `memoryview(region)` and `numpy.frombuffer(region, dtype)` use its bytes without
/// copies.
#[pyclass(frozen, weakref, module = "pagefold", name = "Region")]
pub(crate) struct PyRegion {
    inner: Arc<Inner>,
    exports: AtomicUsize,
}

/// The region, for this object and for the table of `parts`.
struct Inner {
    /// `None` after `close`. Taken without attaching to the interpreter while it is held.
    region: RwLock<Option<Region>>,
    mark: ForkMark,
}

impl Owner for Inner {
    fn with_region(
        &self,
        f: &mut dyn FnMut(&Region) -> Result<(), RangeError>,
    ) -> Option<Result<(), RangeError>> {
        if !self.mark.is_same_process() {
            return None;
        }
        self.region.read().as_ref().map(f)
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the region is closed")
}

fn exported(exports: usize) -> PyErr {
    PyBufferError::new_err(format!(
        "{exports} buffers of the region are in use (arrays, memoryviews): delete them first"
    ))
}

impl PyRegion {
    fn check_process(&self) -> PyResult<()> {
        match self.inner.mark.is_same_process() {
            true => Ok(()),
            false => Err(PyBufferError::new_err(
                "the region belongs to the parent process: a forked child does not have it. Copy what the child needs \
                 before the fork, or start children by spawn or forkserver",
            )),
        }
    }

    /// Calls `f` with the region, not attached to the interpreter.
    fn with<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&Region) -> PyResult<T> + Send) -> PyResult<T> {
        self.check_process()?;
        py.detach(|| f(self.inner.region.read().as_ref().ok_or_else(closed)?))
    }

    /// Calls `f` with the region if there are no buffers of it, not attached to the interpreter.
    fn with_exclusive<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Option<Region>) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut region = self.inner.region.write();
            // Buffers are exported under the read lock.
            match self.exports.load(SeqCst) {
                0 => f(&mut region),
                exports => Err(exported(exports)),
            }
        })
    }

    fn report(&self, py: Python<'_>) -> PyResult<PyRegionStats> {
        self.with(py, |region| Ok(PyRegionStats::new(&region.stats(), region.len_bytes() as u64, 0)))
    }
}

#[pymethods]
impl PyRegion {
    /// Makes a region of `size` bytes of zeroes, of which at most `memory` are resident. `memory` is a size, a `Budget`
    /// that several regions share, or `None`: then the region follows what the machine has available.
    ///
    /// `pool` limits the memory of compressed pages (default: 20 % of the machine's memory), `codec` and `level` choose
    /// the compression, `max_size` is the size up to which `resize` can go. `file` is a file whose bytes the region
    /// begins with; then `size` may be 0. `system_calls=False` needs no privilege, but system calls cannot use the
    /// memory then.
    #[new]
    #[pyo3(signature = (size, memory, *, pool=None, codec="numbers", level=None, max_size=None, file=None,
                        system_calls=true))]
    #[allow(clippy::too_many_arguments, reason = "these are keywords in Python")]
    fn new(
        py: Python<'_>,
        size: Size,
        memory: Limit,
        pool: Option<Size>,
        codec: &str,
        level: Option<i32>,
        max_size: Option<Size>,
        file: Option<PathBuf>,
        system_calls: bool,
    ) -> PyResult<Self> {
        let settings = RegionSettings::new(memory, pool, codec, level, system_calls);
        let region = settings.region(py, size.0, max_size.map(|size| size.0), file)?;
        let mark = errors::fork_mark()?;
        let base = region.as_ptr().addr();
        let range = base..base + region.max_len_bytes();
        let inner = Arc::new(Inner { region: RwLock::new(Some(region)), mark });
        parts::register(range, Arc::<Inner>::downgrade(&inner));
        Ok(PyRegion { inner, exports: AtomicUsize::new(0) })
    }

    /// The size in bytes, a multiple of 4096.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |region| Ok(region.len_bytes()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.nbytes(py)
    }

    /// The limit on resident memory, in bytes. It can be changed at any time. With a `Budget`, it is the region's
    /// present part of it, and setting it sets the most that the region may have.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |region| Ok(region.stats().memory.limit))
    }

    #[setter]
    fn set_memory(&self, py: Python<'_>, memory: Size) -> PyResult<()> {
        self.with(py, |region| region.set_limit(memory.0).map_err(|e| errors::region(&e)))
    }

    /// Whether the region is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        // A lock of the parent process may be held by a thread that this process does not have.
        !self.inner.mark.is_same_process() || py.detach(|| self.inner.region.read().is_none())
    }

    /// Returns the statistics of this moment.
    fn stats(&self, py: Python<'_>) -> PyResult<PyRegionStats> {
        self.report(py)
    }

    /// Changes the size; the bytes stay at their address. Raises `BufferError` while there are buffers of the region.
    fn resize(&self, py: Python<'_>, size: Size) -> PyResult<()> {
        self.check_process()?;
        self.with_exclusive(py, |region| {
            let region = region.as_mut().ok_or_else(closed)?;
            region.resize(size.0).map_err(|e| errors::region(&e))
        })
    }

    /// Makes the bytes from `start` to `stop` zero and releases their memory.
    #[pyo3(signature = (start=0, stop=None))]
    fn discard(&self, py: Python<'_>, start: usize, stop: Option<usize>) -> PyResult<()> {
        self.with(py, |region| {
            let stop = stop.unwrap_or_else(|| region.len_bytes());
            // Whole pages are dropped; the bytes of others are written.
            let pages = start.next_multiple_of(4096).min(stop)..(stop / 4096 * 4096);
            let range = start..stop;
            if start > stop || stop > region.len_bytes() {
                return Err(PyValueError::new_err(format!(
                    "bytes {start} to {stop} are no part of the region of {} bytes",
                    region.len_bytes()
                )));
            }
            for edge in [start..pages.start.max(start), pages.end.max(pages.start).min(stop)..stop] {
                // SAFETY: the edge lies in the range, which lives as long as the read lock is held. Buffers of Python may
                // refer to these bytes, and see a write, as from any other thread of Python.
                unsafe { ptr::write_bytes(region.as_ptr().add(edge.start), 0, edge.len()) };
            }
            if pages.start >= pages.end {
                // SAFETY: as above; without a whole page inside, the edges may not have covered the range.
                unsafe { ptr::write_bytes(region.as_ptr().add(range.start), 0, range.len()) };
                return Ok(());
            }
            // SAFETY: there are no Rust references to the range; buffers of Python see zeroes from now on.
            unsafe { region.discard_shared(pages) }.map_err(|e| PyValueError::new_err(e.to_string()))
        })
    }

    /// Says how the bytes from `start` to `stop` are going to be used: "normal", "sequential", "random" or "willneed".
    #[pyo3(signature = (advice, start=0, stop=None))]
    fn advise(&self, py: Python<'_>, advice: &str, start: usize, stop: Option<usize>) -> PyResult<()> {
        let advice = match advice {
            "normal" => Advice::Normal,
            "sequential" => Advice::Sequential,
            "random" => Advice::Random,
            "willneed" => Advice::WillNeed,
            other => {
                return Err(PyValueError::new_err(format!(
                    "{other:?} is no advice: choose normal, sequential, random or willneed"
                )));
            }
        };
        self.with(py, |region| {
            let stop = stop.unwrap_or_else(|| region.len_bytes());
            region.advise(start..stop, advice).map_err(|e| PyValueError::new_err(e.to_string()))
        })
    }

    /// Releases the region's memory and ends its threads. Raises `BufferError` while there are buffers of the region.
    /// Without this call, that happens when the last reference to the region is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.inner.mark.is_same_process() {
            return Ok(());
        }
        self.with_exclusive(py, |region| {
            drop(region.take());
            Ok(())
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.report(py) {
            Ok(report) => format!("<pagefold.Region {}>", report.line()),
            Err(_) if !self.inner.mark.is_same_process() => "<pagefold.Region of the parent process>".into(),
            Err(_) => "<pagefold.Region closed>".into(),
        }
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.report(py)?.html("pagefold.Region"))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let this = slf.get();
        this.check_process()?;
        let (address, len_bytes) = slf.py().detach(|| {
            let region = this.inner.region.read();
            let region = region.as_ref().ok_or_else(closed)?;
            this.exports.fetch_add(1, SeqCst);
            PyResult::Ok((region.as_ptr().expose_provenance(), region.len_bytes()))
        })?;
        // SAFETY: Python passes a view to be filled. The owner's reference, which Python drops after `releasebuffer`,
        // keeps the region, and the count of exports keeps it open and in its size. The pointers to the shape and the
        // strides are those of fields of the view itself, as in Python's `PyBuffer_FillInfo`.
        unsafe {
            (*view).obj = slf.into_any().into_ptr();
            (*view).buf = ptr::with_exposed_provenance_mut(address);
            (*view).len = len_bytes as isize;
            (*view).readonly = 0;
            (*view).itemsize = 1;
            (*view).ndim = 1;
            let wants = |flag| flags & flag == flag;
            (*view).format =
                if wants(ffi::PyBUF_FORMAT) { c"B".as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).shape = if wants(ffi::PyBUF_ND) { &raw mut (*view).len } else { ptr::null_mut() };
            (*view).strides =
                if wants(ffi::PyBUF_STRIDES) { &raw mut (*view).itemsize } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
        }
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, SeqCst);
    }
}
