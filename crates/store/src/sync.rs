//! The atomics, the mutex with its condition variable, and the futex calls of the slot's lock and the segments' reference counts. With `--cfg
//! loom` they are loom's, so that the model checker runs the production code.

pub(crate) use pagefold_sys::futex::{wait, wake};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use model::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
mod model {
    use loom::sync::{Condvar as LoomCondvar, Mutex as LoomMutex, MutexGuard as LoomGuard};
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    /// loom's mutex with the interface of `parking_lot::Mutex`.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(LoomMutex<T>);

    /// `None` only inside `Condvar::wait`.
    pub(crate) struct MutexGuard<'a, T>(Option<LoomGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(LoomMutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    #[expect(clippy::unwrap_used, reason = "the guard is there outside of `Condvar::wait`")]
    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    #[expect(clippy::unwrap_used, reason = "the guard is there outside of `Condvar::wait`")]
    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    /// loom's condition variable with the interface of `parking_lot::Condvar`.
    #[derive(Debug)]
    pub(crate) struct Condvar(LoomCondvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(LoomCondvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take();
            guard.0 = inner.map(|inner| self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
