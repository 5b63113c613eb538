//! `Store`: an array of pages that are kept compressed.

use crate::errors;
use crate::sizes::Size;
use pagefold_codec::CodecSpec;
use pagefold_page::PAGE_SIZE;
use pagefold_page::size::Human;
use pagefold_store::{MemLimit, Store, StoreConfig};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

/// Pages of 4096 bytes, numbered from 0, that are kept compressed in memory. They begin as zeroes. Threads can share it.
#[pyclass(frozen, weakref, module = "pagefold", name = "Store")]
pub(crate) struct PyStore {
    store: Store,
    pages: u64,
}

#[pymethods]
impl PyStore {
    /// The size of a page in bytes.
    #[classattr]
    const PAGE_SIZE: usize = PAGE_SIZE;

    /// Makes a store of `size` bytes, which takes memory only for pages that were written. `memory` is the most memory
    /// for compressed pages; a page for which there is none is refused with `MemoryError`.
    #[new]
    #[pyo3(signature = (size=Size(1 << 40), *, codec="lz4", level=None, memory=None))]
    fn new(
        py: Python<'_>,
        size: Size,
        codec: &str,
        level: Option<i32>,
        memory: Option<Size>,
    ) -> PyResult<Self> {
        let config = StoreConfig {
            codec: CodecSpec { level, ..CodecSpec::named(codec) },
            mem_limit: memory.map_or(MemLimit::Half, |size| MemLimit::Bytes(size.0)),
            ..StoreConfig::new(size.0)
        };
        let store = py.detach(|| Store::new(config)).map_err(|e| errors::store(&e))?;
        Ok(PyStore { pages: size.0.div_ceil(PAGE_SIZE as u64), store })
    }

    /// Stores one page: 4096 bytes.
    fn put(&self, py: Python<'_>, index: i64, page: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = PyBuffer::<u8>::get(page)?;
        let mut bytes = [0; PAGE_SIZE];
        if buffer.len_bytes() != PAGE_SIZE {
            let len = buffer.len_bytes();
            return Err(PyValueError::new_err(format!("a page has {PAGE_SIZE} bytes, not {len}")));
        }
        buffer.copy_to_slice(py, &mut bytes)?;
        let offset = self.offset(index)?;
        py.detach(|| self.store.write(offset, &bytes)).map_err(|e| errors::store(&e))
    }

    /// Returns one page.
    fn get<'py>(&self, py: Python<'py>, index: i64) -> PyResult<Bound<'py, PyBytes>> {
        let offset = self.offset(index)?;
        PyBytes::new_with(py, PAGE_SIZE, |page| {
            py.detach(|| self.store.read(offset, page)).map_err(|e| errors::store(&e))
        })
    }

    /// Makes `count` pages from `index` on zero, and frees their memory.
    #[pyo3(signature = (index, count=1))]
    fn discard(&self, py: Python<'_>, index: i64, count: u64) -> PyResult<()> {
        let offset = self.offset(index)?;
        let len_bytes = count.saturating_mul(PAGE_SIZE as u64);
        py.detach(|| self.store.discard(offset, len_bytes)).map_err(|e| errors::store(&e))
    }

    fn __len__(&self) -> usize {
        self.pages as usize
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.get(py, index)
    }

    fn __setitem__(&self, py: Python<'_>, index: i64, page: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(py, index, page)
    }

    fn __delitem__(&self, py: Python<'_>, index: i64) -> PyResult<()> {
        self.discard(py, index, 1)
    }

    /// Frees memory that compressed pages do not need, and returns its bytes.
    fn compact(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.store.compact())
    }

    /// Returns counters, with the names of zram's `mm_stat`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mm = py.detach(|| self.store.stats()).mm;
        [
            ("orig_data_size", mm.orig_data_size),
            ("compr_data_size", mm.compr_data_size),
            ("mem_used_total", mm.mem_used_total),
            ("mem_limit", mm.mem_limit),
            ("mem_used_max", mm.mem_used_max),
            ("same_pages", mm.same_pages),
            ("huge_pages", mm.huge_pages),
        ]
        .into_py_dict(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let mm = py.detach(|| self.store.stats()).mm;
        let (stored, used) = (Human(mm.orig_data_size), Human(mm.mem_used_total));
        format!("<pagefold.Store {}, {stored} stored in {used}>", self.store.codec().0)
    }
}

impl PyStore {
    /// Returns the first byte of a page. A negative index counts from the end.
    fn offset(&self, index: i64) -> PyResult<u64> {
        let index = if index < 0 { index.checked_add_unsigned(self.pages) } else { Some(index) };
        match index.and_then(|index| u64::try_from(index).ok()) {
            Some(index) if index < self.pages => Ok(index * PAGE_SIZE as u64),
            _ => Err(PyIndexError::new_err(format!("the store has {} pages", self.pages))),
        }
    }
}
