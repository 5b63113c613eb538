//! Copies between arrays in regions and buffers, while pages stay where they are: the native part of `pagefold.chunks`.
//!
//! A table says which region has an address. It holds regions weakly, and is locked for a search only. A forked child may
//! have a copy of the lock that another thread held; it gives up after a moment, and the bytes are copied as those of other
//! memory. Its parent's regions refuse themselves.

use pagefold_memory::{RangeError, Region};
use parking_lot::RwLock;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use std::slice;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest wait for the table's lock, which is held for microseconds.
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// A region that Python has, in whichever object.
pub(crate) trait Owner: Send + Sync {
    /// Calls `f` with the region. Returns `None` if it is closed or belongs to the parent process.
    fn with_region(
        &self,
        f: &mut dyn FnMut(&Region) -> Result<(), RangeError>,
    ) -> Option<Result<(), RangeError>>;
}

struct Entry {
    range: Range<usize>,
    owner: Weak<dyn Owner>,
}

static TABLE: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

/// Makes a region known by its addresses, and forgets those that are gone.
pub(crate) fn register(range: Range<usize>, owner: Weak<dyn Owner>) {
    if let Some(mut table) = TABLE.try_write_for(LOCK_WAIT) {
        table.retain(|entry| entry.owner.strong_count() > 0);
        table.push(Entry { range, owner });
    }
}

/// Returns the region that has all bytes of a buffer, and the offset of the first one.
fn find(address: usize, len_bytes: usize) -> Option<(Arc<dyn Owner>, usize)> {
    let table = TABLE.try_read_for(LOCK_WAIT)?;
    let has = |range: &Range<usize>| {
        range.contains(&address) && address.checked_add(len_bytes).is_some_and(|end| end <= range.end)
    };
    // A region that is gone may have had the same addresses.
    table
        .iter()
        .filter(|entry| has(&entry.range))
        .find_map(|entry| Some((entry.owner.upgrade()?, address - entry.range.start)))
}

fn buffers(array: &Bound<'_, PyAny>, buffer: &Bound<'_, PyAny>) -> PyResult<(PyBuffer<u8>, PyBuffer<u8>)> {
    let (array, buffer) = (PyBuffer::<u8>::get(array)?, PyBuffer::<u8>::get(buffer)?);
    if !array.is_c_contiguous() || !buffer.is_c_contiguous() || array.len_bytes() != buffer.len_bytes() {
        return Err(PyValueError::new_err("both must be contiguous bytes, and equally many"));
    }
    Ok((array, buffer))
}

/// Copies bytes while `copy` does the part of a region, or as other memory if they lie in none.
pub(crate) fn copy(
    py: Python<'_>,
    array: &PyBuffer<u8>,
    in_region: impl Fn(&Region, usize) -> Result<(), RangeError> + Send + Sync,
    elsewhere: impl FnOnce() + Send,
) -> PyResult<()> {
    let (address, len_bytes) = (array.buf_ptr().addr(), array.len_bytes());
    py.detach(|| {
        let done = find(address, len_bytes)
            .and_then(|(owner, offset)| owner.with_region(&mut |region| in_region(region, offset)));
        match done {
            Some(result) => result.map_err(|e| PyErr::new::<crate::errors::Error, _>(e.to_string())),
            None => {
                elsewhere();
                Ok(())
            }
        }
    })
}

/// Whether an address lies in a region.
#[pyfunction]
pub(crate) fn is_compressed(py: Python<'_>, address: usize) -> bool {
    py.detach(|| find(address, 1)).is_some()
}

/// Copies the bytes of an array to a buffer of the same length.
#[pyfunction]
pub(crate) fn read_part(py: Python<'_>, array: &Bound<'_, PyAny>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
    let (array, buffer) = buffers(array, buffer)?;
    let read = |region: &Region, offset, len, to| {
        // SAFETY: the buffer's owner keeps its bytes while this call has the `PyBuffer`, and they may be written. Other
        // threads of Python that access them at the same time see a write, as of any other thread of Python.
        region.read_part(offset, unsafe {
            slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(to), len)
        })
    };
    copy_part(py, &array, [&array, &buffer], "the buffer cannot be written", read)
}

/// Copies a buffer to the bytes of an array of the same length.
#[pyfunction]
pub(crate) fn write_part(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    buffer: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (array, buffer) = buffers(array, buffer)?;
    let write = |region: &Region, offset, len, from| {
        // SAFETY: as for `read_part`; there are no Rust references into the range, and arrays of Python see a write.
        unsafe {
            let from = slice::from_raw_parts(std::ptr::with_exposed_provenance(from), len);
            region.write_part_shared(offset, from)
        }
    };
    copy_part(py, &array, [&buffer, &array], "the array cannot be written", write)
}

/// Copies all bytes of `from` to `to`, equally many, of which `array` may lie in a region. Then `in_region` gets the offset
/// there, the length, and the address of the other. `refusal` says that `to` is read-only.
fn copy_part(
    py: Python<'_>,
    array: &PyBuffer<u8>,
    [from, to]: [&PyBuffer<u8>; 2],
    refusal: &'static str,
    in_region: impl Fn(&Region, usize, usize, usize) -> Result<(), RangeError> + Send + Sync,
) -> PyResult<()> {
    if to.readonly() {
        return Err(PyValueError::new_err(refusal));
    }
    let (from, to, len) =
        (from.buf_ptr().expose_provenance(), to.buf_ptr().expose_provenance(), array.len_bytes());
    if len == 0 {
        return Ok(());
    }
    let other = if from == array.buf_ptr().addr() { to } else { from };
    // SAFETY: both have so many bytes while the caller has the `PyBuffer`s; `copy` because they may overlap.
    let plain = move || unsafe {
        std::ptr::copy(
            std::ptr::with_exposed_provenance::<u8>(from),
            std::ptr::with_exposed_provenance_mut::<u8>(to),
            len,
        );
    };
    copy(py, array, move |region, offset| in_region(region, offset, len, other), plain)
}
