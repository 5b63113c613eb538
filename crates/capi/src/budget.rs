//! The functions on budgets: limits that several regions share.

use crate::error::{Code, Error};
use crate::guard;
use pagefold_memory::{PressurePolicy, ResidentBudget};
use pagefold_sys::forkmark::ForkMark;
use std::ffi::c_int;

/// The handle of a budget.
pub struct pf_budget {
    budget: ResidentBudget,
    mark: ForkMark,
}

/// Returns what a handle stands for; `None` for null. Refuses handles of the parent process.
///
/// # Safety
/// The handle is null, or one that nobody destroys during `'a`.
pub(crate) unsafe fn handle<'a>(budget: *const pf_budget) -> Result<Option<&'a ResidentBudget>, Error> {
    // SAFETY: the caller guarantees it.
    let Some(handle) = (unsafe { budget.as_ref() }) else { return Ok(None) };
    match handle.mark.is_same_process() {
        true => Ok(Some(&handle.budget)),
        false => Err(Error::new(Code::Forked, "a forked child does not have the budgets of its parent")),
    }
}

/// Like [`handle`], for a call that needs a budget.
///
/// # Safety
/// As for [`handle`].
unsafe fn given<'a>(budget: *const pf_budget) -> Result<&'a ResidentBudget, Error> {
    // SAFETY: the caller guarantees it.
    unsafe { handle(budget) }?.ok_or_else(|| Error::invalid("the budget is a null pointer"))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_budget_create(limit_bytes: u64, budget: *mut *mut pf_budget) -> c_int {
    let make = || {
        let mark = ForkMark::new().map_err(|error| Error::new(Code::NoMemory, error))?;
        let budget = match limit_bytes {
            0 => ResidentBudget::by_pressure(PressurePolicy::default())?,
            _ => ResidentBudget::new(limit_bytes)?,
        };
        Ok(pf_budget { budget, mark })
    };
    // SAFETY: the caller guarantees a place for the handle.
    guard::call(|| unsafe { guard::put(budget, make) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_budget_destroy(budget: *mut pf_budget) -> c_int {
    guard::call(|| {
        if !budget.is_null() {
            // SAFETY: the caller guarantees a handle that it no longer uses.
            unsafe { given(budget) }?;
            // SAFETY: `put` made it from a box, and the caller gives it up.
            drop(unsafe { Box::from_raw(budget) });
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_budget_set_limit(budget: *mut pf_budget, limit_bytes: u64) -> c_int {
    // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
    guard::call(|| Ok(unsafe { given(budget) }?.set_limit(limit_bytes)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_budget_limit_bytes(budget: *const pf_budget) -> u64 {
    // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
    let budget = unsafe { handle(budget) };
    budget.ok().flatten().map_or(0, ResidentBudget::limit_bytes)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_budget_resident_bytes(budget: *const pf_budget) -> u64 {
    // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
    let budget = unsafe { handle(budget) };
    budget.ok().flatten().map_or(0, ResidentBudget::resident_bytes)
}
