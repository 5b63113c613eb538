//! The atomics and the sleeping that the page words and the count of memory are made of, so that a model checker
//! can stand in for them (`--cfg loom`) without a copy of the transitions.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use pagefold_sys::futex::{ALL as WAKE_ALL, wait, wake};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
