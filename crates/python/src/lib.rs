//! The native part of the Python package `pagefold`: regions, memory for NumPy's arrays, images and stores.
//!
//! | module | what is in it |
//! |---|---|
//! | `errors` | the exceptions, and how errors of the other crates become exceptions |
//! | `sizes` | sizes that Python passes or prints |
//! | `report` | statistics as an object, as a line of text, and as HTML |
//! | `budget` | `Budget`, a limit that regions share, and the argument `memory` |
//! | `arguments` | settings of regions that Python passes |
//! | `region` | `Region`, an object with the buffer protocol |
//! | `blocks` | which pages of a range are in use: an allocator without memory |
//! | `freed` | freed blocks that keep their memory for the next arrays |
//! | `arena` | a region that is divided into blocks, and what a forked child may do with it |
//! | `numpy_handler` | NumPy's memory handler (NEP 49) over an arena |
//! | `gather` | copies of scattered elements of such arrays |
//! | `parts` | copies between arrays in regions and buffers, and which region has an address |
//! | `image`, `store` | `Image` and `Store` |
//!
//! *The interpreter's lock.* Threads that serve faults and evict pages never need it, so a thread that holds it can wait
//! for them. Calls that can take long release it. Locks of this crate are taken and released without attaching to the
//! interpreter in between.
//!
//! *Faults* are served by the region's threads, never in a signal handler: Python's `faulthandler` takes SIGBUS, and
//! `numpy.fromfile` ignores EFAULT.

mod arena;
mod arguments;
mod blocks;
mod budget;
mod errors;
mod freed;
mod gather;
mod image;
mod numpy_handler;
mod parts;
mod region;
mod report;
mod sizes;
mod store;

use pyo3::prelude::*;

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("Error", m.py().get_type::<errors::Error>())?;
    m.add("NotAllowedError", m.py().get_type::<errors::NotAllowedError>())?;
    m.add("ImageError", m.py().get_type::<errors::ImageError>())?;
    m.add_class::<region::PyRegion>()?;
    m.add_class::<budget::PyBudget>()?;
    m.add_class::<report::PyRegionStats>()?;
    m.add_class::<numpy_handler::NumpyArena>()?;
    m.add_class::<image::PyImage>()?;
    m.add_class::<image::PyNode>()?;
    m.add_class::<store::PyStore>()?;
    m.add_function(wrap_pyfunction!(sizes::parse_size, m)?)?;
    m.add_function(wrap_pyfunction!(sizes::format_size, m)?)?;
    m.add_function(wrap_pyfunction!(parts::is_compressed, m)?)?;
    m.add_function(wrap_pyfunction!(parts::read_part, m)?)?;
    m.add_function(wrap_pyfunction!(parts::write_part, m)?)?;
    m.add_function(wrap_pyfunction!(gather::take_items, m)?)?;
    m.add_function(wrap_pyfunction!(numpy_handler::set_handler, m)?)?;
    m.add_function(wrap_pyfunction!(numpy_handler::get_handler, m)?)?;
    Ok(())
}
