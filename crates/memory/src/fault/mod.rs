//! The two ways in which faults reach the pager.
//!
//! With [`Service::FaultingThread`](crate::Service::FaultingThread) the kernel sends SIGBUS, and `registry` finds the
//! region in the signal handler. With [`Service::HandlerThreads`](crate::Service::HandlerThreads) the kernel queues a
//! message, and a thread of `handlers` reads it. Both look the page up and call `Pager::serve`. They differ in how the
//! access goes on: the signal handler returns and the access is retried, or the kernel wakes the blocked thread.

pub(crate) mod handlers;
pub(crate) mod registry;
