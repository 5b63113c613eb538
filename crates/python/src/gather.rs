//! Copies of scattered elements of an array in a region, while pages stay where they are: `pagefold.chunks.take`.
//!
//! The caller sorts the indices, so that each page is decoded once, and divides them among threads.

use crate::parts::copy;
use pagefold_memory::Region;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Copies the elements `indices` of an array to the places `places` of a buffer. An element has `item_len` bytes; array and
/// buffer are contiguous bytes.
#[pyfunction]
pub(crate) fn take_items(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    item_len: usize,
    indices: &Bound<'_, PyAny>,
    places: &Bound<'_, PyAny>,
    buffer: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (array, buffer) = (PyBuffer::<u8>::get(array)?, PyBuffer::<u8>::get(buffer)?);
    let indices = numbers(py, indices, array.len_bytes().checked_div(item_len))?;
    let places = numbers(py, places, buffer.len_bytes().checked_div(item_len))?;
    let is_valid = array.is_c_contiguous() && buffer.is_c_contiguous() && !buffer.readonly();
    if !is_valid || indices.len() != places.len() {
        return Err(PyValueError::new_err(
            "array and buffer must be contiguous bytes, and there must be as many places",
        ));
    }
    let (from, to) = (array.buf_ptr().expose_provenance(), buffer.buf_ptr().expose_provenance());
    let put = |place: usize, item: &[u8]| {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to + place * item_len);
        // SAFETY: `place` is less than the items of the buffer (`numbers`), which keeps its bytes while this call has the
        // `PyBuffer`; `copy` because other memory of Python may overlap it.
        unsafe { std::ptr::copy(item.as_ptr(), to, item_len) };
    };
    let in_region = |region: &Region, offset: usize| {
        let offsets: Vec<usize> = indices.iter().map(|index| offset + index * item_len).collect();
        region.read_items(&offsets, item_len, |at, item| put(places[at], item))
    };
    let elsewhere = || {
        for (index, place) in indices.iter().zip(&places) {
            let item = std::ptr::with_exposed_provenance::<u8>(from + index * item_len);
            // SAFETY: `index` is less than the items of the array, as for `put`.
            put(*place, unsafe { std::slice::from_raw_parts(item, item_len) });
        }
    };
    copy(py, &array, in_region, elsewhere)
}

/// Copies numbers out of a buffer, all of which must be less than `count`. `None` stands for items without bytes.
fn numbers(py: Python<'_>, buffer: &Bound<'_, PyAny>, count: Option<usize>) -> PyResult<Vec<usize>> {
    let numbers = PyBuffer::<i64>::get(buffer)?.to_vec(py)?;
    let checked = |number: i64| usize::try_from(number).ok().filter(|number| Some(*number) < count);
    let all: Option<Vec<usize>> = numbers.into_iter().map(checked).collect();
    match (all, count) {
        (Some(all), Some(_)) => Ok(all),
        _ => Err(PyValueError::new_err("an index is out of bounds, or items have no bytes")),
    }
}
