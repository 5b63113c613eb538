//! The atomics, the mutex and the futex calls of the slot's lock and the segments' reference counts. With `--cfg
//! loom` they are loom's, so that the model checker runs the production code.

pub(crate) use pagefold_sys::futex::{wait, wake};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use model::Mutex;

#[cfg(loom)]
mod model {
    use loom::sync::{Mutex as LoomMutex, MutexGuard};
    use std::sync::PoisonError;

    /// loom's mutex with the interface of `parking_lot::Mutex`.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(LoomMutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(LoomMutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
