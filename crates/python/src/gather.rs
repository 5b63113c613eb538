//! Copies of scattered elements of an array in a region, while pages stay where they are: `pagefold.chunks.take`.
//!
//! Indices that follow each other in one page are read together, so that sorted indices decode each page once. The caller
//! sorts them and divides them among threads.

use crate::parts::copy;
use pagefold_memory::{RangeError, Region};
use pagefold_page::PAGE_SIZE;
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
        let mut bytes = Vec::new();
        let groups = Groups { indices: &indices, offset, item_len, at: 0 };
        for group in groups {
            let (first, last) = (indices[group.start], indices[group.end - 1]);
            bytes.resize((last - first + 1) * item_len, 0);
            region.read_part(offset + first * item_len, &mut bytes)?;
            for at in group {
                put(places[at], &bytes[(indices[at] - first) * item_len..][..item_len]);
            }
        }
        Ok::<(), RangeError>(())
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

/// Divides indices into groups that are in ascending order and whose elements begin in one page.
struct Groups<'a> {
    indices: &'a [usize],
    /// Of the array in its region.
    offset: usize,
    item_len: usize,
    at: usize,
}

impl Iterator for Groups<'_> {
    type Item = std::ops::Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let page = |index: usize| (self.offset + index * self.item_len) / PAGE_SIZE;
        let (start, mut last) = (self.at, *self.indices.get(self.at)?);
        let first_page = page(last);
        let mut end = start + 1;
        while let Some(index) = self.indices.get(end)
            && *index >= last
            && page(*index) == first_page
        {
            last = *index;
            end += 1;
        }
        self.at = end;
        Some(start..end)
    }
}
