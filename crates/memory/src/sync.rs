//! The atomics and futex calls of the page words and of the resident budget. With `--cfg loom` they are loom's, so
//! that the model checker runs the production code.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use pagefold_sys::futex::{ALL as WAKE_ALL, wait, wake};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
