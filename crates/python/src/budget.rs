//! `Budget`: a limit that several regions share, and the argument `memory` of everything that makes a region.

use crate::errors;
use crate::sizes::Size;
use pagefold_memory::{PressurePolicy, ResidentBudget};
use pagefold_page::size::Human;
use pagefold_sys::forkmark::ForkMark;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A limit on resident memory that several arrays and regions share.
///
/// Pass it as their `memory`. Each can have all that the others do not use; if all of it is in use, the one that is
/// used more takes from the one that is used less. `Budget()` has no fixed limit: it follows what the machine, and the
/// control groups of this process, have available.
#[pyclass(frozen, weakref, module = "pagefold", name = "Budget")]
pub(crate) struct PyBudget {
    budget: ResidentBudget,
    /// The limit that the program set, bytes; 0 if it has none.
    set_bytes: AtomicU64,
    mark: ForkMark,
}

impl PyBudget {
    fn get(&self) -> PyResult<&ResidentBudget> {
        match self.mark.is_same_process() {
            true => Ok(&self.budget),
            false => Err(PyValueError::new_err(
                "the budget belongs to the parent process: make one in this process",
            )),
        }
    }
}

#[pymethods]
impl PyBudget {
    /// Makes a budget of `memory`; without it, one that follows the pressure on memory.
    #[new]
    #[pyo3(signature = (memory=None))]
    fn new(py: Python<'_>, memory: Option<Size>) -> PyResult<Self> {
        let mark = errors::fork_mark()?;
        let make = || match memory {
            Some(size) => ResidentBudget::new(size.0),
            None => ResidentBudget::by_pressure(PressurePolicy::default()),
        };
        let budget = py.detach(make).map_err(|e| errors::region(&e))?;
        Ok(PyBudget { budget, set_bytes: AtomicU64::new(memory.map_or(0, |size| size.0)), mark })
    }

    /// The limit now, in bytes. It can be changed at any time.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<u64> {
        let budget = self.get()?;
        Ok(py.detach(|| budget.limit_bytes()))
    }

    #[setter]
    fn set_memory(&self, py: Python<'_>, memory: Size) -> PyResult<()> {
        let budget = self.get()?;
        py.detach(|| budget.set_limit(memory.0)).map_err(|e| errors::region(&e))?;
        if !budget.follows_pressure() {
            self.set_bytes.store(memory.0, Relaxed);
        }
        Ok(())
    }

    /// The resident memory of all regions together, in bytes.
    #[getter]
    fn resident(&self, py: Python<'_>) -> PyResult<u64> {
        let budget = self.get()?;
        Ok(py.detach(|| budget.resident_bytes()))
    }

    /// The number of regions that share it.
    #[getter]
    fn regions(&self, py: Python<'_>) -> PyResult<usize> {
        let budget = self.get()?;
        Ok(py.detach(|| budget.region_count()))
    }

    /// Whether it has no fixed limit.
    #[getter]
    fn follows_pressure(&self) -> bool {
        self.budget.follows_pressure()
    }

    /// Another process gets a budget with the same settings. This takes no lock: a forked child may call it.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Option<u64>,)) {
        let memory = Some(self.set_bytes.load(Relaxed)).filter(|bytes| *bytes != 0);
        (py.get_type::<PyBudget>(), (memory,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (limit, resident, regions) = (self.memory(py)?, self.resident(py)?, self.regions(py)?);
        let kind = if self.follows_pressure() { ", follows the pressure" } else { "" };
        Ok(format!(
            "<pagefold.Budget: {} of {} resident, {regions} regions{kind}>",
            Human(resident),
            Human(limit)
        ))
    }
}

/// The resident memory that a region may have: a size, a budget, or `None` for the budget of this process that follows
/// the pressure.
#[derive(Debug, Clone)]
pub(crate) enum Limit {
    Bytes(u64),
    Budget(ResidentBudget),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Limit {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            return of_process(object.py()).map(Limit::Budget);
        }
        match object.cast::<PyBudget>() {
            Ok(budget) => Ok(Limit::Budget(budget.get().get()?.clone())),
            Err(_) => Ok(Limit::Bytes(object.extract::<Size>()?.0)),
        }
    }
}

/// The budget of this process that follows the pressure, which all regions without a limit share.
fn of_process(py: Python<'_>) -> PyResult<ResidentBudget> {
    static MARK: OnceLock<ForkMark> = OnceLock::new();
    static BUDGET: Mutex<Option<ResidentBudget>> = Mutex::new(None);
    let make = || ResidentBudget::by_pressure(PressurePolicy::default()).map_err(|e| errors::region(&e));
    if MARK.get().is_none() {
        let mark = errors::fork_mark()?;
        let _ = MARK.set(mark);
    }
    py.detach(|| {
        // In a forked child the lock may have been taken by a thread that the child does not have. There each region
        // follows the pressure by itself.
        if !MARK.get().is_some_and(ForkMark::is_same_process) {
            return make();
        }
        let mut budget = BUDGET.lock();
        match &*budget {
            Some(budget) => Ok(budget.clone()),
            None => Ok(budget.insert(make()?).clone()),
        }
    })
}
